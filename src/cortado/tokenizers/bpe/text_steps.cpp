#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "cortado/base/error.h"
#include "cortado/base/utf8.h"
#include "cortado/tokenizers/bpe/bpe_tokenizer.h"

namespace cortado {
namespace {

// The character directly before byte `at`; empty at the beginning.
std::string_view character_before(std::string_view text, size_t at) {
  size_t begin = at;
  do {
    if (begin == 0) break;
    --begin;
  } while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80);
  return text.substr(begin, at - begin);
}

std::string_view character_after(std::string_view text, size_t at) {
  return text.substr(at, static_cast<size_t>(utf8_char(text.substr(at)).length));
}

bool matches(const Matcher& pattern, std::string_view character) {
  std::vector<Span> spans;
  pattern.find_all(character, spans);
  return !spans.empty();
}

bool is_space(std::string_view character) {
  static const Matcher space({"\\s", true}, "tokenizer");
  return matches(space, character);
}

bool is_word(std::string_view character) {
  static const Matcher word({"[\\w\\p{Join_Control}]", true}, "tokenizer");
  return matches(word, character);
}

std::string unicode_form(const std::string& text, const std::string& form) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; })) return text;
  const bool compose = form == "nfc" || form == "nfkc";
  const bool compatible = form == "nfkc" || form == "nfkd";
  const int options =
      UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0);
  utf8proc_uint8_t* result = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(options));
  if (length < 0) throw Failure(concat("[tokenizer] Unicode normalisation: ", utf8proc_errmsg(length)));
  std::string out(reinterpret_cast<const char*>(result), static_cast<size_t>(length));
  std::free(result);
  return out;
}

// A piece of a word: a match of the pattern, or the text between two matches.
struct SplitPiece {
  Span span;
  bool match;
};

std::vector<SplitPiece> split_pieces(std::string_view text, const std::vector<Span>& matches, bool invert) {
  std::vector<SplitPiece> pieces;
  size_t at = 0;
  for (const Span& match : matches) {
    if (at < match.begin) pieces.push_back({{at, match.begin}, invert});
    pieces.push_back({match, !invert});
    at = match.end;
  }
  if (at < text.size()) pieces.push_back({{at, text.size()}, invert});
  return pieces;
}

// Joins each match with the text on its left or, if `backwards`, on its right. With `equals`, joins consecutive matches
// instead.
std::vector<SplitPiece> merged(std::vector<SplitPiece> pieces, bool backwards, bool equals) {
  if (backwards) std::reverse(pieces.begin(), pieces.end());
  std::vector<SplitPiece> out;
  bool previous = false;
  for (const SplitPiece& piece : pieces) {
    const bool joins = equals ? piece.match == previous : piece.match && !previous;
    if (joins && !out.empty()) {
      auto& span = out.back().span;
      span = {std::min(span.begin, piece.span.begin), std::max(span.end, piece.span.end)};
    } else {
      out.push_back(piece);
    }
    previous = piece.match;
  }
  if (backwards) std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace

std::string normalize(const TextSteps<NormalizerStep>& steps, std::string text) {
  for (const auto& [step, matcher] : steps) {
    if (step.type == "prepend") {
      if (!text.empty()) text.insert(0, step.text);
    } else if (step.type == "replace") {
      text = matcher.replace_all(text, step.text);
    } else {
      text = unicode_form(text, step.type);
    }
  }
  return text;
}

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.text.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.text.size() > b.text.size(); });
  for (uint32_t i = 0; i < tokens_.size(); ++i) starting_[static_cast<unsigned char>(tokens_[i].text[0])].push_back(i);
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, size_t at, const Allowed& allowed) const {
  for (const uint32_t i : starting_[static_cast<unsigned char>(text[at])]) {
    const bool there = text.substr(at).starts_with(tokens_[i].text);
    if (there && (!allowed || allowed(tokens_[i], at))) return &tokens_[i];
  }
  return nullptr;
}

void AddedTokenFinder::split(std::string_view text, const Found& found, size_t done, const Allowed& allowed) const {
  for (size_t at = done; !tokens_.empty() && at < text.size();) {
    const AddedToken* token = longest_at(text, at, allowed);
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->text.size();
    at = end;
    if (token->single_word &&
        (is_word(character_before(text, begin)) || (end < text.size() && is_word(character_after(text, end))))) {
      continue;
    }
    if (token->lstrip) {
      while (begin > done && is_space(character_before(text, begin))) begin -= character_before(text, begin).size();
    }
    if (token->rstrip) {
      while (end < text.size() && is_space(character_after(text, end))) end += character_after(text, end).size();
    }
    if (done < begin) found(text.substr(done, begin - done), -1);
    found(text.substr(begin, end - begin), token->id);
    done = at = end;
  }
  if (done < text.size()) found(text.substr(done), -1);
}

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps) {
  for (const auto& step : steps) {
    fail_input_if(bytes_, "[tokenizer.pre_tokenizer] nothing can follow \"bytes\", got \"", step.type, "\"");
    const Pattern pattern = step.type == "metaspace" ? Pattern{step.mark} : step.pattern;
    if (step.type != "bytes") steps_.push_back({step, Matcher(pattern, "tokenizer.pre_tokenizer")});
    bytes_ = step.type == "bytes";
  }
}

// `spans` is a buffer for the matches. It is reused for all words of a text but not kept longer: a text can have
// millions of matches.
void PreTokenizer::split(const Step& step, const Word& word, std::vector<Span>& spans, std::vector<Word>& out) {
  step.matcher.find_all(word.text, spans);
  const auto& [type, pattern, behavior, invert, mark, prepend, cut] = step.definition;
  const bool marks = type == "metaspace";
  auto pieces = split_pieces(word.text, spans, !marks && invert);
  const bool backwards = marks || behavior == "merged_with_next", equals = !marks && behavior == "contiguous";
  if (backwards || equals || behavior == "merged_with_previous") pieces = merged(std::move(pieces), backwards, equals);
  const bool removed = !marks && behavior == "removed";
  for (const SplitPiece& piece : pieces) {
    if (piece.span.begin == piece.span.end || (removed && piece.match)) continue;
    out.push_back(
        {word.text.substr(piece.span.begin, piece.span.end - piece.span.begin), word.first && piece.span.begin == 0});
  }
}

Word PreTokenizer::metaspace(const PreTokenizerStep& step, const Word& word, std::deque<std::string>& storage) {
  const bool in_front = step.prepend == "always" || (step.prepend == "first" && word.first);
  std::string text;
  text.reserve(word.text.size() + word.text.size() / 2);
  const bool marked = word.text.starts_with(' ') || word.text.starts_with(step.mark);
  if (in_front && !marked) text = step.mark;
  for (const char c : word.text) c == ' ' ? text += step.mark : text += c;
  storage.push_back(std::move(text));
  return {storage.back(), word.first};
}

void PreTokenizer::apply(const Word& text, std::deque<std::string>& storage, std::vector<Word>& words) const {
  words.assign(1, text);
  std::vector<Word> next;
  std::vector<Span> spans;
  for (const Step& step : steps_) {
    next.clear();
    for (const Word& word : words) {
      if (step.definition.type == "split") {
        split(step, word, spans, next);
      } else if (step.definition.type == "metaspace") {
        const Word marked = metaspace(step.definition, word, storage);
        if (step.definition.split) {
          split(step, marked, spans, next);
        } else {
          next.push_back(marked);
        }
      } else if (word.text.starts_with(' ')) {  // prefix_space
        next.push_back(word);
      } else {
        storage.push_back(concat(" ", word.text));
        next.push_back({storage.back(), word.first});
      }
    }
    words.swap(next);
  }
}

std::string decode_token(const TextSteps<DecoderStep>& steps, const std::string& token, bool first) {
  std::string text = token;
  for (const auto& [step, matcher] : steps) {
    if (step.type == "replace") {
      text = matcher.replace_all(text, step.text);
    } else if (step.type == "metaspace") {
      text = Matcher({step.text}, "").replace_all(text, first && step.drop_first ? "" : " ");
    } else if (step.type == "bytes") {
      if (std::string bytes; bytes_of_letters(text, bytes)) text = bytes;
    } else if (step.type == "byte_fallback" && text.size() == 6 && text.starts_with("<0x") && text.back() == '>') {
      const std::string digits = text.substr(3, 2);
      if (digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos) {
        text = std::string(1, static_cast<char>(std::strtol(digits.c_str(), nullptr, 16)));
      }
    }
  }
  return text;
}

void finish_text(const TextSteps<DecoderStep>& steps, std::string& text) {
  for (const auto& [step, matcher] : steps) {
    if (step.type != "strip" || step.text.empty()) continue;
    for (int64_t i = 0; i < step.start && text.starts_with(step.text); ++i) text.erase(0, step.text.size());
    for (int64_t i = 0; i < step.stop && text.ends_with(step.text); ++i) {
      text.erase(text.size() - step.text.size());
    }
  }
}

}  // namespace cortado
