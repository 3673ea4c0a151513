#include <gtest/gtest.h>

#include "cortado/base/files.h"
#include "cortado/tasks/registry.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

class Retrieval : public ::testing::Test {
 protected:
  Retrieval() {
    for (const char* split : {"train", "eval", "test"}) {
      write(split, "1.0\tA\tB\tone \"quoted\" text\tanother\n0.0\tA\tC\tx\ty");
    }
  }
  void write(const std::string& split, const std::string& text) const {
    write_file(folder_.path() + "/new_aan_pairs." + split + ".tsv", text);
  }
  std::unique_ptr<TaskExamples> open(int64_t length = 4000) const {
    return retrieval_task().open({{"folder", folder_.path()}, {"length", length}}, "task");
  }
  std::string refused(const std::string& text) const {
    write("eval", text);
    return testing::error_of([&] { open(); });
  }
  TemporaryDirectory folder_;
};

TEST_F(Retrieval, PairsAreBytesOfBothTexts) {
  const auto task = open(4);
  EXPECT_TRUE(task->shape().pairs);
  EXPECT_EQ(task->size(Split::kValidation), 2);
  const Example cited = task->example(Split::kTrain, 0), other = task->example(Split::kTest, 1);
  EXPECT_EQ(cited.tokens, (std::vector<int64_t>{'o', 'n', 'e', ' '}));
  EXPECT_EQ(cited.second, (std::vector<int64_t>{'a', 'n', 'o', 't'}));
  EXPECT_EQ(cited.label, 1);
  EXPECT_EQ(other.second, (std::vector<int64_t>{'y'}));
  EXPECT_EQ(other.label, 0);
}

TEST_F(Retrieval, OtherFilesAreRefused) {
  EXPECT_NE(testing::error_of([] { retrieval_task().open(Json::object(), "task"); }).find("lra_release"),
            std::string::npos);
  EXPECT_NE(refused("1.0\tA\tB\tx\ty\n1.0\tA\tB\tx").find("line 2: expected 5 columns"), std::string::npos);
  EXPECT_NE(refused("1\tA\tB\tx\ty").find("line 1: the label must be 0.0 or 1.0"), std::string::npos);
  EXPECT_NE(refused("1.0\tA\tB\tx\t").find("line 1: a text is empty"), std::string::npos);
  EXPECT_NE(refused("").find("has no pairs"), std::string::npos);
}

}  // namespace
}  // namespace cortado
