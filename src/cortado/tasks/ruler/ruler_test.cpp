#include "cortado/tasks/ruler/ruler.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/testing/errors.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado::ruler_test {

const RulerWords kWords = {{"quiet"}, {"river"}};
const std::string kNoiseLine = kRulerNoise;

std::string shipped(const std::string& name) { return std::string(std::getenv("CORTADO_SOURCE")) + "/data/" + name; }

int64_t bytes(const RulerQuestion& question) {
  return static_cast<int64_t>(question.text.size() + question.answer_prefix.size());
}

// Counts one token per byte.
RulerQuestions questions(const std::string& task, int64_t length, const RulerMaterial& material, int64_t seed = 42) {
  return {ruler_kind(task), {length, seed, bytes}, material};
}

RulerMaterial material(const Essay& essay) { return {kWords, essay, {}, {}, {}}; }

// The words in data/, and Tiny Shakespeare as the essay.
const RulerMaterial& shipped_material() {
  static const RulerMaterial all = {
      RulerWords::read(shipped("words/adjectives.txt"), shipped("words/nouns.txt")),
      Essay(read_file(shipped("tinyshakespeare.txt"))),
      {{"The key of {key} is {value}.", "What is the key of {key}?", "The key of {key} is"}},
      {},
      {}};
  return all;
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
  const RulerMaterial none = material({});
  const auto question = questions("single_1", 4096, none).make(3, 2);
  const std::string needle = "One of the special magic numbers for quiet-river is: " + question.references[0] + ".";
  const std::string head =
      "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the "
      "number afterwards.\n";
  const std::string tail = "\nWhat is the special magic number for quiet-river mentioned in the provided text?";
  const std::string first = head + needle + "\n" + kNoiseLine + "\n" + kNoiseLine + tail;
  const std::string second = head + kNoiseLine + "\n" + needle + "\n" + kNoiseLine + tail;
  EXPECT_EQ(question.text, question.depths[0] == 0 ? first : second);
  EXPECT_EQ(question.answer_prefix, " The special magic number for quiet-river mentioned in the provided text is");
  EXPECT_TRUE(std::regex_match(question.references[0], std::regex("[1-9][0-9]{6}"))) << question.references[0];
}

TEST(Niah, ExactTextOfTheEssayTask) {
  const RulerMaterial essay = material(Essay("One day\n it  rained. Then\tthe sun came. We went out."));
  const auto source = questions("single_3", 4096, essay);
  std::set<std::string> texts;
  for (int64_t i = 0; i < 400; ++i) {
    const auto question = source.make(i, 11);
    const std::string needle = "One of the special magic uuids for quiet-river is: " + question.references[0] + ".";
    std::vector<std::string> parts = {"One day it rained.", "Then the sun came.", "We went out."};
    const auto percent = static_cast<int64_t>(std::lround(question.depths[0] * 100));
    parts.insert(parts.begin() + 3 * percent / 100, needle);
    EXPECT_EQ(lines(question.text)[1], parts[0] + " " + parts[1] + " " + parts[2] + " " + parts[3]);
    EXPECT_EQ(lines(question.text).size(), 3u);
    EXPECT_EQ(lines(question.text)[2],
              "What is the special magic uuid for quiet-river mentioned in the provided text?");
    EXPECT_TRUE(std::regex_match(question.references[0],
                                 std::regex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")))
        << question.references[0];
    texts.insert(parts[0] == needle ? "first" : parts[3] == needle ? "last" : "inside");
  }
  EXPECT_EQ(texts, (std::set<std::string>{"first", "inside", "last"}));
}

TEST(Niah, ExactTextOfTheUsersOwnNeedles) {
  RulerMaterial essay = material(Essay("One day it rained. Then the sun came."));
  essay.own = {{"For {key}, dial {value}; {key} waits.", "What is dialled for {key}?", "For {key}, dial"},
               {"{value} is on the door of {key}.", "Which number is on the door of {key}?", "It is"}};
  const auto source = questions("own", 4096, essay);
  std::set<std::string> texts;
  for (int64_t i = 0; i < 200; ++i) {
    const auto question = source.make(i, 8);
    const std::string value = question.references[0];
    const bool first = question.answer_prefix == " For quiet-river, dial";
    const std::string needle =
        first ? "For quiet-river, dial " + value + "; quiet-river waits." : value + " is on the door of quiet-river.";
    const std::string asked =
        first ? "What is dialled for quiet-river?" : "Which number is on the door of quiet-river?";
    std::vector<std::string> parts = {"One day it rained.", "Then the sun came."};
    parts.insert(parts.begin() + 2 * std::lround(question.depths[0] * 100) / 100, needle);
    EXPECT_EQ(question.text, parts[0] + " " + parts[1] + " " + parts[2] + "\n" + asked);
    EXPECT_EQ(question.answer_prefix, first ? " For quiet-river, dial" : " It is");
    texts.insert(asked);
  }
  EXPECT_EQ(texts.size(), 2u);
}

TEST(Niah, OwnNeedlesAreReadWithWhatTheyNeed) {
  const TemporaryDirectory folder;
  const std::string file = folder.path() + "/needles.jsonl";
  const auto read = [&](const std::string& text) {
    write_file(file, text);
    return OwnNeedle::read(file);
  };
  const auto refused = [&](const std::string& text) { return testing::error_of([&] { read(text); }); };
  const std::string good = R"({"needle": "{key}: {value}", "question": "{key}?", "answer": "It is"})";
  const auto all = read(good + "\n\n" + good + "\n");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].needle, "{key}: {value}");
  EXPECT_EQ(all[1].answer, "It is");
  EXPECT_NE(refused("\n").find("no needles"), std::string::npos);
  EXPECT_NE(refused(good + "\n[1]").find("line 2"), std::string::npos);
  EXPECT_NE(refused("{").find("line 1"), std::string::npos);
  EXPECT_NE(refused(R"({"needle": "{key}: {value}", "question": "{key}?", "answer": 1})").find("answer"),
            std::string::npos);
  EXPECT_NE(refused(R"({"needle": "{key}", "question": "{key}?", "answer": ""})").find("{value}"), std::string::npos);
  EXPECT_NE(refused(R"({"needle": "{value}", "question": "{key}?", "answer": ""})").find("{key}"), std::string::npos);
  EXPECT_NE(refused(R"({"needle": "{key}{value}", "question": "What?", "answer": ""})").find("question"),
            std::string::npos);
  EXPECT_NE(refused(R"({"needle": "{key}{value}", "question": "{key}?", "answer": "{value}"})").find("must not"),
            std::string::npos);
}

TEST(Niah, NoiseNeedleStandsBeforeAnyLineWithTheSameProbability) {
  const RulerMaterial none = material({});
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

TEST(Ruler, TheLongestTextThatFits) {
  for (const auto& kind : ruler_kinds()) {
    if (kind.needs_file(RulerNeeds::kSquad) || kind.needs_file(RulerNeeds::kHotpotQa)) continue;
    for (const int64_t length : {2048, 8192}) {
      const auto source = questions(kind.name, length, shipped_material());
      for (int64_t i = 0; i < 4; ++i) {
        const auto question = source.make(i);
        ASSERT_TRUE(question) << kind.name << " " << length;
        EXPECT_LE(bytes(*question) + kind.answer_tokens, length);
        EXPECT_GT(bytes(source.make(i, question->size + 1)) + kind.answer_tokens, length) << kind.name;
        EXPECT_EQ(source.make(i, question->size).text, question->text);
      }
    }
  }
}

TEST(Ruler, TooShortALengthSaysWhatItNeeds) {
  const RulerMaterial none = material({});
  const auto source = questions("single_1", 300, none);
  EXPECT_FALSE(source.make(0));
  try {
    source.refuse(0);
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("300 tokens has no room for single_1"), std::string::npos) << error.what();
  }
  EXPECT_THROW(questions("single_2", 4096, none).make(0), InputError);
  EXPECT_THROW(ruler_kind("single_4"), InputError);
  EXPECT_EQ(ruler_kind("niah_multikey_1").name, "multikey_1");
  EXPECT_EQ(ruler_kinds().size(), 14u);  // RULER's thirteen, and `own`
}

TEST(Ruler, AFunctionOfSeedTaskLengthAndIndex) {
  for (const auto& kind : ruler_kinds()) {
    if (kind.needs_file(RulerNeeds::kSquad) || kind.needs_file(RulerNeeds::kHotpotQa)) continue;
    std::set<std::string> values;
    for (const int64_t seed : {1, 2}) {
      for (const int64_t length : {3000, 3500}) {
        const auto source = questions(kind.name, length, shipped_material(), seed);
        const auto again = questions(kind.name, length, shipped_material(), seed);
        const auto last = again.make(2);  // in another order than below
        for (int64_t i = 0; i < 3; ++i) values.insert(joined(source.make(i)->references, " "));
        EXPECT_EQ(source.make(2)->text, last->text);
      }
    }
    EXPECT_EQ(values.size(), 12u) << kind.name;
  }
}

// These questions must not change: result files of earlier versions can be continued.
TEST(Niah, TheQuestionsThatEarlierResultsAnswer) {
  const auto key = [](const RulerQuestion& question) {
    const size_t begin = question.answer_prefix.find(" for ") + 5;
    return question.answer_prefix.substr(begin, question.answer_prefix.find(" mentioned") - begin);
  };
  const auto one = questions("single_1", 4096, shipped_material()).make(7, 30);
  const auto two = questions("single_2", 4096, shipped_material()).make(7, 30);
  const auto three = questions("single_3", 4096, shipped_material()).make(7, 30);
  EXPECT_EQ(concat(key(one), " ", one.references[0], " ", one.depths[0]), "watery-otter 4254211 0.1");
  EXPECT_EQ(concat(key(two), " ", two.references[0], " ", two.depths[0]), "wet-bagel 2197294 0.74");
  EXPECT_EQ(concat(key(three), " ", three.references[0], " ", three.depths[0]),
            "crystal-kitchen 3ae36e0d-4781-46a9-9242-62b8daba9024 0.31");
}

TEST(Niah, SeveralKeysAndValues) {
  const RulerMaterial& all = shipped_material();
  const auto needles_in = [](const std::string& text) {
    std::vector<std::pair<std::string, std::string>> found;
    const std::regex needle("One of the special magic (?:number|uuid)s for (\\S+) is: (\\S+)\\.");
    for (std::sregex_iterator at(text.begin(), text.end(), needle), end; at != end; ++at) {
      found.emplace_back((*at)[1], (*at)[2]);
    }
    return found;
  };
  for (int64_t i = 0; i < 20; ++i) {
    const auto keys = questions("multikey_1", 6000, all).make(i, 300);
    EXPECT_EQ(needles_in(keys.text).size(), 4u);
    EXPECT_EQ(keys.references.size(), 1u);
    EXPECT_TRUE(keys.text.starts_with("A special magic number is hidden"));
    const auto values = questions("multivalue", 6000, all).make(i, 300);
    const auto hidden = needles_in(values.text);
    ASSERT_EQ(hidden.size(), 4u);
    EXPECT_EQ(std::set<std::string>(values.references.begin(), values.references.end()).size(), 4u);
    for (const auto& [key, value] : hidden) {
      EXPECT_EQ(key, hidden[0].first);
      EXPECT_NE(std::find(values.references.begin(), values.references.end(), value), values.references.end());
    }
    EXPECT_TRUE(values.text.ends_with("\nWhat are all the special magic numbers for " + hidden[0].first +
                                      " mentioned in the provided text?"));
    EXPECT_EQ(values.answer_prefix,
              " The special magic numbers for " + hidden[0].first + " mentioned in the provided text are");
    const auto queries = questions("multiquery", 6000, all).make(i, 300);
    EXPECT_TRUE(std::regex_search(queries.text, std::regex("numbers for \\S+, \\S+, \\S+, and \\S+ mentioned")));
    EXPECT_TRUE(queries.text.starts_with("Some special magic numbers are hidden within"));
    EXPECT_EQ(queries.references.size(), 4u);
    EXPECT_EQ(queries.depths.size(), 4u);
    for (const char* task : {"multikey_2", "multikey_3"}) {
      const auto among = questions(task, 6000, all).make(i, 50);
      const auto all_needles = needles_in(among.text);
      EXPECT_EQ(all_needles.size(), 51u);
      EXPECT_EQ(lines(among.text).size(), 53u);
      const auto right = std::count_if(all_needles.begin(), all_needles.end(), [&](const auto& needle) {
        return among.answer_prefix.find(" for " + needle.first + " ") != std::string::npos;
      });
      EXPECT_EQ(right, 1);
      EXPECT_EQ(all_needles[0].first.size() == 36, std::string(task) == "multikey_3");
    }
  }
}

// There are only two keys: all needles except one have the key that is not asked for.
TEST(Niah, NobodyElseHasTheKeyThatIsAskedFor) {
  const RulerMaterial two = {
      .words = {{"quiet"}, {"river", "sea"}}, .essay = {}, .own = {}, .squad = {}, .hotpotqa = {}};
  const auto source = questions("multikey_2", 6000, two);
  for (int64_t i = 0; i < 10; ++i) {
    const auto question = source.make(i, 20);
    const std::string asked = question.answer_prefix.find("river") != std::string::npos ? "river" : "sea";
    const std::regex needle("for quiet-" + asked + " is: ");
    const std::sregex_iterator begin(question.text.begin(), question.text.end(), needle), end;
    EXPECT_EQ(std::distance(begin, end), 1);
  }
}

TEST(Niah, WhichOfFourKeysIsAskedForIsDrawn) {
  std::vector<int> counts(4);
  const auto source = questions("multikey_1", 6000, shipped_material());
  for (int64_t i = 0; i < 400; ++i) {
    const auto question = source.make(i, 400);
    size_t rank = 0;  // number of needles before the one asked for
    for (size_t at = question.text.find("One of the special"); at < question.text.find(question.references[0]);
         at = question.text.find("One of the special", at + 1)) {
      ++rank;
    }
    ++counts[rank - 1];
  }
  for (const int count : counts) EXPECT_NEAR(count, 100, 35);
}

TEST(Variables, AChainAndAnExampleBeforeIt) {
  const auto source = questions("vt", 6000, shipped_material());
  std::set<std::string> examples;
  for (int64_t i = 0; i < 50; ++i) {
    const auto question = source.make(i, 20);
    const size_t begin = question.text.rfind("Memorize and track");
    const std::string example = question.text.substr(0, begin), asked = question.text.substr(begin);
    EXPECT_TRUE(example.ends_with("\n\n\n\n"));
    examples.insert(example);
    // Follows the chain of assignments through the text.
    std::smatch first;
    ASSERT_TRUE(std::regex_search(asked, first, std::regex("VAR ([A-Z]{5}) = (\\d{5})\n")));
    std::vector<std::string> chain = {first[1]};
    for (std::smatch next;
         std::regex_search(asked, next, std::regex("VAR ([A-Z]{5}) = VAR " + chain.back() + " \n"));) {
      EXPECT_GT(asked.find(next.str()), asked.find("VAR " + chain.back() + " ="));
      chain.push_back(next[1]);
    }
    EXPECT_EQ(chain, question.references);
    EXPECT_EQ(chain.size(), 5u);
    EXPECT_TRUE(asked.ends_with("\nQuestion: Find all variables that are assigned the value " + first.str(2) +
                                " in the text above."));
    EXPECT_EQ(question.answer_prefix,
              " Answer: According to the chain(s) of variable assignment in the text above, 5 variables are assigned "
              "the value " +
                  first.str(2) + ", they are: ");
    EXPECT_EQ(lines(asked).size(), 2u + 20 + 5 + 1);
    EXPECT_TRUE(std::regex_search(example, std::regex("they are:  [A-Z]{3}( [A-Z]{3}){4}\n"))) << example;
    EXPECT_EQ(example.find(first.str(2)), std::string::npos);
  }
  EXPECT_EQ(examples.size(), 50u);
}

std::map<std::string, int64_t> counted(const std::string& text) {
  std::map<std::string, int64_t> counts;
  std::istringstream words(text);
  for (std::string word; words >> word;) ++counts[word];
  return counts;
}

TEST(Words, TheCommonOnesOccurAsOftenAsInRuler) {
  for (const auto& [length, common, others] : {std::tuple{4096, 30, 3}, {2048, 6, 1}}) {
    const auto source = questions("cwe", length, shipped_material());
    for (int64_t i = 0; i < 10; ++i) {
      const auto question = source.make(i, 60);
      const size_t begin = question.text.rfind("Below is"),
                   end = question.text.rfind("\nQuestion: What are the 10 most");
      auto counts =
          counted(question.text.substr(question.text.find('\n', begin), end - question.text.find('\n', begin)));
      std::erase_if(counts, [](const auto& entry) { return entry.first.ends_with("."); });  // the numbers of the list
      EXPECT_EQ(counts.size(), 60u);
      for (const auto& [word, count] : counts) {
        const bool asked =
            std::find(question.references.begin(), question.references.end(), word) != question.references.end();
        EXPECT_EQ(count, asked ? common : others) << word;
      }
      EXPECT_EQ(question.references.size(), 10u);
      EXPECT_NE(question.text.find("in the list are:1. "), std::string::npos);  // the example's answer
    }
  }
}

// The word of rank k occurs floor(N / (zeta(2) k^2)) times; the first is dots.
TEST(Words, TheFrequentOnesFollowTheZetaDistribution) {
  const auto source = questions("fwe", 4096, shipped_material());
  for (int64_t i = 0; i < 10; ++i) {
    const auto question = source.make(i, 1000);
    const size_t begin = question.text.find("coded words. ") + 13;
    const auto counts = counted(question.text.substr(begin, question.text.find("\nQuestion") - begin));
    EXPECT_EQ(counts.at("..."), 607);
    EXPECT_EQ(counts.at(question.references[0]), 151);
    EXPECT_EQ(counts.at(question.references[1]), 67);
    EXPECT_EQ(counts.at(question.references[2]), 37);
    EXPECT_EQ(counts.size(), 24u);  // 1000 / (1.645 * 24^2) = 1.06; rank 25 has less than one
    for (const auto& [word, count] : counts) EXPECT_TRUE(word == "..." || word.size() == 6);
  }
}

std::string written(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + name;
  write_file(path, text);
  return path;
}

TEST(QuestionsAboutDocuments, Squad) {
  const std::string path = written("squad.json", R"({"version": "v2.0", "data": [
    {"title": "A", "paragraphs": [
      {"context": "Red is a colour.", "qas": [
        {"question": "What is red?", "id": "1", "is_impossible": false,
         "answers": [{"text": "a colour", "answer_start": 7}, {"text": "colour", "answer_start": 9}]},
        {"question": "Who?", "id": "2", "is_impossible": true, "answers": [], "plausible_answers": []}]},
      {"context": "Blue is another.", "qas": []}]},
    {"title": "B", "paragraphs": [
      {"context": "A dog barks.", "qas": [{"question": "Who barks?", "id": "3", "is_impossible": false,
         "answers": [{"text": "A dog", "answer_start": 0}]}]},
      {"context": "Cats purr.", "qas": []}, {"context": "Fish swim.", "qas": []}]}]})");
  RulerMaterial all = material({});
  all.squad = Documents::squad(path);
  ASSERT_EQ(all.squad.questions.size(), 2u);
  const auto source = questions("qa_squad", 4096, all);
  const auto question = source.make(0, 2);
  EXPECT_EQ(question.references, (std::vector<std::string>{"a colour", "colour"}));
  const std::string head =
      "Answer the question based on the given documents. Only give me the answer and do not output any other words.";
  const auto with = [&](const std::string& first, const std::string& second) {
    return head + "\n\nThe following are given documents.\n\nDocument 1:\n" + first + "\n\nDocument 2:\n" + second +
           "\n\n" + head + "\n\nQuestion: What is red?";
  };
  // The question's paragraph and the other one of its article, in either order.
  EXPECT_TRUE(question.text == with("Red is a colour.", "Blue is another.") ||
              question.text == with("Blue is another.", "Red is a colour."))
      << question.text;
  EXPECT_EQ(question.answer_prefix, " Answer:");
  for (const int64_t seed : {1, 2, 3, 4, 5, 6}) {
    EXPECT_NE(questions("qa_squad", 4096, all, seed).make(0, 2).text.find("Blue is another."), std::string::npos);
  }
  const auto every = source.make(1);  // all documents fit
  EXPECT_EQ(every->size, 5);
  for (const auto& text : all.squad.texts) EXPECT_NE(every->text.find(":\n" + text), std::string::npos);
  EXPECT_THROW(source.make(2), InputError);
  EXPECT_FALSE(questions("qa_squad", 300, all).make(0));
}

TEST(QuestionsAboutDocuments, HotpotQa) {
  const std::string path = written("hotpot.json", R"([{"_id": "1", "question": "Which?", "answer": "yes",
    "supporting_facts": [["One", 0]], "type": "bridge", "level": "hard",
    "context": [["One", ["First. ", "Second."]], ["Two", ["Third."]]]}])");
  RulerMaterial all = material({});
  all.hotpotqa = Documents::hotpotqa(path);
  EXPECT_EQ(all.hotpotqa.texts, (std::vector<std::string>{"One\nFirst. Second.", "Two\nThird."}));
  const auto question = questions("qa_hotpot", 4096, all).make(0);
  EXPECT_EQ(question->size, 2);
  EXPECT_NE(question->text.find(":\nOne\nFirst. Second."), std::string::npos);
}

TEST(QuestionsAboutDocuments, FilesThatAreNotWhatTheyShouldBe) {
  EXPECT_THROW(Documents::squad(written("bad.json", "{\"data\": [{\"title\": 1}]}")), InputError);
  EXPECT_THROW(Documents::squad(written("bad.json", "{\"data\": []}")), InputError);
  EXPECT_THROW(Documents::squad(written("bad.json", "{\"data\"")), InputError);
  EXPECT_THROW(Documents::hotpotqa(written("bad.json", "[{\"question\": 3}]")), InputError);
  EXPECT_THROW(Documents::hotpotqa(written("bad.json", "{}")), InputError);
  EXPECT_THROW(Documents::hotpotqa("/no/such/file.json"), InputError);
}

TEST(Ruler, ShippedWordsAreManyPlainAndUnique) {
  const auto words = RulerWords::read(shipped("words/adjectives.txt"), shipped("words/nouns.txt"));
  for (const auto& list : {words.adjectives, words.nouns}) {
    EXPECT_GE(list.size(), 700u);
    EXPECT_EQ(std::set<std::string>(list.begin(), list.end()).size(), list.size());
    for (const auto& word : list) EXPECT_TRUE(std::regex_match(word, std::regex("[a-z]+"))) << word;
  }
}

TEST(Ruler, Scoring) {
  const auto right = [](const std::string& answer, const std::string& value) {
    return ruler_score(answer, {value}, false) == 1;
  };
  EXPECT_TRUE(right(" 1234567.", "1234567"));
  EXPECT_TRUE(right("the number is\t1234567", "1234567"));
  EXPECT_TRUE(right("AB12-CD", "ab12-cd"));
  EXPECT_TRUE(
      right("\x01"
            "1234567\x02",
            "1234567"));
  EXPECT_FALSE(
      right("123\x01"
            "4567",
            "1234567"));
  EXPECT_FALSE(right("123456", "1234567"));
  EXPECT_FALSE(right("", "1234567"));
  EXPECT_EQ(ruler_score("12 and 34", {"12", "34", "56", "78"}, false), 0.5);
  EXPECT_EQ(ruler_score("12 and 34", {"12", "34", "56", "78"}, true), 1);
  EXPECT_EQ(ruler_score("nothing", {"12", "34"}, true), 0);
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

}  // namespace cortado::ruler_test
