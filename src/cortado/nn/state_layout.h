// What a mixer carries from call to call, as a declaration. The state before the first token, its bytes, whether it
// grows, and how rows of different states become one batch follow from it.
#pragma once

#include <algorithm>
#include <functional>

#include "cortado/nn/state.h"

namespace cortado {

// Tensors in the order in which they were declared; shapes are those of one row.
class StateLayout {
 public:
  // Tokens read -> places that a row then has in a cache.
  using Places = std::function<int64_t(int64_t tokens)>;
  // The counter of the tokens read, which Mixer::forward moves.
  static constexpr const char* kPosition = "position";

  // Sums, averages, tails of convolutions: of one size, float32 (float64 where x is).
  void scan(const std::string& name, std::vector<int64_t> shape, double fill = 0) {
    entries_.push_back({name, Type::kScan, std::move(shape), fill});
  }
  // The same in the type of x: keys and values of chosen tokens.
  void kept(const std::string& name, std::vector<int64_t> shape) {
    entries_.push_back({name, Type::kInput, std::move(shape)});
  }
  // The last W - 1 inputs of a convolution: as a scan, but no part of what a token reads and writes.
  void tail(const std::string& name, std::vector<int64_t> shape) {
    entries_.push_back({name, Type::kTail, std::move(shape)});
  }
  // [rows, places, shape...] in the type of x: keys or values, right-aligned, never more than some number of them. How
  // many a row has is told by its position, or by the counter `held`.
  void ring(const std::string& name, std::vector<int64_t> shape, Places places, const std::string& held = {}) {
    entries_.push_back({name, Type::kInput, std::move(shape), 0, std::move(places), held});
  }
  // The same in the type of growing caches, which may be another than that of x.
  void cached_ring(const std::string& name, std::vector<int64_t> shape, Places places) {
    entries_.push_back({name, Type::kInput, std::move(shape), 0, std::move(places), {}, false, true});
  }
  // A ring in the type of scans: scores of its keys.
  void scan_ring(const std::string& name, std::vector<int64_t> shape, Places places, const std::string& held) {
    entries_.push_back({name, Type::kScan, std::move(shape), 0, std::move(places), held});
  }
  // Of a ring of the last `most` tokens.
  static Places last(int64_t most) {
    return [most](int64_t tokens) { return std::min(tokens, most); };
  }
  // As a ring, but of all tokens, with memory for whole blocks of them: the counter `used` says how many places from
  // the left on, the same in every row, hold tokens (right-aligned among those).
  void growing(const std::string& name, std::vector<int64_t> shape, int64_t block, const std::string& used) {
    const auto blocks = [block](int64_t tokens) { return (tokens + block - 1) / block * block; };
    entries_.push_back({name, Type::kInput, std::move(shape), 0, blocks, used, true, true});
  }
  // int64, one number.
  void counter(const std::string& name) { entries_.push_back({name, Type::kCounter, {}}); }
  void position() { counter(kPosition); }

  // Before the first token, for `rows` sequences; `options` gives device and the type of x, `cache` the type of caches, if
  // it is another.
  SequenceState zeros(const std::string& mechanism, int64_t rows, const at::TensorOptions& options,
                      std::optional<at::ScalarType> cache = {}) const;
  // Of one row after `tokens` tokens, x being of this type.
  int64_t bytes(int64_t tokens, at::ScalarType type, std::optional<at::ScalarType> cache = {}) const;
  // Numbers in its scans, which a token reads and writes.
  int64_t scan_numbers() const;
  bool grows() const;

  // The rows of all of them, one after the other, as a batch that goes on as each would alone. Places that no row has
  // use for any more go; growing caches get memory for so many tokens more. InputError if one is another mechanism's.
  SequenceState join(const std::vector<SequenceState>& states, int64_t room = 0) const;
  // A copy that goes on by itself, as clone() is, but with the growing caches in the same memory: as it has no room in
  // it, what it adds goes elsewhere, and what the state itself adds there lies behind what the fork has.
  SequenceState fork(const SequenceState& state) const;
  // The same tensors, growing caches without the places that hold no token.
  SequenceState trimmed(const SequenceState& state) const;
  // Of trimmed states whose rows have read the same number of tokens, from which on `tokens` more are read: for every
  // tensor the places that it will have, -1 for what has none. `now`: those that it has. InputError where they do not
  // follow from these.
  std::vector<int64_t> places_after(const std::vector<int64_t>& now, int64_t tokens) const;
  // InputError, which begins with `place`, unless the state has these tensors with these shapes.
  void check(const SequenceState& state, const std::string& place) const;

 private:
  enum class Type { kScan, kTail, kInput, kCounter };
  struct Entry {
    std::string name;
    Type type;
    std::vector<int64_t> shape;
    double fill = 0;
    Places places = {};                  // memory of a cache; none: no cache
    std::string held = {};               // the counter of a row's places
    bool grows = false, cached = false;  // cached: in the type of caches

    at::ScalarType type_of(at::ScalarType input, std::optional<at::ScalarType> cache) const;
  };

  static int64_t used(const Entry& entry, const SequenceState& state);
  std::pair<int64_t, int64_t> filled(const Entry& entry, const SequenceState& state) const;
  std::vector<Entry> entries_;
};

// x [rows,P,...] at the right end of `places`, zeros before it.
Tensor right_aligned(const Tensor& x, int64_t places);

}  // namespace cortado
