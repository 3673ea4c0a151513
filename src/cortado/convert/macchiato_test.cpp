// Conversions to Macchiato: the initial model, and what the two stages learn.
#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/convert/weights.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/conversions.h"

namespace cortado {
namespace {

using namespace testing::conversions;

class MacchiatoConversionTest : public ConversionTest {
 protected:
  void SetUp() override {}  // does not need LoLCATs
};

Json macchiato_settings() {
  return parse_json(R"({"mixer": "macchiato", "window": 5, "source": "conv", "latents": 8, "window_logit": 20})",
                    "test");
}

TEST_F(MacchiatoConversionTest, LessonsAreTheMixersOwnOutputs) {
  const std::string run = make_run(small_config(kGrouped));
  expect_own_outputs_as_lessons(*convert(run, macchiato_settings()));
}

TEST_F(MacchiatoConversionTest, UntrainedIsTheSlidingWindowModel) {
  for (const char* mixer : {kGrouped, R"({"mixer": "softmax", "scale": 0.3, "softcap": 2.0, "rope_theta": 100})"}) {
    const std::string run = make_run(small_config(mixer));
    Json window = parse_json(mixer, "test");
    window["mixer"] = "sliding_window";
    window["window"] = 5;
    const Tensor tokens = some_tokens(2, 30);
    Json config = small_config(mixer);
    config["mixer"] = window;
    LanguageModel sliding(ModelConfig::from_json(config, "test"));
    const TensorFile source = map_weights(run, "best", read_config(run));
    for (const auto& [name, tensor] : source.tensors) {
      const at::NoGradGuard no_grad;
      sliding.named_parameters()[name].copy_(tensor);
    }
    const Tensor right = sliding.forward(tokens);
    const auto untrained = convert(run, macchiato_settings(), {});
    untrained->to(at::kFloat);
    EXPECT_CLOSE(untrained->forward(tokens), right, 2e-6);
    Json low = macchiato_settings();
    low["window_logit"] = 0;
    EXPECT_GT(testing::relative_error(convert(run, low)->forward(tokens), right), 1e-3);
  }
}

// Attention transfer, then next-token prediction; stopped in either stage.
TEST_F(MacchiatoConversionTest, LearnsInTwoStages) {
  const std::string run = make_run(small_config(kGrouped));
  const auto wanted = [&](const std::string& out) {
    LinearizeRequest result = request(run, out, macchiato_settings());
    result.plan.conversion.mixer["window_logit"] = 4;
    result.plan.transfer.tokens = 8 * 64;
    result.plan.transfer.learning_rate = 3e-3;
    result.plan.cross_entropy = result.plan.transfer;
    return result;
  };
  const auto whole = linearize(wanted("whole"));
  ASSERT_EQ(whole.stages.size(), 2u);
  for (const StageReport& stage : whole.stages) EXPECT_LT(stage.total_after, stage.total_before) << stage.name;
  const auto model = open_model(path("whole")), source = open_model(run);
  EXPECT_TRUE(at::equal(model->named_parameters()["layers.2.mixer.window_k.weight"],
                        source->named_parameters()["layers.2.mixer.k.weight"]));
  for (const int64_t stop : {5, 8, 11}) {
    LinearizeRequest first = wanted(concat("stopped-", stop));
    first.stop_at = stop;
    EXPECT_EQ(linearize(first).step, stop);
    EXPECT_TRUE(linearize(resuming(concat("stopped-", stop))).done);
    expect_same_weights(path(concat("stopped-", stop)) + "/best.safetensors", path("whole/best.safetensors"));
  }
}

}  // namespace
}  // namespace cortado
