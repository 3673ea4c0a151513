// The functions of kernel.h on tensors: RWKV-7 without derivatives, in a few passes over memory.
#pragma once

#include <initializer_list>

#include "cortado/nn/batch.h"
#include "cortado/nn/state.h"

namespace cortado::rwkv7 {

// Whether x [B,T,D] is float32 on the CPU, will not be differentiated, and kernels are enabled.
bool takes(const Tensor& x, const Batch& batch);

// x + (before - x) ⊙ mix for each of the mixes [D], [mixes,B,T,D], where `before` is the previous token. Reads and
// updates the state's "shift".
Tensor shifted(const Tensor& x, const Batch& batch, SequenceState* state, std::initializer_list<Tensor> mixes);

// Outputs of the maps, [B,T,D]; decay, rate and share lack their biases. share, first: undefined if v is used as it is.
struct Maps {
  Tensor r, key, v, decay, rate, gate, share, first;
};
// [D], bonus [H,K]; share may be undefined.
struct Parameters {
  Tensor decay, rate, share, removal_scale, key_rate, bonus, norm_weight, norm_bias;
  double norm_eps;
};
// The input of the layer's last map, [B,T,D]. Updates the state's "scan_state".
Tensor read(const Maps& maps, const Parameters& parameters, const Batch& batch, SequenceState* state);

// max(x, 0)² in float32.
Tensor squared_relu(const Tensor& x);

}  // namespace cortado::rwkv7
