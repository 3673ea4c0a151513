#include "cortado/nn/state_layout.h"

#include <algorithm>
#include <map>

#include "cortado/base/error.h"
#include "cortado/nn/wide.h"

namespace cortado {
namespace {

// [rows, missing, ...] of zeros before what x [rows, places - missing, ...] has.
Tensor right_aligned(const Tensor& x, int64_t places) {
  if (x.size(1) == places) return x;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[1] = places - x.size(1);
  return at::cat({at::zeros(sizes, x.options()), x}, 1);
}

}  // namespace

void StateLayout::scan(const std::string& name, std::vector<int64_t> shape, double fill) {
  entries_.push_back({name, Type::kScan, std::move(shape), fill});
}

void StateLayout::kept(const std::string& name, std::vector<int64_t> shape) {
  entries_.push_back({name, Type::kInput, std::move(shape)});
}

void StateLayout::tail(const std::string& name, std::vector<int64_t> shape) {
  entries_.push_back({name, Type::kTail, std::move(shape)});
}

void StateLayout::ring(const std::string& name, std::vector<int64_t> shape, Places places, const std::string& held) {
  entries_.push_back({name, Type::kInput, std::move(shape), 0, std::move(places), held});
}

void StateLayout::scan_ring(const std::string& name, std::vector<int64_t> shape, Places places,
                            const std::string& held) {
  entries_.push_back({name, Type::kScan, std::move(shape), 0, std::move(places), held});
}

StateLayout::Places StateLayout::last(int64_t most) {
  return [most](int64_t tokens) { return std::min(tokens, most); };
}

void StateLayout::growing(const std::string& name, std::vector<int64_t> shape, int64_t block, const std::string& used) {
  const auto blocks = [block](int64_t tokens) { return (tokens + block - 1) / block * block; };
  entries_.push_back({name, Type::kInput, std::move(shape), 0, blocks, used, true});
}

void StateLayout::counter(const std::string& name) { entries_.push_back({name, Type::kCounter, {}}); }

at::ScalarType StateLayout::type_of(Type type, at::ScalarType input) {
  if (type == Type::kCounter) return at::kLong;
  return type == Type::kInput ? input : wide_type(input);
}

SequenceState StateLayout::zeros(const std::string& mechanism, int64_t rows, const at::TensorOptions& options,
                                 std::optional<at::ScalarType> cache) const {
  SequenceState state(mechanism);
  for (const Entry& entry : entries_) {
    std::vector<int64_t> sizes = {rows};
    if (entry.places) sizes.push_back(entry.places(0));
    sizes.insert(sizes.end(), entry.shape.begin(), entry.shape.end());
    const auto type = type_of(entry.type, at::typeMetaToScalarType(options.dtype()));
    state.add(entry.name, at::full(sizes, entry.fill, options.dtype(cache && entry.grows ? *cache : type)));
  }
  return state;
}

int64_t StateLayout::bytes(int64_t tokens, at::ScalarType type) const {
  int64_t bytes = 0;
  for (const Entry& entry : entries_) {
    bytes += c10::multiply_integers(entry.shape) * (entry.places ? entry.places(tokens) : 1) *
             static_cast<int64_t>(c10::elementSize(type_of(entry.type, type)));
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

// The places of a cache that some row needs: where they begin, and how many they are.
std::pair<int64_t, int64_t> StateLayout::filled(const Entry& entry, const SequenceState& state) const {
  const bool counted = !entry.held.empty() && !entry.grows;
  const Tensor numbers = state.at(counted ? entry.held : kPosition).to(at::kCPU);
  int64_t end = state.at(entry.name).size(1), count = 0;
  if (entry.grows) end = state.rows() ? state.at(entry.held)[0].item<int64_t>() : 0;
  for (int64_t n = 0; n < numbers.size(0); ++n) {
    const int64_t number = numbers[n].item<int64_t>();
    count = std::max(count, counted || entry.grows ? number : entry.places(number));
  }
  count = std::min(count, end);
  return {end - count, count};
}

SequenceState StateLayout::join(const std::vector<SequenceState>& states) const {
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
    if (entry.places) {
      for (Tensor& part : parts) part = right_aligned(part, places);
    }
    if (entry.grows) used[entry.held] = places;
    all.add(entry.name, at::cat(parts));
  }
  for (const auto& [name, places] : used) all.at(name).fill_(places);
  return all;
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
