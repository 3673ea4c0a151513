// performer: linear attention whose feature map estimates the exponential with random orthogonal features (FAVOR+).
#pragma once

#include "cortado/mechanisms/linear/mixer.h"

namespace cortado {

extern const Mechanism kPerformer;

}  // namespace cortado
