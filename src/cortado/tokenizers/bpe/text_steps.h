// A text on its way to the merges: normalised, added tokens taken out, cut into words.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/tokenizers/bpe/definition.h"
#include "cortado/tokenizers/bpe/regex.h"

namespace cortado {

// A step as it is defined, and its pattern ready to be looked for.
template <typename Definition>
struct TextStep {
  Definition definition;
  Matcher matcher;
};

class Normalizer {
 public:
  explicit Normalizer(const std::vector<NormalizerStep>& steps);
  std::string apply(std::string text) const;

 private:
  std::vector<TextStep<NormalizerStep>> steps_;
};

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
  bool any_ = false;
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
  static void split(const Step& step, const Word& word, std::vector<Word>& out);
  static Word metaspace(const PreTokenizerStep& step, const Word& word, std::deque<std::string>& storage);

  std::vector<Step> steps_;
  bool bytes_ = false;
};

// What tokens stand for.
class TokenDecoder {
 public:
  explicit TokenDecoder(const std::vector<DecoderStep>& steps);

  // A token in the middle of a text, and at its beginning.
  std::string piece(const std::string& token, bool first) const;
  // What is left of the whole text.
  void finish(std::string& text) const;

 private:
  std::vector<TextStep<DecoderStep>> steps_;
};

}  // namespace cortado
