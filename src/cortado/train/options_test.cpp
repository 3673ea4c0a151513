// Options, schedule, metrics and the run's folder: tests without a model.
#include "cortado/train/options.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numbers>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/nn/matmul.h"
#include "cortado/testing/errors.h"
#include "cortado/train/run_folder.h"
#include "cortado/train/schedule.h"

namespace cortado {
namespace {

using testing::error_of;
using testing::kNoError;

namespace fs = std::filesystem;

TrainingOptions options_of(const std::string& text) { return TrainingOptions::from_json(Json::parse(text)); }

std::string error_in(const std::string& text) {
  return error_of([&] { options_of(text); });
}

TEST(TrainingOptions, DefaultsAndRoundTrip) {
  const auto defaults = options_of("{}");
  EXPECT_EQ(defaults.steps, 2000);
  EXPECT_EQ(defaults.decay_steps, 2000);
  EXPECT_FALSE(defaults.dtype);  // "auto": not measured yet
  EXPECT_EQ(defaults.to_json()["dtype"], "auto");
  EXPECT_EQ(options_of(defaults.to_json().dump()).to_json(), defaults.to_json());
  EXPECT_EQ(defaults.compute_type(), fast_training_type());
  const auto changed = options_of(
      R"({"steps": 7, "batch": 3, "schedule": "linear", "warmup": 2, "dtype": "bfloat16", "packed": true, "clip": 0, "seed": 9})");
  EXPECT_EQ(changed.decay_steps, 7);  // follows steps
  EXPECT_EQ(changed.to_json(), TrainingOptions::from_json(changed.to_json()).to_json());
  EXPECT_EQ(changed.to_json()["schedule"], "linear");
  EXPECT_EQ(changed.to_json()["dtype"], "bfloat16");
  EXPECT_EQ(changed.compute_type(), at::kBFloat16);
  EXPECT_NE(changed.to_json(), defaults.to_json());
}

TEST(TrainingOptions, WhatMayChangeIsThere) {
  const Json all = options_of(R"({"epochs": 1, "target": 0.5})").to_json();
  for (const char* key : TrainingOptions::kMayChange) EXPECT_TRUE(all.contains(key)) << key;
}

TEST(TrainingOptions, ErrorsNameTheKey) {
  EXPECT_NE(error_in(R"({"warmpu": 3})").find("warmup"), std::string::npos);  // suggests the nearest
  EXPECT_NE(error_in(R"({"batch": 0})").find("batch"), std::string::npos);
  EXPECT_NE(error_in(R"({"batch": "many"})").find("batch"), std::string::npos);
  EXPECT_NE(error_in(R"({"schedule": "sine"})").find("cosine"), std::string::npos);
  EXPECT_NE(error_in(R"({"minimum_rate": 1, "learning_rate": 0.1})").find("minimum_rate"), std::string::npos);
  EXPECT_NE(error_in(R"({"warmup": 10, "decay_steps": 10})").find("decay_steps"), std::string::npos);
  EXPECT_NE(error_in(R"({"dtype": "float64"})").find("bfloat16"), std::string::npos);
}

TEST(Schedule, IsNanoGpts) {
  auto options = options_of(R"({"learning_rate": 1e-3, "minimum_rate": 1e-4, "warmup": 100, "steps": 2000})");
  const auto expect = [&options](int64_t step, double rate) {
    EXPECT_NEAR(learning_rate(options, step), rate, 1e-15) << step;
  };
  expect(0, 1e-3 / 101);
  expect(99, 1e-3 * 100 / 101);
  expect(100, 1e-3);
  expect(575, 1e-4 + 9e-4 * (2 + std::numbers::sqrt2) / 4);  // a quarter of the way: (1 + cos(π/4)) / 2
  expect(1050, 5.5e-4);
  expect(2000, 1e-4);
  expect(9999, 1e-4);
  options.schedule = ScheduleKind::kLinear;
  expect(575, 1e-4 + 9e-4 * 0.75);
  expect(2000, 1e-4);
  options.schedule = ScheduleKind::kConstant;
  expect(0, 1e-3 / 101);
  expect(9999, 1e-3);
}

TEST(Schedule, AWarmUpLongerThanTheRunNeedsNoDecay) {
  const auto options = options_of(R"({"steps": 10})");
  EXPECT_NEAR(learning_rate(options, 9), 1e-3 * 10 / 101, 1e-15);
}

TEST(Metrics, AResumedRunDropsWhatItWillWriteAgain) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  std::ofstream(path) << "{\"step\":1,\"loss\":3.0}\n{\"step\":2,\"loss\":2.0}\n{\"step\":3,\"lo";
  MetricsFile metrics(path, 1);
  metrics.write({{"step", 2}, {"loss", 2.5}});
  EXPECT_EQ(read_file(path), "{\"step\":1,\"loss\":3.0}\n{\"step\":2,\"loss\":2.5}\n");
}

class RunLockTest : public ::testing::Test {
 protected:
  std::string error_in(FolderUse use) {
    return error_of([&] { const RunLock lock(run_, use); });
  }
  void write(const std::string& name) { std::ofstream(run_.path + "/" + name) << "x"; }

  TemporaryDirectory parent_;
  RunFolder run_{parent_.path() + "/a/run"};
};

TEST_F(RunLockTest, MakesTheFolderAndKeepsIt) {
  const RunLock lock(run_, FolderUse::kFresh);
  EXPECT_TRUE(fs::is_directory(run_.path));
  EXPECT_NE(error_in(FolderUse::kFresh).find("another process"), std::string::npos);
}

TEST_F(RunLockTest, ARunIsNeverStartedOverUnasked) {
  EXPECT_NE(error_in(FolderUse::kResume).find("no run"), std::string::npos);
  EXPECT_EQ(error_in(FolderUse::kFresh), kNoError);
  write("config.json");  // died before its first checkpoint: nothing to lose
  write("trainer.safetensors.tmp-12-0");
  EXPECT_EQ(error_in(FolderUse::kFresh), kNoError);
  EXPECT_FALSE(fs::exists(run_.path + "/trainer.safetensors.tmp-12-0"));
  write("trainer.safetensors");
  EXPECT_NE(error_in(FolderUse::kFresh).find("--resume"), std::string::npos);
  EXPECT_TRUE(fs::exists(run_.trainer()));
  EXPECT_EQ(error_in(FolderUse::kResume), kNoError);
  EXPECT_TRUE(fs::exists(run_.trainer()));
  EXPECT_EQ(error_in(FolderUse::kOverwrite), kNoError);
  EXPECT_FALSE(fs::exists(run_.trainer()));
}

TEST_F(RunLockTest, OtherPeoplesFilesStay) {
  fs::create_directories(run_.path);
  write("thesis.tex");
  for (const auto use : {FolderUse::kFresh, FolderUse::kOverwrite}) {
    EXPECT_NE(error_in(use).find("thesis.tex"), std::string::npos);
  }
  EXPECT_TRUE(fs::exists(run_.path + "/thesis.tex"));
}

}  // namespace
}  // namespace cortado
