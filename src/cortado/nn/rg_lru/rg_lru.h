// The real-gated linear recurrent unit of Griffin.
#pragma once

#include <memory>

#include "cortado/base/error.h"
#include "cortado/nn/batch.h"
#include "cortado/nn/initialization.h"
#include "cortado/nn/module.h"
#include "cortado/nn/rg_lru/op.h"
#include "cortado/nn/state_layout.h"

namespace cortado {

// A block-diagonal linear map, one small matrix per head: the unit's gates. x [B, T, D] -> [B, T, D], channels in H
// blocks of D/H: y_h = x_h W_h + b_h. weight [H, D/H, D/H] (in, out), initialised N(0, H/D); bias [D], 0. InputError: D
// is not divisible by H.
class BlockDiagonal : public Module {
 public:
  BlockDiagonal(int64_t dim, int64_t heads) : Module("BlockDiagonal") {
    fail_input_if(heads < 1 || dim % heads != 0, "[block_diagonal] width ", dim, " is not divisible by ", heads,
                  " blocks");
    const int64_t block = dim / heads;
    register_parameter(weight, "weight", at::empty({heads, block, block}), Role::kMatrix);
    lecun_normal(weight, block);
    register_parameter(bias, "bias", at::zeros({dim}), Role::kGain);
  }

  Tensor forward(const Tensor& x) const { return block_diagonal(x, weight, bias); }

  Tensor weight;
  Tensor bias;
};

// r = σ(BD_a x + b_a), i = σ(BD_x x + b_x), log a_t = -8 r_t softplus(Λ), h_t = a_t h_{t-1} + √(1 - a_t²)(i_t ⊙ x_t);
// at position 0 of a sequence h = i ⊙ x. The derivative of the square root is clipped at 1000. Λ is initialised so that
// exp(-softplus(Λ))² is uniform in [0.9², 0.999²].
class RgLru : public Module {
 public:
  RgLru(int64_t dim, int64_t heads);

  // x [B,T,D] -> h [B,T,D] in x's type. Continues from the state's tensor `name`, [rows,D] (float32, float64 for
  // float64), and its position, and writes the last h there. Starts from zero without a state.
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state, const std::string& name) const;
  void declare(StateLayout& layout, const std::string& name) const { layout.scan(name, {lambda.size(0)}); }

  // A forward scan plus a backward scan in time, with shared parameters; whole sequences only.
  Tensor bidirectional(const Tensor& x, const Batch& batch) const;

  // The definition: token by token, dense, from zero.
  Tensor reference(const Tensor& x, bool causal) const;

  // About 12 operations per channel for sigmoids, decay and recurrence; excludes the gates' matrices.
  double flops_per_token() const { return 12.0 * static_cast<double>(lambda.numel()); }

  Tensor lambda;  // Λ [D]
  std::shared_ptr<BlockDiagonal> recurrence_gate, input_gate;

 private:
  RgLruWeights weights() const {
    return {recurrence_gate->weight, recurrence_gate->bias, input_gate->weight, input_gate->bias, lambda};
  }
  // The state that preceding processes leave; `start` is the first part's.
  static Tensor before(const RgLruGates& now, const Tensor& start, const SequenceParts& parts);
};

}  // namespace cortado
