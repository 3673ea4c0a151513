// The training loop: exact resumption, stopping, losses that are not finite, and that it learns.
#include "cortado/train/trainer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/evaluate/evaluate.h"
#include "cortado/formats/safetensors.h"
#include "cortado/models/checkpoint.h"
#include "cortado/nn/matmul.h"
#include "cortado/testing/examples.h"
#include "cortado/testing/runs.h"
#include "cortado/train/run.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

// A text that is easy to learn: five words in a fixed pseudo-random order.
std::string small_text() {
  const std::vector<std::string> words = {"tea ", "and ", "milk ", "or ", "coffee. "};
  std::string text;
  for (uint32_t i = 0, x = 7; i < 900; ++i, x = x * 1664525 + 1013904223) text += words[(x >> 16) % words.size()];
  return text;
}

Json config_with(const std::string& mixer, const std::string& training = "{}") {
  Json config = parse_json(R"({"dim": 16, "heads": 2, "layers": 2, "dropout": 0.2, "norm": "rms",
      "feed_forward": {"type": "swiglu", "dim": 24}, "positions": "rotary", "training": {"tokenizer": "char", "batch": 3,
      "context": 20, "steps": 12, "warmup": 3, "evaluate_every": 5, "log_every": 1, "learning_rate": 0.01}})",
                           "test");
  config["mixer"] = parse_json(mixer, "mixer");
  config["training"].update(parse_json(training, "training"));
  return config;
}

const char* const kSoftmax = R"({"mixer": "softmax"})";
const char* const kPerformer = R"({"mixer": "performer"})";  // its random features are a buffer, drawn once
const char* const kGriffin = R"({"mixer": "griffin"})";

class TrainRunTest : public testing::RunTest {
 protected:
  TrainRunTest() { std::ofstream(text()) << small_text(); }
  std::string text() const { return path("text.txt"); }

  TrainRequest request(const Json& config, const std::string& out) const {
    TrainRequest request = RunTest::request(config, out);
    request.data = text();
    return request;
  }
};

struct ResumeCase {
  const char* name;
  const char* mixer;
  const char* training;
};

class ResumeTest : public TrainRunTest, public ::testing::WithParamInterface<ResumeCase> {};

// 12 steps in one session equal 7, stop, resume to 10, stop, resume for 2 more, bit for bit. Step 7 lies between two
// validations, step 10 on one.
TEST_P(ResumeTest, EqualsARunThatWasNeverStopped) {
  const Json config = config_with(GetParam().mixer, GetParam().training);
  EXPECT_TRUE(train_run(request(config, "whole")).done);
  TrainRequest first = request(config, "parts");
  first.stop_at = 7;
  EXPECT_FALSE(train_run(first).done);
  TrainRequest second = resuming("parts");
  second.stop_at = 10;
  EXPECT_FALSE(train_run(second).done);
  const TrainResult last = train_run(resuming("parts"));
  EXPECT_TRUE(last.done);
  EXPECT_EQ(last.state.step, 12);
  expect_same_run("whole", "parts");
  // Another seed gives another run, so the equality above is not trivial.
  Json other = config;
  other["training"]["seed"] = 4;
  train_run(request(other, "other"));
  EXPECT_NE(metrics("whole"), metrics("other"));
}

INSTANTIATE_TEST_SUITE_P(
    All, ResumeTest,
    ::testing::Values(ResumeCase{"softmax", kSoftmax, "{}"}, ResumeCase{"griffin", kGriffin, "{}"},
                      ResumeCase{"packed", kSoftmax, R"({"packed": true, "document_separator": "coffee. "})"},
                      ResumeCase{"packed_griffin", kGriffin,
                                 R"({"packed": true, "accumulate": 2, "document_separator": "coffee. "})"},
                      ResumeCase{"performer", kPerformer, "{}"},
                      ResumeCase{"bfloat16", kGriffin, R"({"dtype": "bfloat16", "accumulate": 2})"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(TrainRunTest, Learns) {
  const auto config = config_with(kGriffin, R"({"steps": 60, "evaluate_every": 20, "batch": 8})");
  const TrainResult result = train_run(request(config, "run"));
  EXPECT_TRUE(result.done);
  EXPECT_EQ(result.state.step, 60);
  EXPECT_EQ(result.state.tokens, 60 * 8 * 20);
  const auto lines = metrics("run");
  const double first = lines.front()["loss"].get<double>();
  EXPECT_NEAR(first, std::log(15.0), 1.0);  // an untrained model: uniform over about 15 characters
  EXPECT_LT(result.state.validation_loss, 0.6 * first);
  // The weights on disk are those that were validated.
  const auto model = open_model(path("run"), {.which = "best"});
  EXPECT_EQ(model->parameter_count(), result.parameters);
}

// Detects any change of the loop, batches, dropout, schedule, clipping or optimiser, which a comparison of two runs of
// one build cannot.
TEST_F(TrainRunTest, LossesAreThoseOfEarlierVersions) {
  CORTADO_NEEDS("macchiato");
  constexpr const char* kMixer = R"({"mixer": "macchiato", "latents": 8, "window": 5, "source": "rg_lru"})";
  train_run(request(
      config_with(kMixer, R"({"accumulate": 3, "clip": 0.5, "steps": 6, "evaluate_every": 3, "dtype": "float32"})"),
      "run"));
  const std::vector<double> recorded = {3.0037513, 3.1773112, 3.0475342, 2.7928719,
                                        2.9390399, 2.8006473, 2.7255516, 2.5960385};
  std::vector<double> losses;
  for (const Json& line : metrics("run")) {
    losses.push_back(line[line.contains("loss") ? "loss" : "validation_loss"].get<double>());
  }
  ASSERT_EQ(losses.size(), recorded.size());
  for (size_t i = 0; i < recorded.size(); ++i) EXPECT_NEAR(losses[i], recorded[i], 1e-5) << i;
}

TEST_F(TrainRunTest, AStopDuringValidationIsMadeUpFor) {
  const Json config = config_with(kSoftmax);
  train_run(request(config, "whole"));
  TrainRequest stopped = request(config, "parts");
  int64_t asked = 0;
  stopped.stop = [&asked] { return ++asked > 5; };  // five steps, then the first batch of the validation
  EXPECT_FALSE(train_run(stopped).done);
  EXPECT_TRUE(train_run(resuming("parts")).done);
  expect_same_run("whole", "parts");
}

// The library was chosen by timing, which might choose another one on a busy machine.
TEST_F(TrainRunTest, GoesOnWithTheLibraryThatItBeganWith) {
  const std::string before = matmul_library(), other = before == "blas" ? "onednn" : "blas";
  keep_matmul_library(other);
  if (matmul_library() != other) GTEST_SKIP() << "there is one only, or CORTADO_MATMUL says which";
  TrainRequest first = request(config_with(kSoftmax), "run");
  first.stop_at = 5;
  train_run(first);
  EXPECT_EQ(read_safetensors(path("run/trainer.safetensors")).metadata["matmul"], other);
  keep_matmul_library(before);
  train_run(resuming("run"));
  EXPECT_EQ(matmul_library(), other);
  keep_matmul_library("a third");
  EXPECT_EQ(matmul_library(), other);
  keep_matmul_library(before);
}

TEST_F(TrainRunTest, StepsCanBeAddedLater) {
  train_run(request(config_with(kSoftmax), "run"));
  TrainRequest longer = resuming("run");
  longer.config = read_json_file(path("run") + "/config.json");
  longer.config["training"]["steps"] = 14;
  const TrainResult result = train_run(longer);
  EXPECT_TRUE(result.done);
  EXPECT_EQ(result.state.step, 14);
}

TEST_F(TrainRunTest, ALossThatIsNotFiniteStopsAndKeepsTheLastCheckpoint) {
  Json config =
      config_with(kSoftmax, R"({"learning_rate": 1e3, "warmup": 0, "clip": 0, "weight_decay": 0, "steps": 400})");
  config["final_softcap"] = nullptr;
  config["training"]["learning_rate"] = 1e30;  // refused: out of range
  EXPECT_NE(error_of(request(config, "run")).find("learning_rate"), std::string::npos);
  EXPECT_FALSE(fs::exists(path("run")));
  // Weights in the checkpoint that have overflowed.
  config = config_with(kSoftmax);
  TrainRequest first = request(config, "run");
  first.stop_at = 5;
  train_run(first);
  TensorFile file = read_safetensors(path("run") + "/trainer.safetensors");
  for (auto& [name, tensor] : file.tensors) {
    if (name.starts_with("model.")) {
      tensor.fill_(std::numeric_limits<float>::infinity());
      break;
    }
  }
  write_safetensors(path("run") + "/trainer.safetensors", file);
  const std::string before = read_file(path("run") + "/trainer.safetensors");
  try {
    train_run(resuming("run"));
    FAIL() << "trained on";
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("step 6"), std::string::npos) << failure.what();
  }
  EXPECT_EQ(read_file(path("run") + "/trainer.safetensors"), before);
}

TEST_F(TrainRunTest, BadInputLeavesNothingBehind) {
  const auto refused = [this](const TrainRequest& bad, const std::string& part) {
    const std::string error = error_of(bad);
    EXPECT_NE(error.find(part), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos);
    EXPECT_FALSE(fs::exists(path("run")));
  };
  TrainRequest bad = request(config_with(kSoftmax), "run");
  bad.data = path("none.txt");
  refused(bad, "none.txt");
  std::ofstream(path("short.txt")) << "tiny";
  bad.data = path("short.txt");
  refused(bad, "too short");
  refused(request(config_with(kSoftmax, R"({"tokenizer": "words"})"), "run"), "words");
  refused(request(config_with(kSoftmax, R"({"stepps": 3})"), "run"), "steps");
  Json config = config_with(kSoftmax);
  config["vocabulary"] = 3;
  refused(request(config, "run"), "vocabulary");
  config = config_with(kSoftmax);
  config["positions"] = "learned";
  config["context"] = 10;
  refused(request(config, "run"), "context");
  refused(resuming("run"), "no run");
}

TEST_F(TrainRunTest, ResumingWithOtherSettingsIsRefused) {
  train_run(request(config_with(kSoftmax), "run"));
  TrainRequest other = resuming("run");
  other.config = config_with(kSoftmax, R"({"batch": 4})");
  other.data = text();
  EXPECT_NE(error_of(other).find("training.batch"), std::string::npos) << error_of(other);
  other.config = config_with(kGriffin);
  EXPECT_NE(error_of(other).find("mixer"), std::string::npos) << error_of(other);
}

// Refused before anything in the folder changes, so the next --resume still uses the run's own data.
TEST_F(TrainRunTest, ResumingWithOtherDataIsRefusedAndChangesNothing) {
  train_run(request(config_with(kSoftmax), "run"));
  const std::string config = read_file(path("run") + "/config.json");
  std::string other = read_file(text());
  std::ofstream(path("longer.txt")) << other << "more tea ";
  std::reverse(other.begin(), other.end());
  std::ofstream(path("reversed.txt")) << other;  // equally many tokens over the same alphabet
  for (const char* name : {"longer.txt", "reversed.txt"}) {
    TrainRequest again = resuming("run");
    again.data = path(name);
    EXPECT_NE(error_of(again).find("data has changed"), std::string::npos) << name << ": " << error_of(again);
    EXPECT_EQ(read_file(path("run") + "/config.json"), config);
  }
  EXPECT_EQ(train_run(resuming("run")).state.step, 12);
}

// The schedule still ends where the first call set it, even if that is not after the warm-up.
TEST_F(TrainRunTest, GoesOnFromARunShorterThanItsWarmUp) {
  const Json config = config_with(kSoftmax, R"({"warmup": 100})");
  train_run(request(config, "whole"));
  TrainRequest part = request(config, "run");
  part.stop_at = 7;
  train_run(part);
  train_run(resuming("run"));
  expect_same_run("whole", "run");
  TrainRequest further = request(config_with(kSoftmax, R"({"warmup": 100, "steps": 14})"), "run");
  further.use = FolderUse::kResume;
  further.data = "";
  EXPECT_EQ(train_run(further).state.step, 14);
  const Json training = read_json_file(path("run") + "/config.json")["training"];
  EXPECT_EQ(training["decay_steps"], 12);
  EXPECT_EQ(training["data"], text());
}

TEST_F(TrainRunTest, ABrokenCheckpointIsSaidSo) {
  TrainRequest first = request(config_with(kSoftmax), "run");
  first.stop_at = 6;
  train_run(first);
  const std::string trainer = path("run") + "/trainer.safetensors";
  std::string bytes = read_file(trainer);
  write_file(trainer, bytes.substr(0, bytes.size() / 2));
  EXPECT_NE(error_of(resuming("run")).find("trainer.safetensors"), std::string::npos);
  bytes[bytes.size() - 100] ^= 1;
  write_file(trainer, bytes);
  EXPECT_NE(error_of(resuming("run")).find("trainer.safetensors"), std::string::npos);
  EXPECT_EQ(read_file(trainer), bytes);
}

// Fine-tuning through adapters: the base's weights stay, checkpoints hold the sums, and the adapters are also stored
// separately.
TEST_F(TrainRunTest, AdaptersOfARun) {
  train_run(request(config_with(kSoftmax), "base"));
  const auto tuned = [&](const std::string& out) {
    Json config = config_with(kSoftmax, R"({"lora": {"rank": 2, "alpha": 4, "targets": ["q", "up"]}})");
    config["training"]["base"] = path("base");
    return request(config, out);
  };
  train_run(tuned("whole"));
  const auto base = open_model(path("base")), result = open_model(path("whole"));
  const auto before = base->named_parameters(), after = result->named_parameters();
  EXPECT_TRUE(at::equal(before["layers.0.mixer.k.weight"], after["layers.0.mixer.k.weight"]));
  EXPECT_FALSE(at::equal(before["layers.0.mixer.q.weight"], after["layers.0.mixer.q.weight"]));
  EXPECT_TRUE(fs::exists(path("whole/lora.safetensors")));

  TrainRequest first = tuned("stopped");
  first.stop_at = 7;
  EXPECT_FALSE(train_run(first).done);
  fs::remove_all(path("base"));  // a resumed run does not need its base
  EXPECT_TRUE(train_run(resuming("stopped")).done);
  const TensorFile a = read_safetensors(path("whole/last.safetensors"));
  const TensorFile b = read_safetensors(path("stopped/last.safetensors"));
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(a.tensors[i].second, b.tensors[i].second)) << a.tensors[i].first;
  }
  EXPECT_NE(testing::error_of([&] {
              train_run(request(config_with(kSoftmax, R"({"lora": {"rank": 2}})"), "random"));
            }).find("needs trained weights"),
            std::string::npos);
}

}  // namespace
}  // namespace cortado
