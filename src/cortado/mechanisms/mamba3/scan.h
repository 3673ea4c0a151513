// The recurrence of Mamba-3 between its two maps, without the gate.
#pragma once

#include "cortado/nn/batch.h"
#include "cortado/nn/state.h"

namespace cortado {

struct Mamba3Sizes {
  int64_t inner = 0;              // channels of x and z, summed over the heads
  int64_t heads = 0, groups = 0;  // groups of heads share B and C, except for the biases
  int64_t state = 0;              // N
  int64_t rank = 0;               // R: writes and reads per token
  int64_t angles = 0;             // S: pairs of B's and C's channels that turn, the first ones

  int64_t channels() const { return inner / heads; }  // P
  int64_t projected() const { return 2 * inner + 2 * rank * groups * state + 3 * heads + angles; }
  int64_t remembered() const { return rank * heads * state + inner + heads; }  // of the last token
};

// Wide.
struct Mamba3Operands {
  Tensor x;                // [B,T,H,P]
  OptionalTensor rank_in;  // [R,H,P]: rank r writes rank_in_r ⊙ x; none: R = 1 writes x
  Tensor b, c;             // [B,T,R,H,N], not turned
  Tensor step, decay;      // Δ and A Δ [B,T,H]
  Tensor trapezoid;        // [B,T,H]: λ is its sigmoid
  Tensor turn;             // [B,T,H,S]: the angle by which B and C turn further at this token
  Tensor skip;             // D [H]

  // What a token writes: [B,T,R,H,P].
  Tensor written(const Tensor& of) const { return rank_in ? of.unsqueeze(2) * *rank_in : of.unsqueeze(2); }
};

// Returns S_tᵀ C_t + D x_t [B,T,R,H,P]. Updates "scan_state", "angle" and "last".
Tensor mamba3_scan(const Mamba3Operands& in, const Batch& batch, SequenceState* state);

// The definition, token by token and with complex numbers.
Tensor mamba3_reference(const Mamba3Sizes& sizes, const Mamba3Operands& in);

}  // namespace cortado
