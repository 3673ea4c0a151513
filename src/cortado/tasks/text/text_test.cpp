#include <gtest/gtest.h>

#include <filesystem>

#include "cortado/base/files.h"
#include "cortado/tasks/registry.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

class Text : public ::testing::Test {
 protected:
  Text() {
    for (const char* split : {"train", "test"}) {
      write("/" + std::string(split) + "/pos/0_9.txt", "good<br />film");
      write("/" + std::string(split) + "/neg/3_1.txt",
            "b\xC3\xA4"
            "d");
    }
    write("/train/unsup/0_0.txt", "not read");
  }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_.path() + name).parent_path());
    write_file(folder_.path() + name, text);
  }
  std::unique_ptr<TaskExamples> open(int64_t length = 4000) const {
    return text_task().open({{"folder", folder_.path()}, {"length", length}}, "task");
  }
  TemporaryDirectory folder_;
};

TEST_F(Text, ReviewsAreBytes) {
  const auto task = open();
  EXPECT_EQ(task->size(Split::kTrain), 2);
  EXPECT_EQ(task->size(Split::kValidation), task->size(Split::kTest));
  const Example bad = task->example(Split::kTrain, 0), good = task->example(Split::kTrain, 1);
  EXPECT_EQ(bad.tokens, (std::vector<int64_t>{'b', 0xC3, 0xA4, 'd'}));
  EXPECT_EQ(bad.label, 0);
  EXPECT_EQ(good.label, 1);
  EXPECT_EQ(good.tokens.size(), 14u);
  EXPECT_EQ(open(4)->example(Split::kTest, 1).tokens, (std::vector<int64_t>{'g', 'o', 'o', 'd'}));
}

TEST_F(Text, OtherFoldersAreRefused) {
  EXPECT_NE(testing::error_of([] { text_task().open(Json::object(), "task"); }).find("ai.stanford.edu"),
            std::string::npos);
  write("/train/pos/0_2.txt", "rated 2");
  EXPECT_NE(testing::error_of([&] { open(); }).find("\"0_2.txt\" is not named as a good review is"), std::string::npos);
  std::filesystem::remove(folder_.path() + "/train/pos/0_2.txt");
  write("/test/pos/0_9.txt", "");
  EXPECT_NE(testing::error_of([&] { open()->example(Split::kTest, 1); }).find("is empty"), std::string::npos);
  std::filesystem::remove_all(folder_.path() + "/test/neg");
  EXPECT_NE(testing::error_of([&] { open(); }).find("is this aclImdb?"), std::string::npos);
}

}  // namespace
}  // namespace cortado
