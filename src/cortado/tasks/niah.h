// Needle in a haystack: a value is hidden in a text of any length and asked for. RULER's single tasks (README.md).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/base/random.h"

namespace cortado {

enum class HaystackKind { kNoise, kEssay };
enum class ValueKind { kNumber, kUuid };

struct NiahTask {
  std::string name;
  HaystackKind haystack;
  ValueKind value;
};

// single_1, single_2, single_3.
const std::vector<NiahTask>& niah_tasks();
const NiahTask& niah_task(const std::string& name);  // InputError: unknown

// Adjectives and nouns, one a line.
struct NiahWords {
  std::vector<std::string> adjectives, nouns;
  static NiahWords read(const std::string& adjectives_file, const std::string& nouns_file);
};

// A text as a haystack: its first words, cut into sentences.
class Essay {
 public:
  Essay() = default;
  explicit Essay(std::string_view text);  // InputError: no words

  // The first `count` words, from the beginning again where the text ends.
  std::vector<std::string> sentences(int64_t count) const;

 private:
  std::vector<std::string> words_;
};

struct NiahQuestion {
  std::string key, value;
  std::string text;           // what the user says: haystack and question
  std::string answer_prefix;  // how the answer begins
  int64_t size = 0;           // of the haystack: lines or words
  double depth = 0;           // where the needle is: 0 at the beginning, 1 at the end
};

struct NiahOptions {
  NiahTask task;
  int64_t length = 4096;        // tokens of prompt and answer
  int64_t answer_tokens = 128;  // kept free for the answer
  int64_t seed = 42;
};

// The questions of one task and length. Each is a function of (seed, task, length, index), words, essay and `count`.
class NiahQuestions {
 public:
  // Tokens of a question's whole prompt, as the model will read it.
  using Count = std::function<int64_t(const NiahQuestion&)>;

  // Keeps references to words and essay.
  NiahQuestions(NiahOptions options, const NiahWords& words, const Essay& essay, Count count);

  // With the largest haystack that fits. InputError: not even the smallest does.
  NiahQuestion make(int64_t index) const;
  // With a haystack of `size` lines or words.
  NiahQuestion make(int64_t index, int64_t size) const;

 private:
  bool fits(int64_t index, int64_t size) const;
  int64_t largest_size(int64_t index, int64_t start) const;

  NiahOptions options_;
  const NiahWords& words_;
  const Essay& essay_;
  Count count_;
  RandomStream random_;
  int64_t usual_size_;  // the first question's, where the search for the others begins
};

// Whether the value occurs in the answer, as RULER reads it.
bool niah_correct(const std::string& answer, const std::string& value);

}  // namespace cortado
