#include "cortado/tasks/niah.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado::niah_test {

const NiahWords kWords = {{"quiet"}, {"river"}};
const std::string kNoiseLine =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

std::string shipped(const std::string& name) { return std::string(std::getenv("CORTADO_SOURCE")) + "/data/" + name; }

int64_t bytes(const NiahQuestion& question) {
  return static_cast<int64_t>(question.text.size() + question.answer_prefix.size());
}

NiahQuestions questions(const std::string& task, int64_t length, const Essay& essay, int64_t seed = 42) {
  return {{niah_task(task), length, 128, seed}, kWords, essay, bytes};
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> found(1);
  for (const char c : text) {
    if (c == '\n') {
      found.emplace_back();
    } else {
      found.back() += c;
    }
  }
  return found;
}

TEST(Niah, ExactTextOfTheNoiseTask) {
  const Essay none;
  const auto question = questions("single_1", 4096, none).make(3, 2);
  const std::string needle = "One of the special magic numbers for quiet-river is: " + question.value + ".";
  const std::string head =
      "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the "
      "number afterwards.\n";
  const std::string tail = "\nWhat is the special magic number for quiet-river mentioned in the provided text?";
  const std::string first = head + needle + "\n" + kNoiseLine + "\n" + kNoiseLine + tail;
  const std::string second = head + kNoiseLine + "\n" + needle + "\n" + kNoiseLine + tail;
  EXPECT_EQ(question.text, question.depth == 0 ? first : second);
  EXPECT_EQ(question.answer_prefix, " The special magic number for quiet-river mentioned in the provided text is");
  EXPECT_TRUE(std::regex_match(question.value, std::regex("[1-9][0-9]{6}"))) << question.value;
}

TEST(Niah, ExactTextOfTheEssayTask) {
  const Essay essay("One day\n it  rained. Then\tthe sun came. We went out.");
  const auto source = questions("single_3", 4096, essay);
  std::set<std::string> texts;
  for (int64_t i = 0; i < 400; ++i) {
    const auto question = source.make(i, 11);
    const std::string needle = "One of the special magic uuids for quiet-river is: " + question.value + ".";
    std::vector<std::string> parts = {"One day it rained.", "Then the sun came.", "We went out."};
    const auto percent = static_cast<int64_t>(std::lround(question.depth * 100));
    parts.insert(parts.begin() + 3 * percent / 100, needle);
    EXPECT_EQ(lines(question.text)[1], parts[0] + " " + parts[1] + " " + parts[2] + " " + parts[3]);
    EXPECT_EQ(lines(question.text).size(), 3u);
    EXPECT_EQ(lines(question.text)[2],
              "What is the special magic uuid for quiet-river mentioned in the provided text?");
    EXPECT_TRUE(std::regex_match(question.value,
                                 std::regex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")))
        << question.value;
    texts.insert(parts[0] == needle ? "first" : parts[3] == needle ? "last" : "inside");
  }
  EXPECT_EQ(texts, (std::set<std::string>{"first", "inside", "last"}));
}

TEST(Niah, NoiseNeedleStandsBeforeAnyLineWithTheSameProbability) {
  const Essay none;
  const auto source = questions("single_1", 4096, none);
  std::vector<int> counts(5);
  for (int64_t i = 0; i < 1000; ++i) {
    const auto all = lines(source.make(i, 5).text);
    ASSERT_EQ(all.size(), 8u);
    const auto found =
        std::find_if(all.begin(), all.end(), [](const auto& line) { return line.starts_with("One of"); });
    const auto place = static_cast<size_t>(found - all.begin()) - 1;
    ASSERT_LT(place, 5u);
    ++counts[place];
  }
  for (const int count : counts) EXPECT_NEAR(count, 200, 60);
}

TEST(Niah, TheLargestHaystackThatFits) {
  const Essay essay(read_file(shipped("tinyshakespeare.txt")));
  for (const auto& task : niah_tasks()) {
    for (const int64_t length : {640, 1024, 5000}) {
      const auto source = questions(task.name, length, essay);
      for (int64_t i = 0; i < 5; ++i) {
        const auto question = source.make(i);
        EXPECT_LE(bytes(question) + 128, length);
        EXPECT_GT(bytes(source.make(i, question.size + 1)) + 128, length);
        EXPECT_EQ(source.make(i, question.size).text, question.text);
      }
    }
  }
}

TEST(Niah, TooShortALengthSaysWhatItNeeds) {
  const Essay none;
  const auto source = questions("single_1", 300, none);
  try {
    source.make(0);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("300 tokens has no room for single_1"), std::string::npos) << error.what();
  }
  EXPECT_THROW(questions("single_2", 4096, none).make(0), InputError);
  EXPECT_THROW(niah_task("single_4"), InputError);
}

TEST(Niah, AFunctionOfSeedTaskLengthAndIndex) {
  const Essay essay(read_file(shipped("tinyshakespeare.txt")));
  std::set<std::string> values;
  for (const int64_t seed : {1, 2}) {
    for (const char* task : {"single_1", "single_2"}) {
      for (const int64_t length : {1000, 2000}) {
        const auto source = questions(task, length, essay, seed), again = questions(task, length, essay, seed);
        const auto last = again.make(2);  // in another order
        for (int64_t i = 0; i < 3; ++i) values.insert(source.make(i).value);
        EXPECT_EQ(source.make(2).text, last.text);
      }
    }
  }
  EXPECT_EQ(values.size(), 24u);
}

TEST(Niah, ShippedWordsAreManyPlainAndUnique) {
  const auto words = NiahWords::read(shipped("words/adjectives.txt"), shipped("words/nouns.txt"));
  for (const auto& list : {words.adjectives, words.nouns}) {
    EXPECT_GE(list.size(), 700u);
    EXPECT_EQ(std::set<std::string>(list.begin(), list.end()).size(), list.size());
    for (const auto& word : list) EXPECT_TRUE(std::regex_match(word, std::regex("[a-z]+"))) << word;
  }
}

TEST(Niah, ScoringAsInRuler) {
  EXPECT_TRUE(niah_correct(" 1234567.", "1234567"));
  EXPECT_TRUE(niah_correct("the number is\t1234567", "1234567"));
  EXPECT_TRUE(niah_correct("AB12-CD", "ab12-cd"));
  EXPECT_TRUE(
      niah_correct("\x01"
                   "1234567\x02",
                   "1234567"));
  EXPECT_FALSE(
      niah_correct("123\x01"
                   "4567",
                   "1234567"));
  EXPECT_FALSE(niah_correct("123456", "1234567"));
  EXPECT_FALSE(niah_correct("", "1234567"));
}

TEST(Essay, Sentences) {
  using Sentences = std::vector<std::string>;
  EXPECT_EQ(Essay("A b. C d? e f! G").sentences(7), (Sentences{"A b.", "C d?", "e f!", "G"}));
  EXPECT_EQ(Essay("He met Dr. J. Smith, i.e. the other. 3 left.").sentences(10),
            (Sentences{"He met Dr. J. Smith, i.e. the other.", "3 left."}));
  EXPECT_EQ(Essay("\"Go.\" (He went.) \u201cYes.\u201d Then it ended... slowly.").sentences(8),
            (Sentences{"\"Go.\"", "(He went.)", "\u201cYes.\u201d", "Then it ended... slowly."}));
}

TEST(Essay, BeginsAgainWhereItEnds) {
  const Essay essay("Here we go. There");
  EXPECT_EQ(essay.sentences(2), (std::vector<std::string>{"Here we"}));
  EXPECT_EQ(essay.sentences(9), (std::vector<std::string>{"Here we go.", "There Here we go.", "There Here"}));
  EXPECT_THROW(Essay(" \n\t"), InputError);
}

}  // namespace cortado::niah_test
