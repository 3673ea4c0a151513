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

  // What the parts before leave together, where part p makes decay_p ⊙ S + own_p of what it begins with; the first
  // begins with `start`. own and start [rows,...], decay so that it broadcasts to them.
  virtual Tensor state_before(const Tensor& decay, const Tensor& own, const Tensor& start) const = 0;

  // The largest of `start` and all `own` of the parts before, entry by entry. Not differentiated.
  virtual Tensor maximum_before(const Tensor& own, const Tensor& start) const = 0;
};

}  // namespace cortado
