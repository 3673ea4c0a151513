#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "cortado/base/files.h"
#include "cortado/tasks/registry.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

// A record of an image of one colour.
std::string record(int label, int red, int green, int blue) {
  std::string bytes(1, char(label));
  for (const int light : {red, green, blue}) bytes += std::string(1024, char(light));
  return bytes;
}

class Image : public ::testing::Test {
 protected:
  Image() {
    for (int part = 1; part <= 5; ++part) {
      std::string bytes;
      for (int i = 0; i < 4; ++i) bytes += record(i, 4 * part + i, 0, 0);
      write_file(file("data_batch_" + std::to_string(part)), bytes);
    }
    write_file(file("test_batch"), record(7, 255, 0, 0) + record(8, 10, 200, 99));
  }
  std::string file(const std::string& name) const { return folder_.path() + "/" + name + ".bin"; }
  std::unique_ptr<TaskExamples> open(const std::string& input = "tokens") const {
    return image_task().open({{"folder", folder_.path()}, {"input", input}}, "task");
  }
  TemporaryDirectory folder_;
};

TEST_F(Image, PixelsAreGreyInOrder) {
  const Example red = open()->example(Split::kTest, 0), mixed = open()->example(Split::kTest, 1);
  EXPECT_EQ(red.label, 7);
  EXPECT_EQ(red.tokens, std::vector<int64_t>(1024, 76));  // 0.2989 * 255.5
  EXPECT_EQ(mixed.tokens,
            std::vector<int64_t>(1024, 131));  // 131.9: (0.2989 * 10 + 0.587 * 200 + 0.114 * 99) / 255 * 255.5
  std::string bytes = record(1, 0, 0, 0);
  bytes[1 + 33] = char(255);
  write_file(file("test_batch"), bytes);
  const Example one = open()->example(Split::kTest, 0);
  EXPECT_EQ(one.tokens[33], 76);
  EXPECT_EQ(one.tokens[32], 0);
  EXPECT_FLOAT_EQ(open("numbers")->example(Split::kTest, 0).numbers[0], -1);
  EXPECT_EQ(open("numbers")->shape().channels, 1);
}

TEST_F(Image, TrainingAndValidationAreAllOfThePictures) {
  const auto task = open();
  EXPECT_EQ(task->size(Split::kTrain), 18);
  EXPECT_EQ(task->size(Split::kValidation), 2);
  EXPECT_EQ(task->size(Split::kTest), 2);
  std::set<std::pair<int64_t, int64_t>> seen;
  const auto add = [&](Split split) {
    for (int64_t i = 0; i < task->size(split); ++i) {
      const Example it = task->example(split, i);
      seen.insert({it.tokens[0], it.label});
    }
  };
  add(Split::kTrain);
  add(Split::kValidation);
  EXPECT_GE(seen.size(), 16u);  // some shades of red have equal grey
}

TEST_F(Image, OtherFilesAreRefused) {
  EXPECT_NE(testing::error_of([] { image_task().open(Json::object(), "task"); }).find("cs.toronto.edu"),
            std::string::npos);
  write_file(file("data_batch_3"), std::string(3072, 'x'));
  EXPECT_NE(testing::error_of([&] { open(); }).find("3072 bytes are no whole records of 3073"), std::string::npos);
  write_file(file("data_batch_3"), record(1, 0, 0, 0) + record(10, 0, 0, 0));
  EXPECT_NE(testing::error_of([&] { open(); }).find("record 1 has the label 10"), std::string::npos);
  std::filesystem::remove(file("data_batch_3"));
  EXPECT_NE(testing::error_of([&] { open(); }).find("data_batch_3.bin"), std::string::npos);
}

}  // namespace
}  // namespace cortado
