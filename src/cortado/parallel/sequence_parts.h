// One sequence over several processes, as a layer sees it whose states compose: what it needs of the tokens before this
// process's part comes from the others in one exchange, so that no process waits until another has done its layer.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// Every process makes the same calls in the same order. Gradients go back where the numbers came from.
class SequenceParts {
 public:
  virtual ~SequenceParts() = default;

  // What the part before has as `tail`, its last inputs; of the first part `start`. One shape everywhere.
  virtual Tensor tail_before(const Tensor& tail, const Tensor& start) const = 0;

  // How a part's decay acts on a state: factors that broadcast to it, or matrices [..,K,K] on the left of [..,K,V].
  enum class Decay { kFactors, kMatrices };

  // What the parts before leave together, where part p makes decay_p S + own_p of what it begins with; the first begins
  // with `start`. own and start have one shape.
  virtual Tensor state_before(const Tensor& decay, const Tensor& own, const Tensor& start,
                              Decay kind = Decay::kFactors) const = 0;

  // The largest of `start` and all `own` of the parts before, entry by entry. Not differentiated.
  virtual Tensor maximum_before(const Tensor& own, const Tensor& start) const = 0;
};

// decay S.
inline Tensor decayed(SequenceParts::Decay kind, const Tensor& decay, const Tensor& state) {
  return kind == SequenceParts::Decay::kFactors ? decay * state : at::matmul(decay, state);
}

}  // namespace cortado
