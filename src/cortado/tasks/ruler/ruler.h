// RULER's thirteen questions about long texts (README.md): a text of any length, a question about it, the answers.
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

// --- What the questions are made from: words, a long text, documents with questions about them. ---

// Adjectives and nouns, one a line.
struct RulerWords {
  std::vector<std::string> adjectives, nouns;

  static RulerWords read(const std::string& adjectives_file, const std::string& nouns_file);
  // Each word once, and behind them every adjective with every noun, joined by a hyphen.
  std::string word(int64_t index) const;
  int64_t single() const { return int64_t(adjectives.size() + nouns.size()); }
  int64_t all() const { return single() + int64_t(adjectives.size() * nouns.size()); }
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

// Questions about documents, in the order of their file.
struct Documents {
  struct Question {
    std::string text;
    std::vector<std::string> answers;  // any of them is right
    std::vector<int64_t> gold;         // the documents that belong to it
    std::vector<int64_t> related;      // others of the same article
  };
  std::vector<std::string> texts;  // each once, sorted
  std::vector<Question> questions;

  // SQuAD 2.0's JSON (dev-v2.0.json): its paragraphs, and the questions that have an answer.
  static Documents squad(const std::string& file);
  // HotpotQA's JSON with distractors (hotpot_dev_distractor_v1.json).
  static Documents hotpotqa(const std::string& file);
};

// A needle in words of the user's: "{key}" and "{value}" stand for what is drawn.
struct OwnNeedle {
  std::string needle, question, answer;  // the sentence, what is asked, how the answer begins

  // JSON Lines with these three names. InputError: another form, or a place for the key or value is missing.
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
  std::string text;                     // what the user says: the long text and the question
  std::string answer_prefix;            // how the answer begins
  std::vector<std::string> references;  // what the answer has to contain
  std::vector<double> depths;  // where in the text the references are, 0 to 1; empty where they are all over it
  int64_t size = 0;            // of the text, in the task's units
};

// Tokens of a question's whole prompt, as the model will read it.
using RulerCount = std::function<int64_t(const RulerQuestion&)>;

struct RulerOptions {
  int64_t length = 4096;  // tokens of prompt and answer
  int64_t seed = 42;
  RulerCount count;
};

// One of the tasks, at one length. Questions are functions of (seed, task, length, index) and the material.
class RulerTask {
 public:
  virtual ~RulerTask() = default;
  // With a text of `size` units, least(index) <= size <= most(index).
  virtual RulerQuestion draw(int64_t index, int64_t size) const = 0;
  virtual int64_t least(int64_t index) const = 0;
  // No limit unless a task has one.
  virtual int64_t most(int64_t) const { return std::numeric_limits<int64_t>::max() / 4; }
};

enum class RulerNeeds { kEssay, kOwn, kSquad, kHotpotQa };

struct RulerKind {
  std::string name;
  std::vector<RulerNeeds> needs;  // files of the user's
  int64_t answer_tokens;          // kept free for the answer, and at most written
  bool any_reference;             // one of the references is enough
  std::function<std::unique_ptr<RulerTask>(const RulerOptions&, const RulerMaterial&)> open;

  bool needs_file(RulerNeeds what) const { return std::find(needs.begin(), needs.end(), what) != needs.end(); }
};

const std::vector<RulerKind>& ruler_kinds();
// With or without RULER's "niah_" before it. InputError: unknown.
const RulerKind& ruler_kind(const std::string& name);

// The parts of ruler_kinds(): needles; chains of variables; common and frequent words; questions about documents.
std::vector<RulerKind> niah_kinds();
std::vector<RulerKind> variable_kinds();
std::vector<RulerKind> word_kinds();
std::vector<RulerKind> document_kinds();

// The questions of one task and length, each with the longest text that fits.
class RulerQuestions {
 public:
  // Keeps a reference to the material.
  RulerQuestions(const RulerKind& kind, RulerOptions options, const RulerMaterial& material);

  // Nothing where not even the shortest text fits.
  std::optional<RulerQuestion> make(int64_t index) const;
  RulerQuestion make(int64_t index, int64_t size) const { return task_->draw(index, size); }

  // InputError that says how much the question's shortest text needs.
  [[noreturn]] void refuse(int64_t index) const;

 private:
  bool fits(int64_t index, int64_t size) const;
  std::optional<int64_t> largest_size(int64_t index, int64_t start) const;

  RulerKind kind_;
  RulerOptions options_;
  std::unique_ptr<RulerTask> task_;
  int64_t usual_size_;  // the first question's, where the search for the others begins
};

// The share of the references that occur in the answer, or 1 where one of them does and one is enough, as RULER reads
// an answer: upper and lower case alike, control characters as ends of lines.
double ruler_score(const std::string& answer, const std::vector<std::string>& references, bool any_reference);

// What the noise of RULER's texts says, a line at a time.
inline constexpr const char* kRulerNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

}  // namespace cortado
