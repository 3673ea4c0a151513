#include "cortado/nn/state_layout.h"

#include <map>

#include "cortado/base/error.h"
#include "cortado/nn/wide.h"

namespace cortado {
namespace {

// Joins the rows of all caches, right-aligned among `places`, in new memory with `capacity` places.
Tensor join_caches(const std::vector<Tensor>& caches, int64_t places, int64_t capacity) {
  std::vector<int64_t> sizes = caches[0].sizes().vec();
  sizes[0] = 0;
  sizes[1] = capacity;
  for (const Tensor& cache : caches) sizes[0] += cache.size(0);
  Tensor all = at::empty(sizes, caches[0].options());
  int64_t row = 0;
  for (const Tensor& cache : caches) {
    const Tensor rows = all.narrow(0, row, cache.size(0));
    const int64_t before = places - cache.size(1);
    rows.narrow(1, 0, before).zero_();
    rows.narrow(1, before, cache.size(1)).copy_(cache);
    rows.narrow(1, places, capacity - places).zero_();
    row += cache.size(0);
  }
  return all;
}

}  // namespace

Tensor right_aligned(const Tensor& x, int64_t places) {
  if (x.size(1) == places) return x;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[1] = places - x.size(1);
  return at::cat({at::zeros(sizes, x.options()), x}, 1);
}

void StateLayout::within(const std::string& part, const StateLayout& layout) {
  for (Entry entry : layout.entries_) {
    for (std::string* name : {&entry.name, &entry.held, &entry.position}) {
      if (!name->empty()) *name = concat(part, ".", *name);
    }
    entries_.push_back(std::move(entry));
  }
}

at::ScalarType StateLayout::Entry::type_of(at::ScalarType input, std::optional<at::ScalarType> cache) const {
  if (type == Type::kCounter) return at::kLong;
  if (cached) return cache.value_or(input);
  return type == Type::kInput ? input : wide_type(input);
}

SequenceState StateLayout::zeros(const std::string& mechanism, int64_t rows, const at::TensorOptions& options,
                                 std::optional<at::ScalarType> cache) const {
  SequenceState state(mechanism);
  for (const Entry& entry : entries_) {
    std::vector<int64_t> sizes = {rows};
    if (entry.places) sizes.push_back(entry.places(0));
    sizes.insert(sizes.end(), entry.shape.begin(), entry.shape.end());
    const auto type = entry.type_of(at::typeMetaToScalarType(options.dtype()), cache);
    state.add(entry.name, at::full(sizes, entry.fill, options.dtype(type)));
  }
  return state;
}

int64_t StateLayout::bytes(int64_t tokens, at::ScalarType type, std::optional<at::ScalarType> cache) const {
  int64_t bytes = 0;
  for (const Entry& entry : entries_) {
    bytes += c10::multiply_integers(entry.shape) * (entry.places ? entry.places(tokens) : 1) *
             static_cast<int64_t>(c10::elementSize(entry.type_of(type, cache)));
  }
  return bytes;
}

int64_t StateLayout::scan_numbers() const {
  int64_t numbers = 0;
  for (const Entry& entry : entries_) {
    if (entry.type == Type::kScan && !entry.places) numbers += c10::multiply_integers(entry.shape);
  }
  return numbers;
}

bool StateLayout::grows() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.grows; });
}

// The number of places of a growing cache that hold tokens.
int64_t StateLayout::used(const Entry& entry, const SequenceState& state) {
  return state.rows() ? state.at(entry.held)[0].item<int64_t>() : 0;
}

// The places of a cache that some row needs: the first one, and their number.
std::pair<int64_t, int64_t> StateLayout::filled(const Entry& entry, const SequenceState& state) const {
  const bool counted = !entry.held.empty() && !entry.grows;
  const Tensor numbers = state.at(counted ? entry.held : entry.position).to(at::kCPU);
  int64_t end = state.at(entry.name).size(1), count = 0;
  if (entry.grows) end = used(entry, state);
  for (int64_t n = 0; n < numbers.size(0); ++n) {
    const int64_t number = numbers[n].item<int64_t>();
    count = std::max(count, counted || entry.grows ? number : entry.places(number));
  }
  count = std::min(count, end);
  return {end - count, count};
}

SequenceState StateLayout::join(const std::vector<SequenceState>& states, int64_t room) const {
  fail_input_if(states.empty(), "[state] there are no states to join");
  for (const SequenceState& state : states) {
    fail_input_if(state.mechanism() != states[0].mechanism(), "[state] states of ", states[0].mechanism(), " and of ",
                  state.mechanism(), " cannot be joined");
    check(state, "[state] join");
  }
  SequenceState all(states[0].mechanism());
  std::map<std::string, int64_t> used;
  for (const Entry& entry : entries_) {
    std::vector<Tensor> parts;
    int64_t places = 0;
    for (const SequenceState& state : states) {
      Tensor x = state.at(entry.name);
      if (entry.places) {
        const auto [first, count] = filled(entry, state);
        x = x.narrow(1, first, count);
        places = std::max(places, count);
      }
      parts.push_back(x);
    }
    if (entry.grows) used[entry.held] = places;
    const int64_t capacity = entry.grows && room > 0 ? entry.places(places + room) : places;
    all.add(entry.name, entry.places ? join_caches(parts, places, capacity) : at::cat(parts));
  }
  for (const auto& [name, places] : used) all.at(name).fill_(places);
  return all;
}

SequenceState StateLayout::fork(const SequenceState& state) const {
  SequenceState copy(state.mechanism());
  for (const Entry& entry : entries_) {
    const Tensor& x = state.at(entry.name);
    copy.add(entry.name, entry.grows ? x.narrow(1, 0, used(entry, state)) : x.clone());
  }
  return copy;
}

SequenceState StateLayout::trimmed(const SequenceState& state) const {
  SequenceState result(state.mechanism());
  for (const Entry& entry : entries_) {
    const Tensor& x = state.at(entry.name);
    result.add(entry.name, entry.grows ? x.narrow(1, 0, used(entry, state)) : x);
  }
  return result;
}

constexpr int64_t kMostPlaces = int64_t{1} << 40;  // sums and products of this size do not overflow

std::vector<int64_t> StateLayout::places_after(const std::vector<int64_t>& now, int64_t tokens) const {
  fail_input_if(now.size() != entries_.size(), "[state] has ", entries_.size(), " tensors, got ", now.size());
  std::vector<int64_t> after;
  for (size_t i = 0; i < now.size(); ++i) {
    const Entry& entry = entries_[i];
    fail_input_if(entry.places && !entry.grows && !entry.held.empty(), "[state] how many places \"", entry.name,
                  "\" gets depends on more than their number now");
    if (!entry.places) {
      after.push_back(-1);
      continue;
    }
    for (const int64_t number : {now[i], tokens}) {
      fail_input_if(number < 0 || number > kMostPlaces, "[state] expected 0..", kMostPlaces, " places and tokens, got ",
                    number);
    }
    after.push_back(entry.grows ? now[i] + tokens : entry.places(now[i] + tokens));
  }
  return after;
}

void StateLayout::check(const SequenceState& state, const std::string& place) const {
  fail_input_if(state.tensors().size() != entries_.size(), place, ": the state of ", state.mechanism(), " has ",
                state.tensors().size(), " tensors, ", entries_.size(), " are needed");
  for (const Entry& entry : entries_) {
    const Tensor& x = state.at(entry.name);
    const auto own = x.sizes().slice(entry.places ? std::min<int64_t>(2, x.dim()) : 1);
    fail_input_if(x.dim() != static_cast<int64_t>(entry.shape.size()) + (entry.places ? 2 : 1) || own != entry.shape,
                  place, ": \"", entry.name, "\" of ", state.mechanism(), " has the shape ", x.sizes(),
                  ", a row needs ", entry.places ? "places x " : "", at::IntArrayRef(entry.shape));
  }
}

}  // namespace cortado
