// Common and frequent words: which words occur most often in a long list?
#include <algorithm>
#include <numbers>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/tasks/ruler/ruler.h"

namespace cortado {

namespace {

constexpr int64_t kCommon = 10;  // number of words asked for

std::vector<std::string> lines_of(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  fail_input_if(words.empty(), "[", path, "] has no words");
  return words;
}

std::string numbered(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += concat(i ? " " : "", i + 1, ". ", words[i]);
  return text;
}

struct Repeats {
  int64_t common, others;
};

struct WordList {
  std::vector<std::string> entries, common;
};

// As in RULER, the permutation of the entries depends only on their number.
WordList draw_list(Draws& draws, const RandomStream& order, const RulerWords& words, int64_t size, Repeats repeats) {
  WordList list;
  std::vector<std::string> entries;
  for (const int64_t word : draws.distinct(size, std::max(size, words.single()))) {
    const bool common = int64_t(list.common.size()) < kCommon;
    const std::string text = words.word(word);
    if (common) list.common.push_back(text);
    entries.insert(entries.end(), size_t(common ? repeats.common : repeats.others), text);
  }
  for (const int64_t place : order.permutation(int64_t(entries.size()), 0)) {
    list.entries.push_back(entries[size_t(place)]);
  }
  return list;
}

class CommonWords : public RulerTask {
 public:
  CommonWords(const RulerOptions& options, const RulerMaterial& material)
      : words_(material.words),
        short_(options.length < 4096),
        random_(static_cast<uint64_t>(options.seed), concat("ruler cwe ", options.length)),
        order_(static_cast<uint64_t>(options.seed), "ruler cwe order") {}

  int64_t least(int64_t) const override { return kCommon + 1; }
  int64_t most(int64_t) const override { return words_.all(); }

  RulerQuestion draw(int64_t index, int64_t size) const override {
    Draws draws(random_, index);
    const auto example = draw_list(draws, order_, words_, short_ ? 20 : 40, short_ ? Repeats{3, 1} : Repeats{10, 3});
    const auto list = draw_list(draws, order_, words_, size, short_ ? Repeats{6, 1} : Repeats{30, 3});
    RulerQuestion question;
    question.size = size;
    question.references = list.common;
    question.answer_prefix = " Answer: The top 10 words that appear most often in the list are:";
    question.text =
        concat(text_about(example), question.answer_prefix, numbered(example.common), "\n", text_about(list));
    return question;
  }

 private:
  static std::string text_about(const WordList& list) {
    return concat(
        "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones "
        "that appear most often.\n",
        numbered(list.entries), "\nQuestion: What are the 10 most common words in the above list?");
  }

  const RulerWords& words_;
  bool short_;
  RandomStream random_, order_;
};

// Made-up words; the word of rank k occurs N k^-2 / zeta(2) times. The first word is dots.
class FrequentWords : public RulerTask {
 public:
  explicit FrequentWords(const RulerOptions& options)
      : vocabulary_(std::max<int64_t>(8, (options.length - 50) / 50)),
        random_(static_cast<uint64_t>(options.seed), concat("ruler fwe ", options.length)),
        order_(static_cast<uint64_t>(options.seed), "ruler fwe order") {}

  int64_t least(int64_t) const override { return 73; }  // the fourth word must occur more often than the fifth

  RulerQuestion draw(int64_t index, int64_t size) const override {
    Draws draws(random_, index);
    const std::vector<std::string> words = vocabulary(draws);
    std::vector<std::string> entries;
    for (int64_t rank = 1; rank <= vocabulary_; ++rank) {
      const double share = 6 / (std::numbers::pi * std::numbers::pi * double(rank * rank));
      entries.insert(entries.end(), size_t(double(size) * share), words[size_t(rank - 1)]);
    }
    std::vector<std::string> text;
    for (const int64_t place : order_.permutation(int64_t(entries.size()), 0)) text.push_back(entries[size_t(place)]);
    RulerQuestion question;
    question.size = size;
    question.references = {words[1], words[2], words[3]};
    question.text = concat(
        "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
        "appeared coded words. ",
        joined(text, " "),
        "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently "
        "appeared words in the above coded text?");
    question.answer_prefix =
        " Answer: According to the coded text above, the three most frequently appeared words are:";
    return question;
  }

 private:
  std::vector<std::string> vocabulary(Draws& draws) const {
    std::vector<std::string> words = {"..."};
    std::set<std::string> known;
    while (int64_t(words.size()) < vocabulary_) {
      std::string word;
      for (int i = 0; i < 6; ++i) word += char('a' + draws.below(26));
      if (known.insert(word).second) words.push_back(word);
    }
    return words;
  }

  int64_t vocabulary_;
  RandomStream random_, order_;
};

}  // namespace

RulerWords RulerWords::read(const std::string& adjectives_file, const std::string& nouns_file) {
  return {lines_of(adjectives_file), lines_of(nouns_file)};
}

std::string RulerWords::word(int64_t index) const {
  const auto at = size_t(index), first = adjectives.size();
  if (at < first) return adjectives[at];
  if (index < single()) return nouns[at - first];
  const size_t pair = at - size_t(single());
  return concat(adjectives[pair / nouns.size()], "-", nouns[pair % nouns.size()]);
}

std::vector<RulerKind> word_kinds() {
  return {{"cwe",
           {},
           120,
           false,
           [](const RulerOptions& options, const RulerMaterial& material) {
             return std::make_unique<CommonWords>(options, material);
           }},
          {"fwe", {}, 50, false, [](const RulerOptions& options, const RulerMaterial&) {
             return std::make_unique<FrequentWords>(options);
           }}};
}

}  // namespace cortado
