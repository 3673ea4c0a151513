#include <gtest/gtest.h>

#include <filesystem>

#include "cortado/base/files.h"
#include "cortado/tasks/listops/expression.h"
#include "cortado/tasks/registry.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/statistics.h"

namespace cortado {
namespace {

std::unique_ptr<TaskExamples> listops(const std::string& settings) {
  return listops_task().open(parse_json(settings, "test"), "task");
}

int64_t value(const std::string& text) { return listops_value(listops_tokens(text).value()).value_or(-1); }

TEST(Listops, ValuesByHand) {
  EXPECT_EQ(value("[MAX 2 9 4 X"), 9);
  EXPECT_EQ(value("[MIN 2 9 4 X"), 2);
  EXPECT_EQ(value("[MED 2 9 4 X"), 4);
  EXPECT_EQ(value("[MED 3 4 X"), 3);      // 3.5, rounded down
  EXPECT_EQ(value("[MED 9 1 2 6 X"), 4);  // mean of 2 and 6
  EXPECT_EQ(value("[SM 7 8 9 X"), 4);
  EXPECT_EQ(value("[SM [MAX 1 2 X 3 [MIN 4 5 X X"), 9);
  EXPECT_EQ(value("7"), 7);
  for (const char* no : {"", "1 2", "[MAX X", "[MAX 1", "X", "1 X", "[MAX 1 X 2"}) EXPECT_EQ(value(no), -1) << no;
  EXPECT_FALSE(listops_tokens("[MAXI 1 X"));
}

TEST(Listops, TextsAreThoseOfThePublicFiles) {
  const auto tokens = listops_tokens("( ( ( [MAX 1 ) 2 ) ] )").value();
  EXPECT_EQ(tokens, (std::vector<int64_t>{kMax, 1, 2, kClose}));
  EXPECT_EQ(listops_source(tokens), "( ( ( [MAX 1 ) 2 ) ] )");
  EXPECT_EQ(listops_text(tokens), "[MAX 1 2 X");
  const std::string nested = "( ( ( [SM ( ( ( [MIN 3 ) 4 ) ] ) ) 5 ) ] )";
  EXPECT_EQ(listops_source(listops_tokens(nested).value()), nested);
}

TEST(Listops, DrawsAsThePublicGenerator) { testing::expect_published(*listops("{}")); }

TEST(Listops, FilesAreReadAsTheyWereWritten) {
  const TemporaryDirectory folder;
  const auto task = listops(R"({"examples": 5, "validation_examples": 3, "test_examples": 3})");
  listops_task().write(*task, folder.path(), 4);
  const auto again = listops(R"({"folder": ")" + folder.path() + "\"}");
  EXPECT_EQ(again->size(Split::kTrain), 4);
  EXPECT_EQ(again->size(Split::kTest), 3);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(again->example(Split::kValidation, i).tokens, task->example(Split::kValidation, i).tokens);
    EXPECT_EQ(again->example(Split::kValidation, i).label, task->example(Split::kValidation, i).label);
  }
}

TEST(Listops, FilesThatAreSomethingElseAreRefused) {
  const TemporaryDirectory folder;
  listops_task().write(*listops(R"({"examples": 2, "validation_examples": 2, "test_examples": 2})"), folder.path(), 4);
  const auto refused = [&](const std::string& text) {
    write_file(folder.path() + "/basic_val.tsv", text);
    return testing::error_of([&] { listops(R"({"folder": ")" + folder.path() + "\"}"); });
  };
  EXPECT_NE(refused("Source\tTarget\n( ( ( [MAX 1 ) 2 ) ] )\t1\n").find("line 2: the expression has another value"),
            std::string::npos);
  EXPECT_NE(refused("Source\tTarget\n( [MAX 1 )\t1\n").find("line 2: is not an expression"), std::string::npos);
  EXPECT_NE(refused("Source\tTarget\n1 2\n").find("a tab and a digit"), std::string::npos);
  EXPECT_NE(refused("1\t1\n").find("line 1: expected"), std::string::npos);
  EXPECT_NE(refused("Source\tTarget\n").find("has no examples"), std::string::npos);
  std::filesystem::remove(folder.path() + "/basic_val.tsv");
  EXPECT_NE(testing::error_of([&] { listops(R"({"folder": ")" + folder.path() + "\"}"); }).find("basic_val.tsv"),
            std::string::npos);
}

}  // namespace
}  // namespace cortado
