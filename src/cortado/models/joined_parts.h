// The parts of a sequence in several processes, joined: each sends what it would leave by itself to all behind it, and
// composes what those before it would leave (as LASP-2 and fla's context parallelism do). In the backward the gradients
// of what each began with go to all before it.
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
