// SequenceState: everything that a mixer carries from one call to the next.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "cortado/formats/safetensors.h"
#include "cortado/primitives/types.h"

namespace cortado {

// Memory that a mixer keeps behind the tensors of its state, to write new tokens into instead of copying the old ones.
// A copy of a state has none: two states never write into the same memory.
class SpareRoom {
 public:
  SpareRoom() = default;
  SpareRoom(const SpareRoom&) {}
  SpareRoom(SpareRoom&&) = default;
  SpareRoom& operator=(const SpareRoom&) {
    buffers_.clear();
    return *this;
  }
  SpareRoom& operator=(SpareRoom&&) = default;

  // x [rows,P,...] with `added` [rows,T,...] behind it: in place if this room holds x and has places left, else in new
  // memory with room for `spare` more.
  Tensor append(const std::string& name, const Tensor& x, const Tensor& added, int64_t spare);

 private:
  std::vector<std::pair<std::string, Tensor>> buffers_;
};

// Named tensors, each with the batch's rows as its first dimension: scan state, normaliser, convolution tail, window
// ring, position. Every operation below is written once, by visiting them.
class SequenceState {
 public:
  SequenceState() = default;
  explicit SequenceState(std::string mechanism) : mechanism_(std::move(mechanism)) {}

  const std::string& mechanism() const { return mechanism_; }
  bool empty() const { return tensors_.empty(); }

  // Adds a tensor (its name must be new).
  void add(const std::string& name, Tensor tensor);
  // The tensor of that name; InputError if there is none.
  Tensor& at(const std::string& name);
  const Tensor& at(const std::string& name) const { return const_cast<SequenceState*>(this)->at(name); }
  // The same; null if there is none.
  Tensor* find(const std::string& name);
  const std::vector<std::pair<std::string, Tensor>>& tensors() const { return tensors_; }

  // Batch rows; 0 when empty.
  int64_t rows() const { return tensors_.empty() ? 0 : tensors_.front().second.size(0); }
  SequenceState clone() const;  // deep copy: a fork of the sequence
  // The same for keeping it: no spare room, and what is a small part of other memory (the last tokens' keys, of all that
  // were read with them) has its own, so that it holds little more than bytes().
  SequenceState compact() const;
  SequenceState detach() const;                              // in the same memory, through which no gradient flows
  SequenceState index(const Tensor& rows) const;             // int64 row numbers, repeats allowed
  SequenceState row(int64_t number) const;                   // one of them, in the same memory
  SequenceState to(const at::TensorOptions& options) const;  // device, and type of floating-point tensors
  int64_t bytes() const;                                     // what it occupies, spare room apart
  SpareRoom& room() { return room_; }

 private:
  std::string mechanism_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
  SpareRoom room_;
};

// The tensor that a call goes on from; none without a state.
inline OptionalTensor start_of(const SequenceState* state, const std::string& name) {
  return state ? OptionalTensor(state->at(name)) : std::nullopt;
}

// Leaves these tensors in the state, if there is one.
inline void keep(SequenceState* state, std::initializer_list<std::pair<const char*, Tensor>> parts) {
  if (!state) return;
  for (const auto& [name, tensor] : parts) state->at(name) = tensor;
}

// A stack's states, one per layer, as a safetensors file with a version, each mechanism's name, and `identity` (the model
// that they belong to). InputError: the file has another identity.
TensorFile file_of_states(const std::vector<SequenceState>& states, const std::string& identity,
                          const NamedTensors& extra = {});
std::vector<SequenceState> states_of_file(const TensorFile& file, const std::string& identity,
                                          NamedTensors* extra = nullptr);

}  // namespace cortado
