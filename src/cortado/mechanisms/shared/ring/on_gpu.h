// Joins a ring of past keys and values with new ones, by a GPU kernel.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/window_attention/past.h"

namespace cortado::window {

// A past of which the last min(position, P) places of each row are filled: k [B,P,H,K], v [B,P,H,V], position int64 [B].
struct Ring {
  Tensor k, v, position;
};

// Whether it joins these: all in one 16-bit type, dense, K and V multiples of 8, nothing to be differentiated, on a GPU
// that has kernels.
bool gpu_joins(const Ring& past, const Tensor& k, const Tensor& v);

// As join_past of such a past, whole in new memory.
JoinedKeys join_ring_on_gpu(const Ring& past, const Tensor& k, const Tensor& v, cuda::Machine& machine);
JoinedKeys join_ring(const Ring& past, const Tensor& k, const Tensor& v);

}  // namespace cortado::window
