// mamba2, for mixers that contain one.
#pragma once

#include "cortado/mechanisms/mechanism.h"

namespace cortado {

extern const Mechanism kMamba2;

}  // namespace cortado
