// Byte-pair encoding of pretrained models: byte-level (GPT-2, Llama 3, Qwen2, SmolLM), or by characters with bytes as a
// fallback for unknown ones (Llama 2, Mistral, Gemma). Encoding takes four steps: find added tokens and normalise the
// text (text_steps.cpp), cut it into words (with regular expressions, regex.cpp), and merge the symbols of each word
// (merges.cpp), or take the longest tokens (longest.cpp).
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

// A compiled pattern: a text, or a regular expression in Oniguruma's Ruby syntax, as in Hugging Face's files. ^ and $
// match at every line, \s and \w are Unicode properties, \h is a hexadecimal digit. Constructs that PCRE2 reads
// differently are translated. InputError for nested character classes, && and {n,m}+, which cannot be translated.
class Matcher {
 public:
  Matcher(const Pattern& pattern, const std::string& place);

  // Finds all matches in valid UTF-8, from left to right. Skips an empty match that touches the match before it. Safe
  // to call from several threads.
  void find_all(std::string_view text, std::vector<Span>& spans) const;
  std::string replace_all(std::string_view text, std::string_view with) const;

 private:
  int match(std::string_view text, size_t at, Span& span) const;

  std::string pattern_;
  std::shared_ptr<pcre2_real_code_8> code_;  // null: the pattern is a plain text
};

// A step's definition with its compiled pattern.
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

// decode_token returns the text of a token in the middle of a text or, with `first`, at its beginning. finish_text
// applies the steps that need the whole text ("strip").
std::string decode_token(const TextSteps<DecoderStep>& steps, const std::string& token, bool first);
void finish_text(const TextSteps<DecoderStep>& steps, std::string& text);

// Finds added tokens in a text: the leftmost first, and the longest of those that begin at the same byte.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  using Found = std::function<void(std::string_view part, int32_t id)>;
  using Allowed = std::function<bool(const AddedToken& token, size_t begin)>;
  // Calls `found` for the parts of the text in order: with id >= 0 for an added token (including the white space that
  // it absorbs), with id -1 for the text between. The text before `done` has been passed on. `allowed`: whether a token
  // counts at a place; null: everywhere.
  void split(std::string_view text, const Found& found, size_t done = 0, const Allowed& allowed = {}) const;
  bool empty() const { return tokens_.empty(); }

 private:
  const AddedToken* longest_at(std::string_view text, size_t at, const Allowed& allowed) const;

  std::vector<AddedToken> tokens_;                   // longest first
  std::array<std::vector<uint32_t>, 256> starting_;  // indexed by first byte; indices into tokens_
};

struct Word {
  std::string_view text;
  bool first;  // whether it starts at the beginning of the whole text
};

class PreTokenizer {
 public:
  explicit PreTokenizer(const std::vector<PreTokenizerStep>& steps);

  // Cuts `text` into words. The words are views of the text or of `storage`; both must outlive them.
  void apply(const Word& text, std::deque<std::string>& storage, std::vector<Word>& words) const;
  bool bytes() const { return bytes_; }  // whether the symbols are bytes rather than characters

 private:
  using Step = TextStep<PreTokenizerStep>;
  static void split(const Step& step, const Word& word, std::vector<Span>& spans, std::vector<Word>& out);
  static Word metaspace(const PreTokenizerStep& step, const Word& word, std::deque<std::string>& storage);

  TextSteps<PreTokenizerStep> steps_;
  bool bytes_ = false;
};

// Allows lookup by string_view without constructing a string.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <typename Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

// Returns the id of a text; -1 if it has none.
inline int32_t id_in(const TextMap<int32_t>& ids, std::string_view text) {
  const auto found = ids.find(text);
  return found == ids.end() ? -1 : found->second;
}

// Maps a pair of tokens (left, right) to the token that they merge into and the rank of the merge. A hash table.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNone;  // the smallest rank merges first
    int32_t token = -1;
    explicit operator bool() const { return rank != kNone; }
  };
  static constexpr uint32_t kNone = ~0U;

  void reserve(size_t count);                             // before the first insert
  void insert(int32_t left, int32_t right, Merge merge);  // of equal pairs, the last one counts
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

// Two tokens that merge into one. The smallest rank (the highest score) merges first.
struct ScoredPair {
  uint32_t rank;
  int32_t token, left, right;
};
// Lists all ways to split a token into two tokens with scores. A token with a NaN score takes no part in merges. `find`
// returns the id of a text, or -1.
std::vector<ScoredPair> scored_pairs(const std::vector<float>& scores, const std::vector<std::string>& texts,
                                     const std::function<int32_t(std::string_view text)>& find);

// Cuts a text into the longest tokens, from left to right. A trie over bytes.
class LongestMatch {
 public:
  LongestMatch() = default;
  // `texts`: the bytes of each token, empty for those that are not found. InputError if a byte has no token.
  explicit LongestMatch(const std::vector<std::string>& texts);
  void encode(std::string_view text, std::vector<int32_t>& tokens) const;

 private:
  struct Node {
    unsigned char byte;
    int32_t token;          // -1: no token ends here
    uint32_t begin, count;  // the children, sorted by their bytes
  };
  const Node* child(const Node& node, unsigned char byte) const;

  std::vector<Node> nodes_;
};

class Merger {
 public:
  // The ids in the definition must have been checked (check_definition).
  Merger(const BpeDefinition& definition, bool bytes);

  // The tokens of words that were encoded before. Not safe to share between threads.
  using Cache = TextMap<std::vector<int32_t>>;
  void encode(std::string_view word, Cache& cache, std::vector<int32_t>& tokens) const;

 private:
  void add_pairs(const std::vector<std::pair<int32_t, int32_t>>& pairs, const std::vector<std::string>& texts);
  void add_scored(const std::vector<float>& scores, const std::vector<std::string>& texts);
  std::vector<int32_t> symbols(std::string_view word) const;
  bool fall_back(std::string_view character, std::vector<int32_t>& symbols) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  LongestMatch longest_;
  TextMap<int32_t> ids_;  // token ids by text; by raw bytes with `bytes`
  MergeTable table_;
  std::array<int32_t, 256> byte_token_;  // with `bytes`: the token of each byte; otherwise of "<0x..>"
  bool bytes_, byte_fallback_, fuse_unknown_, ignore_merges_, takes_longest_;
  int32_t unknown_;
};

class BpeTokenizer : public Tokenizer {
 public:
  // InputError "[place] ..." if the definition contradicts itself.
  BpeTokenizer(BpeDefinition definition, const std::string& place);
  static std::shared_ptr<Tokenizer> load(JsonReader& reader, const std::string& directory);

  std::string kind() const override { return "bpe"; }
  int64_t vocabulary() const override { return static_cast<int64_t>(definition_.tokens.size()); }
  std::vector<int32_t> encode(std::string_view text) const override { return encode_from(text, 0); }
  EncodedChat encode_chat(const jinja::Text& text, std::string_view chat_template,
                          const std::vector<size_t>& lengths) const override;
  std::string decode(const std::vector<int32_t>& tokens) const override;
  std::string piece(int32_t token) const override;
  bool is_special(int32_t token) const override { return token >= 0 && token < vocabulary() && special_[token]; }
  const SpecialTokens& special() const override { return definition_.special; }
  int32_t find(std::string_view text) const override { return id_in(ids_, text); }
  void save(const std::string& directory) const override;

  const BpeDefinition& definition() const { return definition_; }

 private:
  using Ends = std::vector<std::pair<size_t, size_t>>;  // of added tokens: bytes and tokens up to there
  // The typed parts of a text, in which the tokens of a chat template do not count.
  struct Typed {
    std::vector<jinja::Typed> ranges;
    std::string_view chat_template;
  };
  std::vector<int32_t> encode_from(std::string_view text, size_t from, const Typed& typed = {},
                                   Ends* ends = nullptr) const;
  void encode_segment(const Word& segment, const Typed& typed, Merger::Cache& cache,
                      std::vector<int32_t>& tokens) const;
  Typed normalized_typed(std::string_view segment, const std::string& normalized, const Typed& typed) const;
  static AddedTokenFinder::Allowed outside(const Typed& typed);

  BpeDefinition definition_;
  TextSteps<NormalizerStep> normalizer_;
  AddedTokenFinder raw_;         // searches the original text
  AddedTokenFinder normalized_;  // searches the normalised text
  PreTokenizer pre_tokenizer_;
  Merger merger_;
  TextSteps<DecoderStep> decoder_;
  TextMap<int32_t> ids_;
  std::vector<std::string> pieces_;  // the text of each token in the middle of a text
  std::vector<bool> special_;

  mutable std::mutex mutex_;  // protects cache_; a thread that does not get the lock uses a cache of its own
  mutable Merger::Cache cache_;
};

}  // namespace cortado
