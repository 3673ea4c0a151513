// Snapshots of sequences by the tokens that they have read: what conversations go on from.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cortado/models/language_model.h"

namespace cortado {

// A sequence after some tokens: never written to, so that many go on from it.
struct Snapshot {
  ModelState state;   // of one row
  at::Tensor logits;  // float32 [V]: of the token that comes next
  int64_t bytes() const { return state.bytes() + static_cast<int64_t>(logits.nbytes()); }
};

// A trie of token sequences whose nodes may hold snapshots. It holds at most so many bytes (snapshots and the tokens on
// the way to them); what was used longest ago goes first. Not for several threads at once.
class StateCache {
 public:
  explicit StateCache(int64_t most_bytes);
  ~StateCache();

  struct Found {
    std::shared_ptr<const Snapshot> snapshot;  // null: none
    int64_t depth = 0;                         // tokens that it has read
  };
  // The deepest snapshot on the path of `tokens`. `model` tells the models apart that share a cache.
  Found find(int64_t model, std::span<const int32_t> tokens);

  // How many of `tokens` have been seen before: there two sequences part, and a third may do so too.
  int64_t seen(int64_t model, std::span<const int32_t> tokens) const;

  // Remembers that these tokens are being read, without a snapshot.
  void see(int64_t model, std::span<const int32_t> tokens);

  // Keeps the snapshot of a sequence that has read `tokens`; none that is larger than the cache.
  void keep(int64_t model, std::span<const int32_t> tokens, std::shared_ptr<const Snapshot> snapshot);

  int64_t bytes() const { return bytes_; }
  int64_t most_bytes() const { return most_bytes_; }
  int64_t snapshots() const { return snapshots_; }
  int64_t evicted() const { return evicted_; }  // snapshots, so far

 private:
  struct Node;
  struct Place {
    Node* node;  // the last one that is reached; `along` of its tokens are the path's
    size_t along;
    size_t matched;  // tokens of the path
  };
  Place walk(int64_t model, std::span<const int32_t> tokens) const;
  Node& root(int64_t model);
  Node& reach(int64_t model, std::span<const int32_t> tokens);  // makes what is missing
  Node& split(Node& node, size_t at);
  void touch(Node& node);
  void drop_snapshot(Node& node);
  void prune(Node* node);  // it and its parents, where nobody needs them
  void make_room();

  int64_t most_bytes_;
  int64_t bytes_ = 0, snapshots_ = 0, evicted_ = 0;
  uint64_t clock_ = 0;
  std::map<uint64_t, Node*> by_age_;  // those that were used, the oldest first
  std::map<int64_t, std::unique_ptr<Node>> roots_;
};

}  // namespace cortado
