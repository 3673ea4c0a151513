// The real-gated linear recurrent unit of Griffin.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <tuple>

#include "cortado/nn/batch.h"
#include "cortado/nn/block_diagonal.h"
#include "cortado/nn/state_layout.h"

namespace cortado {

// r = σ(BD_a x + b_a), i = σ(BD_x x + b_x), log a_t = -8 r_t softplus(Λ), h_t = a_t h_{t-1} + √(1 - a_t²)(i_t ⊙ x_t);
// at position 0 of the sequence h = i ⊙ x. The derivative of the square root is clipped at 1000. Λ starts so that
// exp(-softplus(Λ))² is uniform in [0.9², 0.999²].
class RgLru : public torch::nn::Module {
 public:
  RgLru(int64_t dim, int64_t heads);

  // x [B,T,D] -> h [B,T,D] (x's type) and the last h [rows,D] (float32, float64 for float64). `position` int64 [rows]:
  // tokens seen before; `start` [rows,D]: h before.
  std::tuple<Tensor, Tensor> forward(const Tensor& x, const Batch& batch, const std::optional<Tensor>& position = {},
                                     const std::optional<Tensor>& start = {}) const;

  // The same with what the state has as `name` and its position; from zero without a state.
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state, const std::string& name) const;
  void declare(StateLayout& layout, const std::string& name) const { layout.scan(name, {lambda.size(0)}); }

  // Forward plus backward in time, with the same parameters; whole sequences only.
  Tensor bidirectional(const Tensor& x, const Batch& batch) const;

  // Token by token, dense, from zero.
  Tensor reference(const Tensor& x, bool causal) const;

  double flops_per_token()
      const;  // about 12 operations a channel for sigmoids, decay and recurrence; its matrices apart

  Tensor lambda;  // Λ [D]
  std::shared_ptr<BlockDiagonal> recurrence_gate, input_gate;

 private:
  struct Step {
    Tensor log_a, b;  // h_t = exp(log_a) h_{t-1} + b
  };
  // `first` bool [B,T]: the tokens where the sequence begins.
  Step step(const Tensor& x, const Tensor& first) const;
  // One token a row in one call; undefined where it is not for that.
  Tensor one_token(const Tensor& x, const Batch& batch, const std::optional<Tensor>& position,
                   const std::optional<Tensor>& start) const;
};

}  // namespace cortado
