// Byte-pair encoding as pretrained models have it: by bytes (GPT-2, Llama 3, Qwen2, SmolLM) or by characters with bytes
// for the unknown ones (Llama 2, Mistral, Gemma). A text is normalised, added tokens are taken out (text_steps.cpp), it
// is cut into words (regex.cpp), and their symbols are merged (merges.cpp).
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cortado/tokenizers/bpe/definition.h"

struct pcre2_real_code_8;

namespace cortado {

struct Span {
  size_t begin, end;
};

// A pattern, ready to be looked for. Regular expressions are Hugging Face's: written for Oniguruma with Ruby's syntax.
// ^ and $ match at every line, \s and \w are Unicode's properties, \h is a hexadecimal digit. What PCRE2 would read
// differently is translated; nested classes, && and {n,m}+ cannot be, and are an InputError that says so.
class Matcher {
 public:
  Matcher(const Pattern& pattern, const std::string& place);

  // All matches from left to right, in valid UTF-8. An empty match that touches the match before it is none. Safe to
  // call from several threads.
  void find_all(std::string_view text, std::vector<Span>& spans) const;
  std::string replace_all(std::string_view text, std::string_view with) const;

 private:
  int match(std::string_view text, size_t at, Span& span) const;

  std::string pattern_;
  std::shared_ptr<pcre2_real_code_8> code_;  // none: the pattern is the text itself
};

// A step as it is defined, and its pattern ready to be looked for.
template <typename Definition>
struct TextStep {
  Definition definition;
  Matcher matcher;
};
template <typename Definition>
using TextSteps = std::vector<TextStep<Definition>>;

template <typename Definition>
TextSteps<Definition> with_matchers(const std::vector<Definition>& steps, const std::string& place) {
  TextSteps<Definition> all;
  for (const Definition& step : steps) all.push_back({step, Matcher(step.pattern, place)});
  return all;
}

std::string normalize(const TextSteps<NormalizerStep>& steps, std::string text);

// What a token stands for in the middle of a text, or at its beginning; and what is left of the whole text.
std::string decode_token(const TextSteps<DecoderStep>& steps, const std::string& token, bool first);
void finish_text(const TextSteps<DecoderStep>& steps, std::string& text);

// Finds added tokens: the leftmost first, of several that begin there the longest.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  // Calls `found` for the parts of the text in order: id >= 0 for an added token (with the white space that it takes
  // along), -1 for what is between.
  void split(std::string_view text, const std::function<void(std::string_view part, int32_t id)>& found) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;                   // longest first
  std::array<std::vector<uint32_t>, 256> starting_;  // by first byte, into tokens_
};

struct Word {
  std::string_view text;
  bool first;  // begins at the whole text's beginning
};

class PreTokenizer {
 public:
  explicit PreTokenizer(const std::vector<PreTokenizerStep>& steps);

  // The words of a text. Their bytes are the text's or in `storage`, and live as long as these.
  void apply(const Word& text, std::deque<std::string>& storage, std::vector<Word>& words) const;
  bool bytes() const { return bytes_; }  // the symbols are bytes

 private:
  using Step = TextStep<PreTokenizerStep>;
  static void split(const Step& step, const Word& word, std::vector<Span>& spans, std::vector<Word>& out);
  static Word metaspace(const PreTokenizerStep& step, const Word& word, std::deque<std::string>& storage);

  TextSteps<PreTokenizerStep> steps_;
  bool bytes_ = false;
};

// Lookup by string_view without making a string.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <typename Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

// The id of a text; -1 without.
inline int32_t id_in(const TextMap<int32_t>& ids, std::string_view text) {
  const auto found = ids.find(text);
  return found == ids.end() ? -1 : found->second;
}

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

class BpeTokenizer : public Tokenizer {
 public:
  // `place` for messages: an InputError names it where the definition contradicts itself.
  BpeTokenizer(BpeDefinition definition, const std::string& place);
  static std::shared_ptr<Tokenizer> load(JsonReader& reader, const std::string& directory);

  std::string kind() const override { return "bpe"; }
  int64_t vocabulary() const override { return static_cast<int64_t>(definition_.tokens.size()); }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<int32_t>& tokens) const override;
  std::string piece(int32_t token) const override;
  bool is_special(int32_t token) const override { return token >= 0 && token < vocabulary() && special_[token]; }
  const SpecialTokens& special() const override { return definition_.special; }
  int32_t find(std::string_view text) const override { return id_in(ids_, text); }
  void save(const std::string& directory) const override;

  const BpeDefinition& definition() const { return definition_; }

 private:
  void encode_segment(const Word& segment, Merger::Cache& cache, std::vector<int32_t>& tokens) const;

  BpeDefinition definition_;
  TextSteps<NormalizerStep> normalizer_;
  AddedTokenFinder raw_;         // looks in the text as it is
  AddedTokenFinder normalized_;  // in the normalised text
  PreTokenizer pre_tokenizer_;
  Merger merger_;
  TextSteps<DecoderStep> decoder_;
  TextMap<int32_t> ids_;
  std::vector<std::string> pieces_;  // what each token stands for in the middle of a text
  std::vector<bool> special_;

  mutable std::mutex mutex_;  // of cache_: who does not get it uses one of its own
  mutable Merger::Cache cache_;
};

}  // namespace cortado
