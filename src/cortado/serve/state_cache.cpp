#include "cortado/serve/state_cache.h"

#include <algorithm>

#include "cortado/models/state_growth.h"

namespace cortado {

// A node of the trie; `tokens` lead to it from its parent. A node that is not a root has a snapshot, has children, or
// ends a path given to see().
struct StateCache::Node {
  Node* parent = nullptr;
  std::vector<int32_t> tokens;
  std::map<int32_t, std::unique_ptr<Node>> children;  // by their first token
  std::shared_ptr<const Snapshot> snapshot;
  // Time of the last use; 0: never used itself, it only leads to others.
  uint64_t used = 0;

  // Approximate size of a node without its snapshot.
  int64_t own_bytes() const { return static_cast<int64_t>(tokens.size() * sizeof(int32_t) + sizeof(Node) + 64); }
};

StateCache::StateCache(int64_t most_bytes) : most_bytes_(most_bytes) {}
StateCache::~StateCache() = default;

StateCache::Node& StateCache::root(int64_t model) {
  auto& root = roots_[model];
  if (!root) root = std::make_unique<Node>();
  return *root;
}

StateCache::Place StateCache::walk(int64_t model, std::span<const int32_t> tokens) const {
  const auto found = roots_.find(model);
  if (found == roots_.end()) return {nullptr, 0, 0};
  Place place{found->second.get(), 0, 0};
  while (place.matched < tokens.size()) {
    const auto child = place.node->children.find(tokens[place.matched]);
    if (child == place.node->children.end()) break;
    Node& node = *child->second;
    const auto rest = tokens.subspan(place.matched);
    const auto end = std::mismatch(node.tokens.begin(), node.tokens.end(), rest.begin(), rest.end()).first;
    const auto along = static_cast<size_t>(end - node.tokens.begin());
    place = {&node, along, place.matched + along};
    if (along < node.tokens.size()) break;
  }
  return place;
}

StateCache::Found StateCache::find(int64_t model, std::span<const int32_t> tokens) {
  const Place place = walk(model, tokens);
  Node* node = place.node;
  if (!node) return {};
  size_t depth = place.matched;
  // The path ends in the middle of the edge to this node.
  if (place.along < node->tokens.size()) {
    depth -= place.along;
    node = node->parent;
  }
  while (node && !node->snapshot) {
    depth -= node->tokens.size();
    node = node->parent;
  }
  if (!node) return {};
  touch(*node);
  return {node->snapshot, static_cast<int64_t>(depth)};
}

int64_t StateCache::seen(int64_t model, std::span<const int32_t> tokens) const {
  return static_cast<int64_t>(walk(model, tokens).matched);
}

// Splits off the first `at` tokens into a new node above; `node` keeps the rest and its children. Returns the new node.
StateCache::Node& StateCache::split(Node& node, size_t at) {
  auto upper = std::make_unique<Node>();
  const auto middle = node.tokens.begin() + static_cast<std::ptrdiff_t>(at);
  upper->tokens.assign(node.tokens.begin(), middle);
  upper->parent = node.parent;
  auto& place = node.parent->children.at(node.tokens.front());
  std::unique_ptr<Node> lower = std::exchange(place, std::move(upper));
  bytes_ -= node.own_bytes();
  lower->tokens.erase(lower->tokens.begin(), middle);
  lower->parent = place.get();
  bytes_ += lower->own_bytes() + place->own_bytes();
  const int32_t first = lower->tokens.front();
  place->children.emplace(first, std::move(lower));
  return *place;
}

StateCache::Node& StateCache::reach(int64_t model, std::span<const int32_t> tokens) {
  root(model);
  const Place place = walk(model, tokens);
  Node* node = place.along < place.node->tokens.size() ? &split(*place.node, place.along) : place.node;
  if (place.matched == tokens.size()) return *node;
  const auto rest = tokens.subspan(place.matched);
  auto leaf = std::make_unique<Node>();
  leaf->tokens.assign(rest.begin(), rest.end());
  leaf->parent = node;
  bytes_ += leaf->own_bytes();
  return *(node->children[rest.front()] = std::move(leaf));
}

// Marks only this node as used, not its ancestors: what a conversation has passed is older than its current end.
void StateCache::touch(Node& node) {
  by_age_.erase(node.used);
  node.used = ++clock_;
  by_age_[node.used] = &node;
}

void StateCache::see(int64_t model, std::span<const int32_t> tokens) {
  touch(reach(model, tokens));
  make_room();
}

void StateCache::keep(int64_t model, std::span<const int32_t> tokens, std::shared_ptr<const Snapshot> snapshot) {
  if (snapshot->bytes() > most_bytes_) return;
  Node& node = reach(model, tokens);
  drop_snapshot(node);
  bytes_ += snapshot->bytes();
  ++snapshots_;
  node.snapshot = std::move(snapshot);
  touch(node);
  make_room();
}

void StateCache::drop_snapshot(Node& node) {
  if (!node.snapshot) return;
  bytes_ -= node.snapshot->bytes();
  --snapshots_;
  node.snapshot.reset();
}

void StateCache::prune(Node* node) {
  while (node->parent && !node->snapshot && node->children.empty()) {
    Node* parent = node->parent;
    bytes_ -= node->own_bytes();
    by_age_.erase(node->used);
    parent->children.erase(node->tokens.front());
    node = parent;
  }
}

void StateCache::make_room() {
  while (bytes_ > most_bytes_ && !by_age_.empty()) {
    Node& node = *by_age_.begin()->second;
    by_age_.erase(by_age_.begin());
    evicted_ += node.snapshot ? 1 : 0;
    drop_snapshot(node);
    prune(&node);  // if it has children, it is removed with the last of them
  }
}

std::shared_ptr<const Snapshot> snapshot_of(const LanguageModel& model, const ModelState& state, at::Tensor logits,
                                            int64_t tokens) {
  const bool roomy = state.bytes() / 4 * 3 > kept_bytes(model, tokens);
  return std::make_shared<Snapshot>(
      Snapshot{.state = roomy ? model.join({state}) : state.compact(), .logits = std::move(logits)});
}

}  // namespace cortado
