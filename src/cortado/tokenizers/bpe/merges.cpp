#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <queue>

#include "cortado/base/error.h"
#include "cortado/base/utf8.h"
#include "cortado/tokenizers/bpe/bpe_tokenizer.h"

namespace cortado {
namespace {

constexpr size_t kShortWord = 32;        // symbols; up to this length, scanning all pairs is faster than a heap
constexpr size_t kLongestCached = 64;    // bytes
constexpr size_t kMostCached = 1 << 16;  // words

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

void MergeTable::reserve(size_t count) {
  const size_t size = std::bit_ceil(std::max<size_t>(16, 2 * count));
  slots_.assign(size, {});
  shift_ = 64 - std::countr_zero(size);
}

size_t MergeTable::slot_of(uint64_t key) const {
  size_t at = key * 0x9E3779B97F4A7C15ULL >> shift_;
  while (slots_[at].key != key && slots_[at].key != ~uint64_t{0}) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = pair_key(left, right);
  slots_[slot_of(key)] = {key, merge};
}

MergeTable::Merge MergeTable::find(int32_t left, int32_t right) const {
  return slots_[slot_of(pair_key(left, right))].merge;
}

Merger::Merger(const BpeDefinition& definition, bool bytes)
    : bytes_(bytes),
      byte_fallback_(definition.byte_fallback),
      fuse_unknown_(definition.fuse_unknown),
      ignore_merges_(definition.ignore_merges),
      takes_longest_(definition.longest),
      unknown_(definition.unknown) {
  std::vector<std::string> texts(definition.tokens.size());
  std::vector<bool> apart(texts.size());
  for (const AddedToken& token : definition.added) apart[token.id] = token.apart;
  ids_.reserve(texts.size());
  for (size_t id = 0; id < texts.size(); ++id) {
    const std::string& token = definition.tokens[id];
    if (apart[id]) continue;
    if (bytes ? bytes_of_letters(token, texts[id]) : !token.empty()) {
      if (!bytes) texts[id] = token;
      if (!texts[id].empty()) ids_.emplace(texts[id], static_cast<int32_t>(id));
    } else {
      texts[id].clear();  // an added token with characters that are no byte letters
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    byte_token_[byte] = id_in(ids_, bytes ? std::string(1, static_cast<char>(byte)) : std::string(name));
  }
  if (takes_longest_) {
    longest_ = LongestMatch(texts);
  } else if (definition.scores.empty()) {
    add_pairs(definition.merges, texts);
  } else {
    add_scored(definition.scores, texts);
  }
}

void Merger::add_pairs(const std::vector<std::pair<int32_t, int32_t>>& pairs, const std::vector<std::string>& texts) {
  table_.reserve(pairs.size());
  for (uint32_t rank = 0; rank < pairs.size(); ++rank) {
    const auto [left, right] = pairs[rank];
    const std::string& a = texts[left];
    const std::string& b = texts[right];
    const int32_t whole = id_in(ids_, a + b);
    fail_input_if(a.empty() || b.empty() || whole < 0, "[tokenizer] merge ", rank, " joins tokens ", left, " and ",
                  right, ", and there is no token for both together");
    table_.insert(left, right, {rank, whole});
  }
}

std::vector<ScoredPair> scored_pairs(const std::vector<float>& scores, const std::vector<std::string>& texts,
                                     const std::function<int32_t(std::string_view text)>& find) {
  std::vector<float> order;
  for (const float score : scores) {
    if (!std::isnan(score)) order.push_back(score);
  }
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  const auto part = [&](std::string_view text) {
    const int32_t id = find(text);
    return id < 0 || std::isnan(scores[id]) ? -1 : id;
  };
  std::vector<ScoredPair> pairs;
  for (size_t id = 0; id < texts.size(); ++id) {
    const std::string_view text = texts[id];
    if (text.empty() || std::isnan(scores[id])) continue;
    const auto at = std::lower_bound(order.begin(), order.end(), scores[id], std::greater<>());
    const auto rank = static_cast<uint32_t>(at - order.begin());
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if ((static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) continue;
      const int32_t left = part(text.substr(0, cut)), right = left < 0 ? -1 : part(text.substr(cut));
      if (right >= 0) pairs.push_back({rank, static_cast<int32_t>(id), left, right});
    }
  }
  return pairs;
}

void Merger::add_scored(const std::vector<float>& scores, const std::vector<std::string>& texts) {
  const auto pairs = scored_pairs(scores, texts, [&](std::string_view text) { return id_in(ids_, text); });
  table_.reserve(pairs.size());
  for (const auto& [rank, token, left, right] : pairs) table_.insert(left, right, {rank, token});
}

bool Merger::fall_back(std::string_view character, std::vector<int32_t>& symbols) const {
  const auto token = [&](char c) { return byte_token_[static_cast<unsigned char>(c)]; };
  if (!byte_fallback_ || std::any_of(character.begin(), character.end(), [&](char c) { return token(c) < 0; })) {
    return false;
  }
  for (const char c : character) symbols.push_back(token(c));
  return true;
}

std::vector<int32_t> Merger::symbols(std::string_view word) const {
  std::vector<int32_t> out;
  out.reserve(word.size());
  bool unknown = false;  // an unknown character whose token is not yet in `out`: several in a row may become one token
  for (size_t at = 0; at < word.size();) {
    const size_t length = bytes_ ? 1 : static_cast<size_t>(std::max(1, utf8_char(word.substr(at)).length));
    const std::string_view character = word.substr(at, length);
    at += length;
    const int32_t token = bytes_ ? byte_token_[static_cast<unsigned char>(character[0])] : id_in(ids_, character);
    if (token >= 0) {
      if (unknown) out.push_back(unknown_);
      unknown = false;
      out.push_back(token);
    } else if (!fall_back(character, out) && unknown_ >= 0) {
      if (unknown && !fuse_unknown_) out.push_back(unknown_);
      unknown = true;
    }
  }
  if (unknown) out.push_back(unknown_);
  return out;
}

void Merger::merge_short(std::vector<int32_t>& symbols) const {
  std::array<MergeTable::Merge, kShortWord> next;  // next[i] merges symbols i and i + 1
  const size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) next[i] = table_.find(symbols[i], symbols[i + 1]);
  size_t left = count;
  while (left > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < left; ++i) {
      if (next[i].rank < next[best].rank) best = i;
    }
    if (!next[best]) break;
    symbols[best] = next[best].token;
    for (size_t i = best + 1; i + 1 < left; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 2 < left; ++i) next[i] = next[i + 1];
    --left;
    if (best > 0) next[best - 1] = table_.find(symbols[best - 1], symbols[best]);
    if (best + 1 < left) next[best] = table_.find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(left);
}

// Like merge_short, but with a heap, for words of any length.
void Merger::merge_long(std::vector<int32_t>& symbols) const {
  struct Candidate {
    uint32_t rank, at;
    int32_t left, right, token;
    bool operator<(const Candidate& other) const {  // the heap's top is its largest element
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<int32_t> previous(symbols.size()), next(symbols.size());
  std::priority_queue<Candidate> heap;
  const auto offer = [&](int32_t at) {
    if (at < 0 || next[at] >= count) return;
    const int32_t left = symbols[at];
    const int32_t right = symbols[next[at]];
    const auto merge = table_.find(left, right);
    if (merge) heap.push({merge.rank, static_cast<uint32_t>(at), left, right, merge.token});
  };
  for (int32_t i = 0; i < count; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
  }
  for (int32_t i = 0; i < count; ++i) offer(i);
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    const size_t at = top.at;
    // a merge has changed a symbol; -1: it was merged into its left neighbour
    if (symbols[at] != top.left || next[at] >= count) continue;
    const auto right = static_cast<size_t>(next[at]);
    if (symbols[right] != top.right) continue;
    symbols[at] = top.token;
    symbols[right] = -1;
    next[at] = next[right];
    if (next[at] < count) previous[next[at]] = static_cast<int32_t>(at);
    offer(previous[at]);
    offer(static_cast<int32_t>(at));
  }
  std::erase(symbols, -1);
}

void Merger::encode(std::string_view word, Cache& cache, std::vector<int32_t>& tokens) const {
  const bool short_enough = word.size() <= kLongestCached;
  if (short_enough) {
    if (const auto found = cache.find(word); found != cache.end()) {
      tokens.insert(tokens.end(), found->second.begin(), found->second.end());
      return;
    }
  }
  std::vector<int32_t> result;
  const int32_t whole = ignore_merges_ ? id_in(ids_, word) : -1;
  if (whole >= 0) {
    result.push_back(whole);
  } else if (takes_longest_) {
    longest_.encode(word, result);
  } else {
    result = symbols(word);
    result.size() <= kShortWord ? merge_short(result) : merge_long(result);
  }
  tokens.insert(tokens.end(), result.begin(), result.end());
  if (short_enough && cache.size() < kMostCached) cache.emplace(word, std::move(result));
}

}  // namespace cortado
