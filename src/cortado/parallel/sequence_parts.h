// A sequence split over several processes, as seen by a layer with a composable state. A layer gets all that it needs
// of the tokens before its process's part in one exchange, so no process waits for another to finish the layer.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// Every process makes the same calls in the same order. Gradients flow back to the process that a tensor came from.
class SequenceParts {
 public:
  virtual ~SequenceParts() = default;

  // Returns `tail` (its last inputs) of the part before; `start` for the first part. All tails have one shape.
  virtual Tensor tail_before(const Tensor& tail, const Tensor& start) const = 0;

  // How a part's decay acts on a state: elementwise factors that broadcast to it, or matrices [..,K,K] that multiply a
  // state [..,K,V] from the left.
  enum class Decay { kFactors, kMatrices };

  // Returns the state that this part begins with. Part p maps its initial state S to decay_p S + own_p; the first part
  // begins with `start`. own and start have one shape.
  virtual Tensor state_before(const Tensor& decay, const Tensor& own, const Tensor& start,
                              Decay kind = Decay::kFactors) const = 0;

  // Returns the elementwise maximum of `start` and the `own` of all parts before. Not differentiated.
  virtual Tensor maximum_before(const Tensor& own, const Tensor& start) const = 0;
};

// Applies a part's decay to a state.
inline Tensor decayed(SequenceParts::Decay kind, const Tensor& decay, const Tensor& state) {
  return kind == SequenceParts::Decay::kFactors ? decay * state : at::matmul(decay, state);
}

}  // namespace cortado
