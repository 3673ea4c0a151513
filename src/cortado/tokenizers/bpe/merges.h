// The merges: from a word's symbols to its tokens.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cortado/tokenizers/bpe/definition.h"

namespace cortado {

// Lookup by string_view without making a string.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <typename Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

// (left token, right token) -> what they become, and how early.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNone;  // the smallest goes first
    int32_t token = -1;
    explicit operator bool() const { return rank != kNone; }
  };
  static constexpr uint32_t kNone = ~0U;

  void reserve(size_t count);                             // before the first insert
  void insert(int32_t left, int32_t right, Merge merge);  // the last of equal pairs counts
  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = ~uint64_t{0};
    Merge merge;
  };
  size_t slot_of(uint64_t key) const;

  std::vector<Slot> slots_;  // open addressing, at most half full
  int shift_ = 64;
};

// Two tokens that become one, how early (the smallest rank first), of tokens with scores.
struct ScoredPair {
  uint32_t rank;
  int32_t token, left, right;
};
// Every way to make a token of two; NaN: not by merging. `find`: the id of a text, -1 without.
std::vector<ScoredPair> scored_pairs(const std::vector<float>& scores, const std::vector<std::string>& texts,
                                     const std::function<int32_t(std::string_view text)>& find);

class Merger {
 public:
  // The definition's ids must have been checked.
  Merger(const BpeDefinition& definition, bool bytes);

  // What encode keeps of earlier words. Not safe to share between threads.
  using Cache = TextMap<std::vector<int32_t>>;
  void encode(std::string_view word, Cache& cache, std::vector<int32_t>& tokens) const;

 private:
  void add_pairs(const std::vector<std::pair<int32_t, int32_t>>& pairs, const std::vector<std::string>& texts);
  void add_scored(const std::vector<float>& scores, const std::vector<std::string>& texts);
  std::vector<int32_t> symbols(std::string_view word) const;
  bool fall_back(std::string_view character, std::vector<int32_t>& symbols) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  TextMap<int32_t> ids_;  // of the tokens' texts, with `bytes` of their bytes
  MergeTable table_;
  std::array<int32_t, 256> byte_token_;  // with bytes: of a byte; otherwise of "<0x..>"
  bool bytes_, byte_fallback_, fuse_unknown_, ignore_merges_;
  int32_t unknown_;
};

}  // namespace cortado
