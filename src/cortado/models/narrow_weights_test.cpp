// Files of weights in 8 and 4 bits: they give what the model packed in memory gives, and damaged ones are refused.
#include "cortado/models/narrow_weights.h"

#include <gtest/gtest.h>

#include "cortado/base/files.h"
#include "cortado/models/checkpoint.h"
#include "cortado/nn/weights.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

using testing::error_of;

ModelConfig small_config(int64_t dim = 32) {
  Json config = parse_json(R"({"vocabulary": 40, "heads": 2, "feed_forward": {"type": "swiglu"}, "layers": [
      {"mixer": {"mixer": "mamba2", "heads": 4}}, {"mixer": {"mixer": "softmax"}}]})",
                           "test");
  config["dim"] = dim;
  return ModelConfig::from_json(config, "test");
}

class NarrowFiles : public ::testing::TestWithParam<WeightFormat> {
 protected:
  NarrowFiles() {
    at::manual_seed(5);
    model_ = std::make_shared<LanguageModel>(small_config());
    model_->eval();
    NarrowWeights weights(GetParam());
    for (const auto& parameter : named_weights(*model_)) {
      weights.take(model_->config(), parameter.key(), parameter.value().detach());
    }
    weights.save(folder_.path(), "a test");
    bytes_ = weights.bytes();
    write_file(folder_.path() + "/config.json", model_->config().to_json().dump());
  }
  std::string file() const { return narrow_weights_path(folder_.path(), GetParam()); }

  TemporaryDirectory folder_;
  std::shared_ptr<LanguageModel> model_;
  int64_t bytes_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Each, NarrowFiles, ::testing::Values(WeightFormat::kInt8, WeightFormat::kInt4));

TEST_P(NarrowFiles, GiveWhatTheModelPackedInMemoryGives) {
  const at::NoGradGuard no_grad;
  const Tensor tokens = at::randint(40, {2, 9}, at::kLong);
  model_->set_weight_format(GetParam());
  EXPECT_EQ(bytes_, model_->weight_bytes());
  for (const WeightFormat asked : {GetParam(), WeightFormat::kPlain}) {
    const auto opened = open_model(folder_.path(), {.weights = format_to_infer(folder_.path(), asked)});
    EXPECT_EQ(opened->weight_format(), GetParam());
    EXPECT_TRUE(opened->forward(tokens).equal(model_->forward(tokens)));
  }
}

TEST_P(NarrowFiles, AreForInferenceOnly) {
  const std::string message = error_of([&] { map_weights(folder_.path(), "last", model_->config()); });
  EXPECT_NE(message.find("only, for inference"), std::string::npos) << message;
  EXPECT_NE(error_of([&] { open_model(folder_.path()); }), "");
  const auto other = GetParam() == WeightFormat::kInt8 ? WeightFormat::kInt4 : WeightFormat::kInt8;
  EXPECT_NE(error_of([&] { open_model(folder_.path(), {.weights = other}); }), "");
}

TEST_P(NarrowFiles, AreRefusedIfTheyAreAnotherModelsOrDamaged) {
  LanguageModel wider(small_config(48));
  wider.set_weight_format(GetParam());
  const std::string message = error_of([&] { load_narrow_weights(wider.config(), wider, file()); });
  EXPECT_NE(message.find("another model"), std::string::npos) << message;
  const std::string whole = read_file(file());
  std::string flipped = whole;
  flipped[flipped.size() - 100] ^= 1;
  for (const std::string& damaged : {flipped, whole.substr(0, whole.size() - 7), std::string("{}")}) {
    write_file(file(), damaged);
    EXPECT_NE(error_of([&] { open_model(folder_.path(), {.weights = GetParam()}); }), "");
  }
}

}  // namespace
}  // namespace cortado
