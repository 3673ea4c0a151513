// Declares what a mixer carries from call to call. From the declaration follow the state before the first token, its
// bytes, whether it grows, and how rows of different states are batched.
#pragma once

#include <algorithm>
#include <functional>

#include "cortado/nn/state.h"

namespace cortado {

// Tensors in order of declaration; shapes are per row.
class StateLayout {
 public:
  // Maps the number of tokens read to the number of places of a row in a cache.
  using Places = std::function<int64_t(int64_t tokens)>;
  // The counter of tokens read; Mixer::forward advances it.
  static constexpr const char* kPosition = "position";

  // Sums, averages, convolution tails: fixed size, float32 (float64 if x is).
  void scan(const std::string& name, std::vector<int64_t> shape, double fill = 0) {
    entries_.push_back({name, Type::kScan, std::move(shape), fill});
  }
  // Fixed size, in the type of x: keys and values of chosen tokens.
  void kept(const std::string& name, std::vector<int64_t> shape) {
    entries_.push_back({name, Type::kInput, std::move(shape)});
  }
  // The last W - 1 inputs of a convolution: like a scan, but not counted among what a token reads and writes.
  void tail(const std::string& name, std::vector<int64_t> shape) {
    entries_.push_back({name, Type::kTail, std::move(shape)});
  }
  // Keys or values [rows, places, shape...] in the type of x, right-aligned, at most a fixed number of them. A row's
  // count follows from its position, or is the counter `held`.
  void ring(const std::string& name, std::vector<int64_t> shape, Places places, const std::string& held = {}) {
    entries_.push_back({name, Type::kInput, std::move(shape), 0, std::move(places), held});
  }
  // A ring in the type of growing caches, which may differ from that of x.
  void cached_ring(const std::string& name, std::vector<int64_t> shape, Places places) {
    entries_.push_back({name, Type::kInput, std::move(shape), 0, std::move(places), {}, kPosition, false, true});
  }
  // A ring in the type of scans: scores of its keys.
  void scan_ring(const std::string& name, std::vector<int64_t> shape, Places places, const std::string& held) {
    entries_.push_back({name, Type::kScan, std::move(shape), 0, std::move(places), held});
  }
  // The places of a ring of the last `most` tokens.
  static Places last(int64_t most) {
    return [most](int64_t tokens) { return std::min(tokens, most); };
  }
  // A cache of all tokens in the type of caches, allocated in whole blocks. The counter `used`, equal in all rows, says
  // how many places from the left hold tokens; tokens are right-aligned among them.
  void growing(const std::string& name, std::vector<int64_t> shape, int64_t block, const std::string& used) {
    const auto blocks = [block](int64_t tokens) { return (tokens + block - 1) / block * block; };
    entries_.push_back({name, Type::kInput, std::move(shape), 0, blocks, used, kPosition, true, true});
  }
  // One int64 number.
  void counter(const std::string& name) { entries_.push_back({name, Type::kCounter, {}}); }
  void position() { counter(kPosition); }
  // The tensors of a part of the mixer, under the names "PART.TENSOR" (SequenceState::part).
  void within(const std::string& part, const StateLayout& layout);

  // Returns the state before the first token for `rows` sequences. `options` gives the device and the type of x,
  // `cache` the type of caches if it differs.
  SequenceState zeros(const std::string& mechanism, int64_t rows, const at::TensorOptions& options,
                      std::optional<at::ScalarType> cache = {}) const;
  // Returns the bytes of one row after `tokens` tokens, for x of this type.
  int64_t bytes(int64_t tokens, at::ScalarType type, std::optional<at::ScalarType> cache = {}) const;
  // Returns the count of numbers in the scans, which every token reads and writes.
  int64_t scan_numbers() const;
  bool grows() const;

  // Concatenates the rows of all states to one batch, in which each row continues as it would alone. Places that no row
  // needs any more are dropped; growing caches get memory for `room` more tokens. InputError: a state of another
  // mechanism.
  SequenceState join(const std::vector<SequenceState>& states, int64_t room = 0) const;
  // Returns a copy that continues independently, like clone(), but shares the memory of growing caches. The copy has no
  // room in that memory, so it appends elsewhere; what the original appends there lies after the copy's tokens.
  SequenceState fork(const SequenceState& state) const;
  // Returns a state with the growing caches cut to the places that hold tokens.
  SequenceState trimmed(const SequenceState& state) const;
  // For trimmed states whose rows have all read the same number of tokens: returns each tensor's number of places after
  // `tokens` more, -1 for tensors without places. `now`: the current numbers. InputError if the result does not follow
  // from these.
  std::vector<int64_t> places_after(const std::vector<int64_t>& now, int64_t tokens) const;
  // Checks that the state has these tensors with these shapes. InputError, beginning with `place`, if not.
  void check(const SequenceState& state, const std::string& place) const;

 private:
  enum class Type { kScan, kTail, kInput, kCounter };
  struct Entry {
    std::string name;
    Type type;
    std::vector<int64_t> shape;
    double fill = 0;
    Places places = {};                  // places of a cache; empty: not a cache
    std::string held = {};               // the counter of a row's filled places
    std::string position = kPosition;    // the counter of tokens read
    bool grows = false, cached = false;  // cached: in the type of caches

    at::ScalarType type_of(at::ScalarType input, std::optional<at::ScalarType> cache) const;
  };

  static int64_t used(const Entry& entry, const SequenceState& state);
  std::pair<int64_t, int64_t> filled(const Entry& entry, const SequenceState& state) const;
  std::vector<Entry> entries_;
};

// Returns x [rows,P,...] at the right end of `places`, with zeros before it.
Tensor right_aligned(const Tensor& x, int64_t places);

}  // namespace cortado
