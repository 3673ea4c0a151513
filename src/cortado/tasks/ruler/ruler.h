// The questions of RULER's tasks (README.md): a text of any length, a question about it, and the references.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/base/random.h"
#include "cortado/base/words.h"
#include "cortado/tasks/draws.h"

namespace cortado {

// --- Material of the questions: words, a long text, documents with questions about them. ---

// Adjectives and nouns, read from files with one per line.
struct RulerWords {
  std::vector<std::string> adjectives, nouns;

  static RulerWords read(const std::string& adjectives_file, const std::string& nouns_file);
  // All single words come first, then each adjective with each noun, joined by a hyphen.
  std::string word(int64_t index) const;
  int64_t single() const { return int64_t(adjectives.size() + nouns.size()); }
  int64_t all() const { return single() + int64_t(adjectives.size() * nouns.size()); }
};

// A text as a haystack: its first words, split into sentences.
class Essay {
 public:
  Essay() = default;
  explicit Essay(std::string_view text);  // InputError if it has no words

  // The first `count` words as sentences; starts again from the beginning if the text is shorter.
  std::vector<std::string> sentences(int64_t count) const;

 private:
  std::vector<std::string> words_;
};

// Questions about documents, in the order of their file.
struct Documents {
  struct Question {
    std::string text;
    std::vector<std::string> answers;  // any of them is correct
    std::vector<int64_t> gold;         // the documents that the question is about
    std::vector<int64_t> related;      // others of the same article
  };
  std::vector<std::string> texts;  // sorted, without duplicates
  std::vector<Question> questions;

  // Reads SQuAD 2.0 (dev-v2.0.json): all paragraphs, and the questions that have an answer.
  static Documents squad(const std::string& file);
  // Reads HotpotQA with distractors (hotpot_dev_distractor_v1.json).
  static Documents hotpotqa(const std::string& file);
};

// A needle in the user's words: "{key}" and "{value}" are replaced by what is drawn.
struct OwnNeedle {
  std::string needle, question, answer;  // the sentence, the question, the beginning of the answer

  // Reads JSON Lines with these three names. InputError for another format, or if the key or value has no place.
  static std::vector<OwnNeedle> read(const std::string& file);
};

struct RulerMaterial {
  RulerWords words;
  Essay essay;
  std::vector<OwnNeedle> own;
  Documents squad, hotpotqa;
};

// --- The questions. ---

struct RulerQuestion {
  std::string text;                     // the user's message: the long text and the question
  std::string answer_prefix;            // the beginning of the answer
  std::vector<std::string> references;  // texts that the answer has to contain
  std::vector<double> depths;  // positions of the references in the text, 0 to 1; empty if they are spread over it
  int64_t size = 0;            // length of the text in the task's units (lines, words or documents)
};

// Number of tokens in a question's whole prompt, as the model reads it.
using RulerCount = std::function<int64_t(const RulerQuestion&)>;

struct RulerOptions {
  int64_t length = 4096;  // tokens of prompt and answer together
  int64_t seed = 42;
  RulerCount count;
};

// A task at one length. Questions are a pure function of (seed, task, length, index) and the material.
class RulerTask {
 public:
  virtual ~RulerTask() = default;
  // Draws a question with a text of `size` units, least(index) <= size <= most(index).
  virtual RulerQuestion draw(int64_t index, int64_t size) const = 0;
  virtual int64_t least(int64_t index) const = 0;
  // Unlimited by default.
  virtual int64_t most(int64_t) const { return std::numeric_limits<int64_t>::max() / 4; }
};

enum class RulerNeeds { kEssay, kOwn, kSquad, kHotpotQa };

struct RulerKind {
  std::string name;
  std::vector<RulerNeeds> needs;  // files that the user must provide
  int64_t answer_tokens;          // reserved for the answer, and its maximum length
  bool any_reference;             // one of the references suffices
  std::function<std::unique_ptr<RulerTask>(const RulerOptions&, const RulerMaterial&)> open;

  bool needs_file(RulerNeeds what) const { return std::find(needs.begin(), needs.end(), what) != needs.end(); }
};

const std::vector<RulerKind>& ruler_kinds();
// Finds a task by its name, with or without RULER's prefix "niah_". InputError if unknown.
const RulerKind& ruler_kind(const std::string& name);

// The parts of ruler_kinds(): needles, chains of variables, common and frequent words, questions about documents.
std::vector<RulerKind> niah_kinds();
std::vector<RulerKind> variable_kinds();
std::vector<RulerKind> word_kinds();
std::vector<RulerKind> document_kinds();

// The questions of one task at one length, each with the longest text that fits.
class RulerQuestions {
 public:
  // Keeps a reference to `material`.
  RulerQuestions(const RulerKind& kind, RulerOptions options, const RulerMaterial& material);

  // nullopt if not even the shortest text fits.
  std::optional<RulerQuestion> make(int64_t index) const;
  RulerQuestion make(int64_t index, int64_t size) const { return task_->draw(index, size); }

  // Throws an InputError that says how many tokens the question's shortest text needs.
  [[noreturn]] void refuse(int64_t index) const;

 private:
  bool fits(int64_t index, int64_t size) const;
  std::optional<int64_t> largest_size(int64_t index, int64_t start) const;

  RulerKind kind_;
  RulerOptions options_;
  std::unique_ptr<RulerTask> task_;
  int64_t usual_size_;  // size of the first question, at which the search for the others begins
};

// The share of references that the answer contains; with any_reference, 1 if it contains one of them, else 0. As in
// RULER, case is ignored and control characters count as line ends.
double ruler_score(const std::string& answer, const std::vector<std::string>& references, bool any_reference);

// A line of the noise in RULER's texts.
inline constexpr const char* kRulerNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

}  // namespace cortado
