// One sequence over several processes (context parallelism): each has a part of its tokens.
//
// A state is all that one part has to tell the next, whatever the mechanism: a matrix, a running maximum, a window's
// last keys, a convolution's tail; of softmax all keys and values. Where states compose (Mixer::joining) every
// process sends what its part makes of any state to those behind it, and none waits for another's work
// (joined_parts.h). Elsewhere every mixer hands its state on: a process waits for a layer's state of the part before,
// and goes on with its next layer while the part behind begins this one; with L layers and W processes a pass takes
// about (L + W - 1)/(L W) of one process's time. The backward is the same from behind: gradients of states travel to
// the part before. States that compose are joined where that costs less than the row of waiting processes:
// (W - 1)/L of a pass. CORTADO_PARTS=join|hand joins all that can be joined, or none.
#pragma once

#include <memory>

#include "cortado/mechanisms/mixer.h"
#include "cortado/parallel/ranks.h"

namespace cortado {

class Relay {
 public:
  // The processes in groups of `parts`, each of which has sequences of its own. InputError: they have no such groups.
  Relay(const Ranks& ranks, int64_t parts);
  ~Relay();

  int64_t part() const { return ranks_.rank() % parts_; }
  int64_t parts() const { return parts_; }

  // A layer's number, and how many there are.
  struct Layer {
    int64_t number, count;
  };

  // The mixer of a layer on this part of the sequences, x [B, T of this part, D]: as Mixer::forward would give for
  // these tokens of the whole. Dense batches only. With `state` the first part goes on from it, and every process has
  // there what its part leaves.
  Tensor forward(Mixer& mixer, Layer layer, const Tensor& x, const Batch& batch, SequenceState* state) const;

  // At the end of a pass without gradients: what the last part has left of every layer becomes the first part's.
  void hand_back(std::vector<SequenceState>& layers) const;

  // At the end of a step: everything that was sent has arrived.
  void finish() const;

  // Bytes that this process has handed on: states and their gradients.
  int64_t bytes_sent() const { return bytes_sent_; }

  // Tensors to the processes `first` to `last` places behind (+) or before (-) this one, and what one of them has sent
  // for the same layer or exchange. Used by the passes of forward() and their derivatives.
  void send(const std::vector<Tensor>& tensors, int64_t layer, int64_t first, int64_t last) const;
  void send(const std::vector<Tensor>& tensors, int64_t layer, int64_t to) const { send(tensors, layer, to, to); }
  std::vector<Tensor> receive(size_t count, int64_t layer, int64_t direction, at::Device device) const;
  // A number as a layer's, the same in every process for the same exchange of a step.
  int64_t next_exchange() const;

 private:
  struct Pending;

  bool joins(const Mixer& mixer, int64_t layers, const Batch& batch) const;
  // forward() by exchanges.
  Tensor join(Mixer& mixer, const Tensor& x, const Batch& batch, SequenceState& state) const;

  const Ranks ranks_;
  const int64_t parts_;
  std::unique_ptr<Pending> pending_;
  const std::string way_;  // CORTADO_PARTS, or none
  mutable int64_t bytes_sent_ = 0, exchanges_ = 0;
};

}  // namespace cortado
