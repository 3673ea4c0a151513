// One sequence over several processes (context parallelism): each process has a part of its tokens.
//
// The state is all that one part has to tell the next, for any mechanism: a matrix, a running maximum, a window's last
// keys, a convolution's tail; for softmax, all keys and values. If states compose (Mixer::joining), every process sends
// its part's transition to the later ones, and none waits for another's work (joined_parts.h). Otherwise the state is
// handed on: a process waits for a layer's state from the previous part, and continues with its next layer while the
// next part begins this one. With L layers and W processes a pass takes about (L + W - 1)/(L W) of one process's time.
// The backward pass runs in the opposite direction: gradients of states travel to the previous part. Composable states
// are joined if that costs less than the waiting, (W - 1)/L of a pass. CORTADO_PARTS=join|hand joins all that can be
// joined, or none.
#pragma once

#include <memory>

#include "cortado/mechanisms/mixer.h"
#include "cortado/parallel/ranks.h"

namespace cortado {

class Relay {
 public:
  // Divides the processes into groups of `parts`; each group has sequences of its own. Throws InputError if the number
  // of processes is not a multiple of `parts`.
  Relay(const Ranks& ranks, int64_t parts);
  ~Relay();

  int64_t part() const { return ranks_.rank() % parts_; }
  int64_t parts() const { return parts_; }

  // A layer's number, and the number of layers.
  struct Layer {
    int64_t number, count;
  };

  // Runs a layer's mixer on this part of the sequences, x [B, T of this part, D]. The output equals Mixer::forward's
  // for these tokens of the whole sequence. Dense batches only. With `state` the first part continues from it, and
  // every process leaves the state after its part there.
  Tensor forward(Mixer& mixer, Layer layer, const Tensor& x, const Batch& batch, SequenceState* state) const;

  // At the end of a pass without gradients: moves the last part's states of every layer to the first part.
  void hand_back(std::vector<SequenceState>& layers) const;

  // At the end of a step: waits until everything that was sent has arrived.
  void finish() const;

  // Bytes that this process has sent: states and their gradients.
  int64_t bytes_sent() const { return bytes_sent_; }

  // Sends tensors to the processes `first` to `last` ranks after (+) or before (-) this one; receives what one of them
  // sent for the same layer or exchange. Used by forward() and its backward passes.
  void send(const std::vector<Tensor>& tensors, int64_t layer, int64_t first, int64_t last) const;
  void send(const std::vector<Tensor>& tensors, int64_t layer, int64_t to) const { send(tensors, layer, to, to); }
  std::vector<Tensor> receive(size_t count, int64_t layer, int64_t direction, at::Device device) const;
  // A message number beyond those of the layers, equal in all processes for the same exchange of a step.
  int64_t next_exchange() const;

 private:
  struct Pending;

  bool joins(const Mixer& mixer, int64_t layers, const Batch& batch) const;
  // forward() by composition.
  Tensor join(Mixer& mixer, const Tensor& x, const Batch& batch, SequenceState& state) const;

  const Ranks ranks_;
  const int64_t parts_;
  std::unique_ptr<Pending> pending_;
  const std::string way_;  // CORTADO_PARTS, or empty
  mutable int64_t bytes_sent_ = 0, exchanges_ = 0;
};

}  // namespace cortado
