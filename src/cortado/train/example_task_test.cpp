// Models learn the tasks of tasks/ with the training loop that language modelling uses.
#include "cortado/train/example_task.h"

#include <filesystem>

#include "cortado/models/classifier.h"
#include "cortado/models/language_model.h"
#include "cortado/tasks/registry.h"
#include "cortado/testing/runs.h"

namespace cortado {
namespace {

class ExampleTaskTest : public testing::RunTest {
 protected:
  static Json config(const std::string& task, const std::string& training, const std::string& mixer = "softmax") {
    Json json =
        parse_json(R"({"dim": 32, "heads": 1, "layers": 2, "positions": "rotary", "feed_forward": {"type": "none"},
        "training": {"batch": 32, "steps": 12, "warmup": 3, "evaluate_every": 6, "log_every": 1,
        "learning_rate": 0.01}})",
                   "test");
    json["mixer"]["mixer"] = mixer;
    json["task"] = parse_json(task, "task");
    json["training"].update(parse_json(training, "training"));
    return json;
  }
  static constexpr const char* kRecall =
      R"({"name": "mqar", "vocabulary": 32, "length": 16, "pairs": 2, "examples": 2000, "test_examples": 200})";
};

TEST_F(ExampleTaskTest, RecallIsLearnedUntilTheTargetIsReached) {
  const TrainResult result = train_run(
      request(config(kRecall, R"({"steps": 3000, "evaluate_every": 100, "target": 0.95, "batch": 64})"), "run"));
  EXPECT_TRUE(result.done);
  EXPECT_TRUE(result.state.reached);
  EXPECT_LT(result.state.step, 3000);
  const auto lines = metrics("run");
  const auto first =
      std::find_if(lines.begin(), lines.end(), [](const Json& line) { return line.contains("accuracy"); });
  EXPECT_LT(first->at("accuracy").get<double>(), 0.9);
  EXPECT_GE(lines.back().at("accuracy").get<double>(), 0.95);
  EXPECT_EQ(lines.back().at("accuracy"), lines.back().at("accuracy_2_pairs"));
  // A run that has reached its target ends at once.
  EXPECT_EQ(train_run(resuming("run")).state.step, result.state.step);
  // A run whose target is raised continues.
  TrainRequest further = resuming("run");
  further.config = read_json_file(path("run") + "/config.json");
  further.config["training"]["target"] = 1.5;
  further.config["training"]["steps"] = result.state.step + 3;
  EXPECT_EQ(train_run(further).state.step, result.state.step + 3);
}

// Examples of different lengths are packed, and loss counts only the tokens that the task selects.
TEST_F(ExampleTaskTest, GoesOnBitForBitInEpochs) {
  const Json task = parse_json(R"({"name": "regbench", "examples": 20, "validation_examples": 3, "most_strings": 10,
                                   "longest_string": 8})",
                               "task");
  const Json whole = config(task.dump(), R"({"epochs": 3, "batch": 6, "evaluate_every": 5})", "gla");
  const TrainResult result = train_run(request(whole, "whole"));
  EXPECT_EQ(result.steps, 3 * 4);
  const auto examples = open_task(task, "task");
  int64_t tokens = 0;
  for (int64_t i = 0; i < 20; ++i) tokens += 3 * int64_t(examples->example(Split::kTrain, i).tokens.size());
  EXPECT_EQ(result.state.tokens, tokens);
  TrainRequest first = request(whole, "parts");
  first.stop_at = 7;
  EXPECT_FALSE(train_run(first).done);
  EXPECT_TRUE(train_run(resuming("parts")).done);
  expect_same_run("whole", "parts");
  // More epochs: the schedule ends where it first did.
  Json longer = whole;
  longer["training"]["epochs"] = 4;
  TrainRequest further = request(longer, "parts");
  further.use = FolderUse::kResume;
  EXPECT_EQ(train_run(further).state.step, 16);
  EXPECT_EQ(read_json_file(path("parts/config.json"))["training"]["decay_steps"], 12);
}

TEST_F(ExampleTaskTest, AClassifierFollowsFromTheTask) {
  Json json = config(R"({"name": "listops", "examples": 40, "validation_examples": 10, "shorter": 30, "longer": 3,
                         "depth": 4})",
                     R"({"steps": 4, "evaluate_every": 2, "batch": 8})");
  json["causal"] = false;
  EXPECT_TRUE(train_run(request(json, "run")).done);
  const auto model = std::dynamic_pointer_cast<Classifier>(open_backbone(path("run")));
  ASSERT_TRUE(model);
  EXPECT_EQ(model->config().head.classes, 10);
  EXPECT_EQ(model->config().vocabulary, 15);
  const auto task = open_task(json["task"], "task");
  const Json scores = score_examples(*model, *task, Split::kValidation, 3, 0);
  EXPECT_EQ(scores["accuracy"], metrics("run").back()["accuracy"]);
  // The batch size does not matter.
  EXPECT_NEAR(scores["loss"].get<double>(), score_examples(*model, *task, Split::kValidation, 10, 0)["loss"], 1e-5);
}

// Examples differ in their number of targets. Gradients from parts of a batch, one after the other or on several
// processes, equal those from the whole batch.
TEST_F(ExampleTaskTest, PartsOfABatchAreTheBatch) {
  const Json settings = parse_json(R"({"name": "regbench", "examples": 12, "validation_examples": 1, "most_strings": 10,
                                       "longest_string": 8, "shuffle": false})",
                                   "task");
  Json json = config(settings.dump(), "{}", "gla");
  ModelConfig model_config = ModelConfig::from_json(json, "test");
  TrainingOptions options;
  const auto data = open_example_data(settings);
  data->complete(model_config, options, "test");
  const auto model = std::make_shared<LanguageModel>(model_config);
  // Gradients of the mean loss, from `batches` batches of `parts` parts each.
  const auto learned = [&](int64_t batches, int64_t parts) {
    options.batch = 12 / batches;
    const auto task = data->task(model, options);
    double targets = 0, losses = 0;
    for (int64_t part = 0; part < parts; ++part) {
      DataPosition position;
      for (int64_t i = 0; i < batches; ++i) {
        const LearnedBatch one = task->learn(position, {.part = part, .parts = parts});
        targets += one.targets;
        losses += one.losses.item<double>();
      }
    }
    std::vector<Tensor> found{at::full({}, losses / targets)};
    for (const Parameter& parameter : task->learned()) {
      found.push_back((parameter.value.grad() / targets).flatten());
      Tensor(parameter.value).mutable_grad().reset();
    }
    return found;
  };
  const auto whole = learned(1, 1);
  for (const auto& [batches, parts] : {std::pair(2, 1), std::pair(6, 1), std::pair(1, 2), std::pair(3, 3)}) {
    const auto found = learned(batches, parts);
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_LT((found[i] - whole[i]).abs().max().item<double>(), 1e-6) << batches << " " << parts << ": " << i;
    }
  }
}

// Compares with the loss of the targets of two examples, computed one by one.
TEST_F(ExampleTaskTest, TheLossIsThatOfTheTargets) {
  train_run(request(config(kRecall, "{}"), "run"));
  const auto model = std::dynamic_pointer_cast<LanguageModel>(open_backbone(path("run")));
  const auto task = open_task(parse_json(kRecall, "task"), "task");
  double sum = 0;
  for (int64_t i = 0; i < 2; ++i) {
    const Example example = task->example(Split::kTest, i);
    const Tensor logits = model->forward(at::tensor(example.tokens, at::kLong).unsqueeze(0)).log_softmax(-1);
    for (const int64_t place : task->places(example)) {
      sum -= logits[0][place][example.targets[size_t(place)]].item<double>();
    }
  }
  EXPECT_NEAR(score_examples(*model, *task, Split::kTest, 2, 2)["loss"].get<double>(), sum / 4, 1e-5);
}

TEST_F(ExampleTaskTest, TasksAndModelsThatDontFitAreRefused) {
  const auto refused = [&](
                           const char* task, const std::function<void(Json&)>& change = [](Json&) {}) {
    Json json = config(task, "{}");
    change(json);
    return error_of(request(json, "run"));
  };
  EXPECT_NE(refused(R"({"name": "mqra"})").find("got \"mqra\""), std::string::npos);
  EXPECT_NE(refused(R"({"length": 8})").find("the task's \"name\""), std::string::npos);
  EXPECT_NE(refused(kRecall, [](Json& json) { json["causal"] = false; }).find("would see the targets"),
            std::string::npos);
  EXPECT_NE(refused(kRecall, [](Json& json) { json["vocabulary"] = 16; }).find("the task has 32 tokens"),
            std::string::npos);
  EXPECT_NE(refused(R"({"name": "listops"})", [](Json& json) { json["head"] = {{"type", "classes"}, {"classes", 3}}; })
                .find("the task has 10 classes"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path("run")));
}

}  // namespace
}  // namespace cortado
