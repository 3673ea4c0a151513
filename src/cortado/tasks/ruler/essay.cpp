#include <algorithm>
#include <iterator>
#include <set>

#include "cortado/base/error.h"
#include "cortado/tasks/ruler/material.h"

namespace cortado {

namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Marks that may stand behind the full stop, or before a sentence's first word, in ASCII and as curly quotes.
std::string_view without_closing(std::string_view word) {
  while (!word.empty()) {
    if (word.ends_with("\u201d") || word.ends_with("\u2019")) {
      word.remove_suffix(3);
    } else if (std::string_view("\"')]}").find(word.back()) != std::string_view::npos) {
      word.remove_suffix(1);
    } else {
      break;
    }
  }
  return word;
}

std::string_view without_opening(std::string_view word) {
  while (!word.empty()) {
    if (word.starts_with("\u201c") || word.starts_with("\u2018")) {
      word.remove_prefix(3);
    } else if (std::string_view("\"'([{").find(word.front()) != std::string_view::npos) {
      word.remove_prefix(1);
    } else {
      break;
    }
  }
  return word;
}

bool is_abbreviation(std::string_view word) {
  static const std::set<std::string_view> kKnown = {"Mr",  "Mrs", "Ms",  "Dr",   "Prof", "St",   "Sr",  "Jr",  "Rev",
                                                    "Hon", "Gen", "Col", "Capt", "Lt",   "Sgt",  "vs",  "etc", "cf",
                                                    "e.g", "i.e", "Inc", "Ltd",  "Co",   "Corp", "Jan", "Feb", "Mar",
                                                    "Apr", "Aug", "Sep", "Sept", "Oct",  "Nov",  "Dec"};
  const bool initial = word.size() == 1 && word[0] >= 'A' && word[0] <= 'Z' && word[0] != 'I';
  return initial || kKnown.contains(word);
}

// Whether a sentence ends behind `word`, when `next` follows.
bool ends_sentence(std::string_view word, std::string_view next) {
  std::string_view end = without_closing(word);
  if (end.ends_with("!") || end.ends_with("?")) return true;
  if (!end.ends_with(".")) return false;
  end.remove_suffix(1);
  if (is_abbreviation(without_opening(end))) return false;
  const std::string_view start = without_opening(next);
  return start.empty() || !(start[0] >= 'a' && start[0] <= 'z');
}

}  // namespace

Essay::Essay(std::string_view text) {
  for (auto at = text.begin(); at != text.end();) {
    at = std::find_if_not(at, text.end(), is_space);
    const auto end = std::find_if(at, text.end(), is_space);
    if (at != end) words_.emplace_back(at, end);
    at = end;
  }
  fail_input_if(words_.empty(), "[ruler] the haystack has no words");
}

std::vector<std::string> Essay::sentences(int64_t count) const {
  fail_input_if(words_.empty(), "[ruler] this task hides its needle in a text, and there is none");
  std::vector<std::string> found(1);
  for (int64_t i = 0; i < count; ++i) {
    const auto& word = words_[static_cast<size_t>(i) % words_.size()];
    const auto& next = words_[static_cast<size_t>(i + 1) % words_.size()];
    auto& sentence = found.back();
    sentence += (sentence.empty() ? "" : " ") + word;
    if (i + 1 < count && ends_sentence(word, next)) found.emplace_back();
  }
  return found;
}

}  // namespace cortado
