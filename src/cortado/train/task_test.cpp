// A task of another kind, a classifier on random examples, uses the loop, folder and resumption of language modelling
// without any change in train/.
#include "cortado/train/task.h"

#include "cortado/base/error.h"
#include "cortado/base/random.h"
#include "cortado/models/classifier.h"
#include "cortado/testing/runs.h"

namespace cortado {
namespace {

constexpr int64_t kBatch = 16, kLength = 12;

struct Examples {
  Tensor tokens, labels;
};

// Draws examples of a classification: which of the tokens 1 and 2 comes first among zeros? A function of (seed, stream,
// index).
Examples draw(int64_t seed, const char* stream, int64_t index) {
  const RandomStream random(uint64_t(seed), stream);
  Examples drawn{at::zeros({kBatch, kLength}, at::kLong), at::empty({kBatch}, at::kLong)};
  for (int64_t row = 0; row < kBatch; ++row) {
    const uint64_t bits = random.bits(uint64_t(index * kBatch + row));
    const int64_t label = int64_t(bits & 1), first = int64_t((bits >> 1) % (kLength - 1));
    const int64_t second = first + 1 + int64_t((bits >> 8) % uint64_t(kLength - 1 - first));
    drawn.tokens[row][first] = 1 + label;
    drawn.tokens[row][second] = 2 - label;
    drawn.labels[row] = label;
  }
  return drawn;
}

class OrderTask : public Task {
 public:
  OrderTask(std::shared_ptr<Classifier> model, const TrainingOptions& options)
      : model_(std::move(model)), options_(options) {}

  const std::string& name() const override { return name_; }
  Parameters learned() const override { return trainable(*model_); }
  DataIdentity data() const override { return {0, concat("order ", options_.seed)}; }

  LearnedBatch learn(DataPosition& position, const BatchShare& share) override {
    const Examples batch = draw(options_.seed, "examples", position.batches++);
    const Tensor loss = model_->loss(batch.tokens, batch.labels, {.cu_seqlens = {}, .training = true}) * double(kBatch);
    share.backward(loss);
    return {loss.detach(), double(kBatch), kBatch * kLength};
  }

  bool validates() const override { return true; }
  Validation validate(const Progress& progress) override {
    double loss = 0, right = 0;
    for (int64_t i = 0; i < options_.evaluate_batches; ++i) {
      progress(i, options_.evaluate_batches);
      const Examples batch = draw(options_.seed, "held out", i);
      loss += model_->loss(batch.tokens, batch.labels).item<double>() / double(options_.evaluate_batches);
      right += (model_->forward(batch.tokens).argmax(-1) == batch.labels).sum().item<double>();
    }
    return {loss, {}, {{"validation_loss", loss}, {"accuracy", right / double(options_.evaluate_batches * kBatch)}}};
  }

 private:
  const std::string name_ = "order";
  std::shared_ptr<Classifier> model_;
  TrainingOptions options_;
};

class OrderData : public TaskData {
 public:
  void complete(ModelConfig& model, TrainingOptions&, const std::string& name) const override {
    fail_input_if(model.head.kind != HeadKind::kClasses, "[", name, "] the order of tokens is a class");
    if (model.vocabulary == 0) model.vocabulary = 3;
  }
  std::shared_ptr<Task> task(const std::shared_ptr<Backbone>& model, const TrainingOptions& options) const override {
    return std::make_shared<OrderTask>(std::dynamic_pointer_cast<Classifier>(model), options);
  }
  std::string description() const override { return "drawn examples"; }
};

Json order_config(const std::string& training = "{}") {
  Json config = parse_json(R"({"dim": 16, "heads": 2, "layers": 2, "causal": false, "positions": "learned",
      "dropout": 0.1, "mixer": {"mixer": "softmax"}, "head": {"type": "classes", "classes": 2, "pooling": "mean"},
      "feed_forward": {"type": "mlp", "dim": 32}, "context": 12, "training": {"batch": 16, "accumulate": 2,
      "steps": 12, "warmup": 3, "evaluate_every": 5, "evaluate_batches": 4, "log_every": 1, "learning_rate": 0.01}})",
                           "test");
  config["training"].update(parse_json(training, "training"));
  return config;
}

class TaskTest : public testing::RunTest {
 protected:
  static TrainRequest with_task(TrainRequest request) {
    request.task = [](const TrainingOptions&, const std::string&) { return std::make_unique<OrderData>(); };
    return request;
  }
};

TEST_F(TaskTest, AnotherTaskLearnsAndIsOpenedAgain) {
  const auto config = order_config(R"({"steps": 100, "evaluate_every": 25})");
  EXPECT_TRUE(train_run(with_task(request(config, "run"))).done);
  const auto lines = metrics("run");
  const double before = lines.front().at("loss").get<double>(),
               after = lines.back().at("validation_loss").get<double>();
  EXPECT_NEAR(before, std::log(2.0), 0.5);
  EXPECT_LT(after, 0.3 * before);
  EXPECT_GT(lines.back().at("accuracy").get<double>(), 0.95);
  EXPECT_FALSE(std::filesystem::exists(path("run/tokenizer")));

  const auto model = std::dynamic_pointer_cast<Classifier>(open_backbone(path("run")));
  ASSERT_TRUE(model);
  const Examples fresh = draw(99, "unseen", 0);
  EXPECT_GE((model->forward(fresh.tokens).argmax(-1) == fresh.labels).sum().item<int64_t>(), kBatch - 2);
  EXPECT_NE(testing::error_of([&] { open_model(path("run")); }).find("is a classifier"), std::string::npos);
}

TEST_F(TaskTest, GoesOnBitForBit) {
  EXPECT_TRUE(train_run(with_task(request(order_config(), "whole"))).done);
  TrainRequest first = with_task(request(order_config(), "parts"));
  first.stop_at = 7;
  EXPECT_FALSE(train_run(first).done);
  EXPECT_TRUE(train_run(with_task(resuming("parts"))).done);
  expect_same_run("whole", "parts");
}

TEST_F(TaskTest, StartsFromAnotherRunsWeights) {
  train_run(with_task(request(order_config(), "base")));
  TrainRequest tuned = with_task(request(order_config(R"({"lora": {"rank": 2, "targets": ["q", "v"]}})"), "tuned"));
  tuned.config["training"]["base"] = path("base");
  // The base's config names no tokenizer, and this task needs none.
  EXPECT_TRUE(train_run(tuned).done);
  const auto base = open_backbone(path("base")), after = open_backbone(path("tuned"));
  EXPECT_TRUE(at::equal(base->named_parameters()["layers.0.mixer.k.weight"],
                        after->named_parameters()["layers.0.mixer.k.weight"]));
  EXPECT_FALSE(at::equal(base->named_parameters()["layers.0.mixer.q.weight"],
                         after->named_parameters()["layers.0.mixer.q.weight"]));
}

TEST_F(TaskTest, ATaskAndAModelThatDontFitAreRefused) {
  Json language = order_config();
  language.erase("head");
  EXPECT_NE(error_of(with_task(request(language, "run"))).find("is a class"), std::string::npos);
  TrainRequest text = request(order_config(), "run");
  std::ofstream(path("text.txt")) << std::string(400, 'a') + "b";
  text.data = path("text.txt");
  EXPECT_NE(error_of(text).find("a text trains a language model"), std::string::npos) << error_of(text);
  EXPECT_FALSE(std::filesystem::exists(path("run")));
  train_run(with_task(request(order_config(), "run")));
  TrainRequest other = with_task(resuming("run"));
  other.task = [](const TrainingOptions& options, const std::string& tokenizer) {
    return open_language_data(options, tokenizer);
  };
  other.data = path("text.txt");
  EXPECT_NE(error_of(other).find("a text trains a language model"), std::string::npos) << error_of(other);
}

// The same model with examples of another seed, which a resumed run must refuse.
TEST_F(TaskTest, OtherDataIsRefused) {
  TrainRequest first = with_task(request(order_config(), "run"));
  first.stop_at = 7;
  train_run(first);
  TensorFile file = read_safetensors(path("run/trainer.safetensors"));
  Json state = parse_json(file.metadata["state"], "state");
  EXPECT_EQ(state["data_fingerprint"], "order 1337");
  state["data_fingerprint"] = "order 7";
  file.metadata["state"] = state.dump();
  write_safetensors(path("run/trainer.safetensors"), file);
  EXPECT_NE(error_of(with_task(resuming("run"))).find("data has changed"), std::string::npos);
}

}  // namespace
}  // namespace cortado
