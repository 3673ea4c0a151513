// Composes the parts of a sequence in several processes. Each process sends the transition of its part to all later
// ones and composes those that it receives from earlier ones (as LASP-2 and fla's context parallelism do). In the
// backward pass the gradients of the initial states go to all earlier processes.
#pragma once

#include "cortado/models/relay.h"
#include "cortado/parallel/sequence_parts.h"

namespace cortado {

class JoinedParts final : public SequenceParts {
 public:
  explicit JoinedParts(const Relay& relay) : relay_(relay) {}

  Tensor tail_before(const Tensor& tail, const Tensor& start) const override;
  Tensor state_before(const Tensor& decay, const Tensor& own, const Tensor& start, Decay kind) const override;
  Tensor maximum_before(const Tensor& own, const Tensor& start) const override;

 private:
  const Relay& relay_;
};

}  // namespace cortado
