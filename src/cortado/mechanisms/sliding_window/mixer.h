// sliding_window: softmax attention over the last w tokens, with a ring of w - 1 keys and values.
#pragma once

#include "cortado/mechanisms/mechanism.h"

namespace cortado {

extern const Mechanism kSlidingWindow;

}  // namespace cortado
