// SequenceState: everything that a mixer carries from one call to the next.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>

#include "cortado/formats/safetensors.h"
#include "cortado/primitives/types.h"

namespace cortado {

// Spare memory after a state's tensors, so that new tokens are appended without copying the old ones. A copied state
// has no spare memory: two states never write into shared memory.
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

  // Appends `added` [rows,T,...] to x [rows,P,...]: in place if x lies in this memory and there is room, else in new
  // memory with room for `spare` more.
  Tensor append(const std::string& name, const Tensor& x, const Tensor& added, int64_t spare);

 private:
  std::vector<std::pair<std::string, Tensor>> buffers_;
};

// Named tensors whose first dimension is the batch's rows: scan state, normaliser, convolution tail, window ring,
// position. Each operation below visits all tensors and is written once.
class SequenceState {
 public:
  SequenceState() = default;
  explicit SequenceState(std::string mechanism) : mechanism_(std::move(mechanism)) {}

  const std::string& mechanism() const { return mechanism_; }
  bool empty() const { return tensors_.empty(); }

  // Adds a tensor with a new name.
  void add(const std::string& name, Tensor tensor);
  // Returns the tensor of that name. InputError: there is none.
  Tensor& at(const std::string& name);
  const Tensor& at(const std::string& name) const { return const_cast<SequenceState*>(this)->at(name); }
  // Returns the tensor of that name, or null.
  Tensor* find(const std::string& name);
  const std::vector<std::pair<std::string, Tensor>>& tensors() const { return tensors_; }

  // The number of batch rows; 0 if empty.
  int64_t rows() const { return tensors_.empty() ? 0 : tensors_.front().second.size(0); }
  SequenceState clone() const;  // a deep copy: forks the sequence
  // A deep copy to keep for long: without spare memory. A tensor that is a small part of a larger memory block (such as
  // the last tokens' keys) gets its own, so that the copy holds little more than bytes().
  SequenceState compact() const;
  SequenceState detach() const;                              // shares the memory; no gradient flows through it
  SequenceState index(const Tensor& rows) const;             // selects rows by int64 numbers, repeats allowed
  SequenceState row(int64_t number) const;                   // one row, sharing the memory
  SequenceState to(const at::TensorOptions& options) const;  // changes device and floating-point type
  int64_t bytes() const;                                     // memory in use, without spare memory
  SpareRoom& room() { return room_; }

  // A mixer that is made of mixers keeps the states of its parts in its own, under the names "PART.TENSOR"
  // (StateLayout::within). `part` returns one as a state by itself, which shares the memory, and `put` stores it again
  // after a call.
  SequenceState part(const std::string& name, const std::string& mechanism);
  void put(const std::string& name, SequenceState part);

 private:
  std::string mechanism_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
  SpareRoom room_;
  std::map<std::string, SpareRoom> rooms_of_parts_;
};

// Returns the tensor that a call continues from; none without a state.
inline OptionalTensor start_of(const SequenceState* state, const std::string& name) {
  return state ? OptionalTensor(state->at(name)) : std::nullopt;
}

// Stores these tensors in the state, if there is one.
inline void keep(SequenceState* state, std::initializer_list<std::pair<const char*, Tensor>> parts) {
  if (!state) return;
  for (const auto& [name, tensor] : parts) state->at(name) = tensor;
}

// Converts a stack's states, one per layer, to and from a safetensors file with a version, each mechanism's name, and
// `identity` (the model that they belong to). InputError: the file has another identity.
TensorFile file_of_states(const std::vector<SequenceState>& states, const std::string& identity,
                          const NamedTensors& extra = {});
std::vector<SequenceState> states_of_file(const TensorFile& file, const std::string& identity,
                                          NamedTensors* extra = nullptr);

}  // namespace cortado
