// Classifiers: pooling, towers, number inputs, padding, gradients, checkpoints.
#include "cortado/models/classifier.h"

#include <gtest/gtest.h>

#include "cortado/base/files.h"
#include "cortado/models/checkpoint.h"
#include "cortado/models/language_model.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

ModelConfig classifier_config(const std::string& head, const std::string& more = "{}") {
  Json json = parse_json(R"({"vocabulary": 11, "dim": 8, "heads": 2, "layers": 2, "mixer": {"mixer": "softmax"},
      "norm": "layer", "feed_forward": {"type": "mlp", "dim": 12}, "positions": "sinusoidal", "causal": false})",
                         "test");
  json["head"] = parse_json(head, "head");
  json.update(parse_json(more, "more"));
  return ModelConfig::from_json(json, "test");
}

constexpr const char* kNumbers = R"({"input": {"type": "numbers", "channels": 3}})";

std::shared_ptr<Classifier> make_classifier(const std::string& head, const std::string& more = "{}") {
  at::manual_seed(5);
  auto model = std::make_shared<Classifier>(classifier_config(head, more));
  model->to(at::kDouble);
  return model;
}

Tensor inputs_of(const Classifier& model, int64_t rows, int64_t length) {
  at::manual_seed(6);
  const int64_t channels = model.config().channels;
  return channels > 0 ? at::randn({rows, length, channels}, at::kDouble) : at::randint(11, {rows, length}, at::kLong);
}

struct ClassifierCase {
  const char* name;
  const char* head;
  const char* more;
};

class ClassifierTest : public ::testing::TestWithParam<ClassifierCase> {
 protected:
  std::shared_ptr<Classifier> model_ = make_classifier(GetParam().head, GetParam().more);
};

// Rows of 7, 3, 1 and 5 tokens in a padded batch give what each gives alone, whatever the padding holds.
TEST_P(ClassifierTest, PaddingIsNotRead) {
  const at::NoGradGuard no_grad;
  const Tensor inputs = inputs_of(*model_, 4, 7), lengths = at::tensor({7, 3, 1, 5}, at::kLong);
  const auto packed = pack_padded(inputs, lengths);
  const Tensor logits = model_->forward(packed.tokens, packed.batch);
  const int64_t tower = model_->config().head.kind == HeadKind::kPairs ? 2 : 1;
  ASSERT_EQ(logits.sizes(), (std::vector<int64_t>{4 / tower, 3}));
  for (int64_t i = 0; i < 4 / tower; ++i) {
    std::vector<Tensor> alone;
    for (int64_t row = i * tower; row < (i + 1) * tower; ++row) {
      alone.push_back(inputs[row].narrow(0, 0, lengths[row].item<int64_t>()));
    }
    const Tensor bounds = at::cat({at::zeros({1}, at::kLong), lengths.narrow(0, i * tower, tower).cumsum(0)});
    const Tensor right = tower == 1 ? model_->forward(alone[0].unsqueeze(0))
                                    : model_->forward(at::cat(alone).unsqueeze(0), {.cu_seqlens = bounds});
    EXPECT_TRUE(at::allclose(logits[i], right[0], 1e-10, 1e-10)) << i << logits[i] << right[0];
  }
  Tensor other = inputs.clone();
  other[1].narrow(0, 3, 4).zero_();
  const auto again = pack_padded(other, lengths);
  EXPECT_TRUE(at::equal(logits, model_->forward(again.tokens, again.batch)));
  other[1].narrow(0, 0, 3).zero_();
  const auto changed = pack_padded(other, lengths);
  EXPECT_FALSE(at::allclose(logits, model_->forward(changed.tokens, changed.batch)));
}

// Compares every parameter's derivative along a random direction with the difference of two losses; dense and packed.
TEST_P(ClassifierTest, GradientsAreTheLosses) {
  const Tensor inputs = inputs_of(*model_, 4, 5);
  const auto packed = pack_padded(inputs, at::tensor({5, 2, 4, 3}, at::kLong));
  const bool pairs = model_->config().head.kind == HeadKind::kPairs;
  const Tensor labels = pairs ? at::tensor({2, 0}, at::kLong) : at::tensor({2, 0, 1, 1}, at::kLong);
  for (const bool dense : {true, false}) {
    const auto loss = [&] {
      return dense ? model_->loss(inputs, labels) : model_->loss(packed.tokens, labels, packed.batch);
    };
    model_->zero_grad();
    loss().backward();
    const at::NoGradGuard no_grad;
    for (auto& entry : model_->named_parameters()) {
      Tensor& parameter = entry.value();
      ASSERT_TRUE(parameter.grad().defined()) << entry.key();
      const Tensor direction = at::randn_like(parameter);
      constexpr double kStep = 1e-6;
      parameter.add_(direction, kStep);
      const double above = loss().item<double>();
      parameter.add_(direction, -2 * kStep);
      const double below = loss().item<double>();
      parameter.add_(direction, kStep);
      EXPECT_NEAR((above - below) / (2 * kStep), (parameter.grad() * direction).sum().item<double>(), 1e-6)
          << entry.key() << (dense ? " dense" : " packed");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ClassifierTest,
    ::testing::Values(ClassifierCase{"mean", R"({"type": "classes", "classes": 3})", "{}"},
                      ClassifierCase{"class", R"({"type": "classes", "classes": 3, "pooling": "class", "hidden": 6})",
                                     R"({"norm": "rms"})"},
                      ClassifierCase{"numbers", R"({"type": "classes", "classes": 3})", kNumbers},
                      ClassifierCase{"numbers_class", R"({"type": "classes", "classes": 3, "pooling": "class"})",
                                     kNumbers},
                      ClassifierCase{"pairs", R"({"type": "pairs", "classes": 3, "hidden": 5})", "{}"},
                      ClassifierCase{"latte", R"({"type": "classes", "classes": 3})",
                                     R"({"mixer": {"mixer": "latte", "latents": 4}})"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Classifier, PairsAreTwoTowersOfTheSameWeights) {
  const at::NoGradGuard no_grad;
  const auto model = make_classifier(R"({"type": "pairs", "classes": 2})");
  const Tensor tokens = inputs_of(*model, 2, 6), swapped = tokens.flip(0);
  EXPECT_EQ(model->forward(tokens).sizes(), (std::vector<int64_t>{1, 2}));
  EXPECT_FALSE(at::allclose(model->forward(tokens), model->forward(swapped)));  // the order within a pair matters
  // Other pairs in the batch change no bit. (A batch of one pair would differ: some machines multiply it in another
  // way.)
  const Tensor second = model->forward(at::cat({tokens, swapped}))[1];
  EXPECT_TRUE(at::equal(second, model->forward(at::cat({swapped, swapped}))[1]));
  EXPECT_TRUE(at::allclose(second, model->forward(swapped)[0], 1e-6, 1e-7));
  EXPECT_NE(testing::error_of([&] { model->forward(tokens.narrow(0, 0, 1)); }).find("pairs"), std::string::npos);
}

TEST(Classifier, IsSavedAndReadAgain) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/model.safetensors";
  at::manual_seed(5);
  const ModelConfig config = classifier_config(R"({"type": "classes", "classes": 3, "pooling": "class"})");
  EXPECT_EQ(ModelConfig::from_json(config.to_json(), "again").to_json(), config.to_json());
  Classifier first(config), second(config);
  const Tensor tokens = at::randint(11, {2, 5}, at::kLong);
  EXPECT_FALSE(at::equal(first.forward(tokens), second.forward(tokens)));
  save_weights(first, path);
  load_weights(second.config(), second, path);
  EXPECT_TRUE(at::equal(first.forward(tokens), second.forward(tokens)));
  Classifier other(classifier_config(R"({"type": "classes", "classes": 4, "pooling": "class"})"));
  EXPECT_NE(testing::error_of([&] { load_weights(other.config(), other, path); }).find("another model"),
            std::string::npos);
}

TEST(Classifier, RefusesWhatDoesNotFit) {
  const auto refused = [](const std::function<void()>& work, const std::string& part) {
    const std::string error = testing::error_of(work);
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  const std::string classes = R"({"type": "classes", "classes": 3})";
  refused([] { classifier_config(R"({"type": "classes"})"); }, "\"classes\"");
  refused([] { classifier_config(R"({"type": "classes", "classes": 1})"); }, "\"classes\"");
  refused([] { classifier_config(R"({"type": "classes", "classes": 3, "pool": 1})"); }, "\"pool\"");
  refused([] { classifier_config(R"({"type": "language", "classes": 3})"); }, "\"classes\"");
  refused([] { classifier_config(R"({"type": "language"})", kNumbers); }, "numbers");
  refused([&] { classifier_config(classes, R"({"input": {"type": "tokens", "channels": 2}})"); }, "\"channels\"");
  refused([&] { LanguageModel model(classifier_config(classes)); }, "language model");
  refused([] { Classifier model(classifier_config(R"({"type": "language"})")); }, "language model");

  const auto model = make_classifier(classes);
  const Tensor tokens = at::zeros({2, 4}, at::kLong);
  refused([&] { model->forward(tokens.to(at::kDouble)); }, "int64 tokens");
  refused([&] { model->forward(tokens.narrow(1, 0, 0)); }, "empty sequence");
  refused([&] { model->loss(tokens, at::zeros({3}, at::kLong)); }, "labels [2]");
  refused([&] { model->loss(tokens, at::tensor({0, 3}, at::kLong)); }, "label 3");
  const auto numbers = make_classifier(classes, kNumbers);
  refused([&] { numbers->forward(tokens); }, "numbers [B, T, 3]");
  refused([&] { numbers->forward(at::zeros({2, 4, 2}, at::kDouble)); }, "numbers [B, T, 3]");
}

// Data sets of tasks mark tokens that do not count by -100.
TEST(Classifier, TargetsBelowZeroAreNotCountedInALanguageModelsLoss) {
  Json json = classifier_config(R"({"type": "language"})").to_json();
  at::manual_seed(5);
  LanguageModel model(ModelConfig::from_json(json, "test"));
  const Tensor tokens = at::randint(11, {1, 4}, at::kLong);
  const Tensor first = at::tensor({3, -1, 4, -1}, at::kLong).unsqueeze(0), second = first.masked_fill(first < 0, -100);
  EXPECT_EQ(model.loss(tokens, first).item<float>(), model.loss(tokens, second).item<float>());
}

}  // namespace
}  // namespace cortado
