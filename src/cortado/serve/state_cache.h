// A cache of snapshots by the tokens that they have read, from which sequences continue.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cortado/models/language_model.h"

namespace cortado {

// The state of a sequence after some tokens. Immutable, so any number of sequences can continue from it.
struct Snapshot {
  ModelState state;   // one row
  at::Tensor logits;  // float32 [V], of the next token
  int64_t bytes() const { return state.bytes() + static_cast<int64_t>(logits.nbytes()); }
};

// A trie of token sequences whose nodes may hold snapshots. Its size, of snapshots and of tokens on the way to them, is
// limited; what was used longest ago is removed first. Not thread-safe.
class StateCache {
 public:
  explicit StateCache(int64_t most_bytes);
  ~StateCache();

  struct Found {
    std::shared_ptr<const Snapshot> snapshot;  // null: none
    int64_t depth = 0;                         // tokens that the snapshot has read
  };
  // Returns the deepest snapshot whose tokens are a prefix of `tokens`. `model` separates models that share the cache.
  Found find(int64_t model, std::span<const int32_t> tokens);

  // Returns how many of the first tokens have been seen before. Two sequences diverge there, and a third may do so,
  // too.
  int64_t seen(int64_t model, std::span<const int32_t> tokens) const;

  // Remembers that these tokens are being read, without a snapshot.
  void see(int64_t model, std::span<const int32_t> tokens);

  // Adds the snapshot of a sequence that has read `tokens`, unless it is larger than the cache.
  void keep(int64_t model, std::span<const int32_t> tokens, std::shared_ptr<const Snapshot> snapshot);

  int64_t bytes() const { return bytes_; }
  int64_t most_bytes() const { return most_bytes_; }
  int64_t snapshots() const { return snapshots_; }
  int64_t evicted() const { return evicted_; }  // number of snapshots removed so far

 private:
  struct Node;
  struct Place {
    Node* node;  // the last node reached; `along` of its tokens belong to the path
    size_t along;
    size_t matched;  // matching tokens from the root
  };
  Place walk(int64_t model, std::span<const int32_t> tokens) const;
  Node& root(int64_t model);
  Node& reach(int64_t model, std::span<const int32_t> tokens);  // creates missing nodes
  Node& split(Node& node, size_t at);
  void touch(Node& node);
  void drop_snapshot(Node& node);
  void prune(Node* node);  // removes the node and its ancestors as long as nobody needs them
  void make_room();

  int64_t most_bytes_;
  int64_t bytes_ = 0, snapshots_ = 0, evicted_ = 0;
  uint64_t clock_ = 0;
  std::map<uint64_t, Node*> by_age_;  // nodes that were used, oldest first
  std::map<int64_t, std::unique_ptr<Node>> roots_;
};

// Makes a snapshot for other sequences to continue from, after `tokens` tokens. A growing cache has spare room for future
// tokens; if that is large, the snapshot is copied without it.
std::shared_ptr<const Snapshot> snapshot_of(const LanguageModel& model, const ModelState& state, at::Tensor logits,
                                            int64_t tokens);

}  // namespace cortado
