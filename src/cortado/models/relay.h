// One sequence over several processes (context parallelism): each has a part of its tokens, and every mixer hands its
// state on to the process with the next part.
//
// A state is all that one part has to tell the next, whatever the mechanism: a matrix, a running maximum, a window's
// last keys, a convolution's tail; of softmax all keys and values. A process waits for a layer's state of the part
// before, and goes on with its next layer while the part behind begins this one: with L layers and W processes a pass
// takes about (L + W - 1)/(L W) of one process's time. The backward is the same from behind: gradients of states travel
// to the part before.
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

  // The mixer of layer `layer` on this part of the sequences, x [B, T of this part, D]: as Mixer::forward would give for
  // these tokens of the whole. Dense batches only. With `state` the first part goes on from it, and every process has
  // there what its part leaves.
  Tensor forward(Mixer& mixer, int64_t layer, const Tensor& x, const Batch& batch, SequenceState* state) const;

  // At the end of a pass without gradients: what the last part has left of every layer becomes the first part's.
  void hand_back(std::vector<SequenceState>& layers) const;

  // At the end of a step: everything that was sent has arrived.
  void finish() const;

  // Bytes that this process has handed on: states and their gradients.
  int64_t bytes_sent() const { return bytes_sent_; }

  // Tensors to the process so many places behind (+) or before (-) this one, and what that one has sent for the same
  // layer. Used by the passes of forward() and their derivatives.
  void send(const std::vector<Tensor>& tensors, int64_t layer, int64_t direction) const;
  std::vector<Tensor> receive(size_t count, int64_t layer, int64_t direction, at::Device device) const;

 private:
  struct Pending;

  const Ranks ranks_;
  const int64_t parts_;
  std::unique_ptr<Pending> pending_;
  mutable int64_t bytes_sent_ = 0;
};

}  // namespace cortado
