// What RULER's questions are made from: words, a long text, documents with questions about them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cortado {

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

struct RulerMaterial {
  RulerWords words;
  Essay essay;
  Documents squad, hotpotqa;
};

}  // namespace cortado
