// Needles in haystacks: values hidden under keys; the question asks for the value of a key.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <sstream>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/json.h"
#include "cortado/tasks/ruler/ruler.h"

namespace cortado {

namespace {

// --- Haystacks: a text cut into sentences. ---

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Removes quotes (ASCII and curly) and brackets after a full stop, or before the first word of a sentence.
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

// Whether a sentence ends after `word`, if `next` follows.
bool ends_sentence(std::string_view word, std::string_view next) {
  std::string_view end = without_closing(word);
  if (end.ends_with("!") || end.ends_with("?")) return true;
  if (!end.ends_with(".")) return false;
  end.remove_suffix(1);
  if (is_abbreviation(without_opening(end))) return false;
  const std::string_view start = without_opening(next);
  return start.empty() || !(start[0] >= 'a' && start[0] <= 'z');
}

// --- Needles. ---

enum class Haystack { kNoise, kEssay, kNeedles };
enum class NeedleValue { kNumber, kUuid };

struct NiahShape {
  Haystack haystack;
  NeedleValue value;
  int64_t keys = 1, values = 1, asked = 1;  // values per key; number of keys asked for
  bool uuid_keys = false;
  bool own = false;  // in the user's words
};

constexpr int64_t kDepths = 40;  // evenly spaced percentages from 0 to 100, rounded

// A UUID of version 4 in the format of RFC 4122.
std::string uuid_of(Draws& draws) {
  const uint64_t high = (draws.bits() & ~uint64_t{0xF000}) | 0x4000;
  const uint64_t low = (draws.bits() & ~(uint64_t{3} << 62)) | uint64_t{1} << 63;
  char text[40];
  std::snprintf(text, sizeof text, "%08llx-%04llx-%04llx-%04llx-%012llx", static_cast<unsigned long long>(high >> 32),
                static_cast<unsigned long long>(high >> 16 & 0xFFFF), static_cast<unsigned long long>(high & 0xFFFF),
                static_cast<unsigned long long>(low >> 48), static_cast<unsigned long long>(low & 0xFFFFFFFFFFFFULL));
  return text;
}

struct Needle {
  size_t key;  // index of the key
  std::string value, text;
  size_t place = 0;  // it is inserted before this line or sentence
  double depth = 0;
};

constexpr const char *kKey = "{key}", *kValue = "{value}";

std::string filled(std::string form, const std::string& key, const std::string& value = "") {
  for (const auto& [name, word] : {std::pair(kKey, &key), std::pair(kValue, &value)}) {
    const size_t length = std::string_view(name).size();
    for (size_t at = form.find(name); at != std::string::npos; at = form.find(name, at + word->size())) {
      form.replace(at, length, *word);
    }
  }
  return form;
}

class NiahTask : public RulerTask {
 public:
  NiahTask(const std::string& name, const NiahShape& shape, const RulerOptions& options, const RulerMaterial& material)
      : shape_(shape),
        material_(material),
        random_(static_cast<uint64_t>(options.seed), concat("niah ", name, " ", options.length)) {}

  int64_t least(int64_t) const override { return shape_.haystack == Haystack::kEssay ? 1 : needles(); }

  RulerQuestion draw(int64_t index, int64_t size) const override {
    Draws draws(random_, index);
    std::vector<std::string> keys;
    for (int64_t i = 0; i < shape_.keys; ++i) keys.push_back(key(draws));
    const OwnNeedle* own = nullptr;
    if (shape_.own) own = &material_.own[size_t(draws.below(int64_t(material_.own.size())))];
    const bool essay = shape_.haystack == Haystack::kEssay;
    std::vector<std::string> parts;
    if (essay) parts = material_.essay.sentences(size);
    std::vector<Needle> needles = draw_places(draws, size, parts.size());
    draw_values(draws, keys, needles, own);
    if (shape_.haystack == Haystack::kNoise) parts.assign(size_t(size), kRulerNoise);
    if (shape_.haystack == Haystack::kNeedles) parts = distractors(draws, size, keys);

    std::vector<Needle> in_order = needles;
    std::stable_sort(in_order.begin(), in_order.end(), [](const auto& a, const auto& b) { return a.place > b.place; });
    for (const Needle& needle : in_order) parts.insert(parts.begin() + std::ptrdiff_t(needle.place), needle.text);

    RulerQuestion question;
    question.size = size;
    std::string query;
    const auto asked = draws.distinct(shape_.asked, shape_.keys);
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto which = size_t(asked[i]);
      query += concat(i == 0 ? "" : i + 1 == asked.size() ? ", and " : ", ", keys[which]);
      for (const Needle& needle : needles) {
        if (needle.key != which) continue;
        question.references.push_back(needle.value);
        question.depths.push_back(needle.depth);
      }
    }
    if (own) {
      question.text = concat(joined(parts, " "), "\n", filled(own->question, query));
      question.answer_prefix = " " + filled(own->answer, query);
      return question;
    }
    const std::string about =
        concat("special magic ", kind(), singular() ? "" : "s", " for ", query, " mentioned in the provided text");
    question.text = text_about(joined(parts, essay ? " " : "\n"), about);
    question.answer_prefix = concat(" The ", about, singular() ? " is" : " are");
    return question;
  }

 private:
  int64_t needles() const { return shape_.keys * shape_.values; }
  bool singular() const { return shape_.asked * shape_.values == 1; }
  std::string kind() const { return shape_.value == NeedleValue::kNumber ? "number" : "uuid"; }

  std::string key(Draws& draws) const {
    if (shape_.uuid_keys) return uuid_of(draws);
    const auto& [adjectives, nouns] = material_.words;
    const auto& adjective = adjectives[size_t(draws.below(int64_t(adjectives.size())))];
    return concat(adjective, "-", nouns[size_t(draws.below(int64_t(nouns.size())))]);
  }

  std::string value(Draws& draws) const {
    if (shape_.value == NeedleValue::kNumber) return std::to_string(1000000 + draws.below(9000000));
    draws.bits();  // unused; keeps the questions equal to those of earlier results
    return uuid_of(draws);
  }

  std::string sentence(const std::string& key, const std::string& value) const {
    return concat("One of the special magic ", kind(), "s for ", key, " is: ", value, ".");
  }

  std::vector<Needle> draw_places(Draws& draws, int64_t size, size_t parts) const {
    std::vector<Needle> drawn;
    const bool essay = shape_.haystack == Haystack::kEssay;
    for (const int64_t place : draws.distinct(needles(), essay ? kDepths : size)) {
      Needle needle{.key = drawn.size() / size_t(shape_.values), .value = {}, .text = {}};
      if (essay) {
        const auto percent = static_cast<size_t>(std::round(double(place) * 100 / (kDepths - 1)));
        needle.place = parts * percent / 100;
        needle.depth = double(percent) / 100;
      } else {
        needle.place = size_t(place);
        needle.depth = double(place) / double(size);
      }
      drawn.push_back(needle);
    }
    return drawn;
  }

  void draw_values(Draws& draws, const std::vector<std::string>& keys, std::vector<Needle>& needles,
                   const OwnNeedle* own) const {
    for (Needle& needle : needles) {
      needle.value = value(draws);
      const std::string& key = keys[needle.key];
      needle.text = own ? filled(own->needle, key, needle.value) : sentence(key, needle.value);
    }
  }

  // Needles that are not asked for, under other keys.
  std::vector<std::string> distractors(Draws& draws, int64_t size, const std::vector<std::string>& keys) const {
    std::vector<std::string> lines;
    while (int64_t(lines.size()) < size) {
      const std::string other = key(draws), hidden = value(draws);
      if (std::find(keys.begin(), keys.end(), other) == keys.end()) lines.push_back(sentence(other, hidden));
    }
    return lines;
  }

  std::string text_about(const std::string& context, const std::string& about) const {
    const std::string things = kind() + (singular() ? "" : "s");
    return concat(singular() ? "A special magic " : "Some special magic ", things, singular() ? " is" : " are",
                  " hidden within the following text. Make sure to memorize it. I will quiz you about the ", things,
                  " afterwards.\n", context, "\nWhat ", singular() ? "is" : "are all", " the ", about, "?");
  }

  NiahShape shape_;
  const RulerMaterial& material_;
  RandomStream random_;
};

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

std::vector<OwnNeedle> OwnNeedle::read(const std::string& file) {
  std::vector<OwnNeedle> all;
  std::istringstream lines(read_file(file));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = concat(file, ", line ", ++number);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    JsonReader each(parse_json(line, where), where);
    const OwnNeedle own{each.text("needle"), each.text("question"), each.text("answer")};
    fail_input_if(own.needle.find(kKey) == std::string::npos || own.needle.find(kValue) == std::string::npos, "[",
                  where, "] the needle has no place for ", kKey, " or none for ", kValue);
    fail_input_if(own.question.find(kKey) == std::string::npos, "[", where, "] the question has no place for ", kKey);
    fail_input_if(concat(own.question, own.answer).find(kValue) != std::string::npos, "[", where,
                  "] question and answer must not say the value");
    all.push_back(own);
  }
  fail_input_if(all.empty(), "[", file, "] has no needles");
  return all;
}

std::vector<RulerKind> niah_kinds() {
  using enum Haystack;
  using enum NeedleValue;
  const std::vector<std::pair<std::string, NiahShape>> shapes = {
      {"single_1", {kNoise, kNumber}},
      {"single_2", {kEssay, kNumber}},
      {"single_3", {kEssay, kUuid}},
      {"multikey_1", {kEssay, kNumber, 4}},
      {"multikey_2", {kNeedles, kNumber}},
      {"multikey_3", {kNeedles, kUuid, 1, 1, 1, true}},
      {"multivalue", {kEssay, kNumber, 1, 4}},
      {"multiquery", {kEssay, kNumber, 4, 1, 4}},
      {"own", {.haystack = kEssay, .value = kNumber, .own = true}},
  };
  std::vector<RulerKind> kinds;
  for (const auto& [name, shape] : shapes) {
    std::vector<RulerNeeds> needs;
    if (shape.haystack == kEssay) needs.push_back(RulerNeeds::kEssay);
    if (shape.own) needs.push_back(RulerNeeds::kOwn);
    kinds.push_back(
        {name, needs, 128, false, [name, shape](const RulerOptions& options, const RulerMaterial& material) {
           return std::make_unique<NiahTask>(name, shape, options, material);
         }});
  }
  return kinds;
}

}  // namespace cortado
