// Compares attention transfer to LoLCATs with its definition.
#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/mechanisms/lolcats/op.h"
#include "cortado/primitives/window_attention/op.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/conversions.h"

namespace cortado {
namespace {

using namespace testing::conversions;

// One layer's loss by the definitions of both attentions, without rotary positions.
Tensor plain_loss(const torch::nn::Module& mixer, const Tensor& x, const LolcatsRule& rule) {
  const auto w = mixer.named_parameters();
  const auto heads = [&](const char* name) {
    const std::string key(name);
    return at::linear(x, w[key + ".weight"], w[key + ".bias"]).unflatten(-1, {-1, 8});
  };
  const Tensor q = heads("q"), k = heads("k").repeat_interleave(2, 2), v = heads("v").repeat_interleave(2, 2);
  const auto phi = [&](const Tensor& y, const char* name) {
    const Tensor z = at::einsum("bthd,hdf->bthf", {y, w[std::string(name) + ".weight"]});
    return at::cat({at::softmax(z, -1), at::softmax(-z, -1)}, -1).clamp_min(1e-12);
  };
  const Tensor student = lolcats_reference(q, k, v, phi(q, "phi_q"), phi(k, "phi_k"), w["window_factor"], rule);
  return at::mse_loss(student, std::get<0>(window_attention_reference(q, k, v)));
}

TEST_F(ConversionTest, LossesAndGradientsEqualTheWholeGraphs) {
  Json config = small_config(kGrouped);
  config["positions"] = "none";
  const std::string run = make_run(config);
  for (const char* layout : {"sliding", "terrace"}) {
    for (const char* mixture : {"lolcats", "gated", "plain"}) {
      const auto model = convert(
          run, lolcats_settings(concat(R"({"layout": ")", layout, R"(", "mixture": ")", mixture, R"("})")), {1});
      AttentionTransfer transfer(model, 1 << 20);
      EXPECT_EQ(transfer.layers(), (std::vector<int64_t>{0, 2}));
      const Tensor tokens = some_tokens(2, 19);
      const auto losses = transfer.losses({tokens, {}}, 0.5);

      const auto inputs = forced_inputs(*model, tokens);
      const LolcatsRule rule{
          4, value_of(lolcats_layouts(), layout, "layout"), value_of(lolcats_mixtures(), mixture, "mixture"), {}, {}};
      Tensor total = at::zeros({}, at::kDouble);
      for (size_t i = 0; i < 2; ++i) {
        const Tensor loss = plain_loss(*model->mixers()[i * 2], inputs[i * 2], rule);
        EXPECT_NEAR(losses[i], loss.item<double>(), 1e-12 * losses[i]);
        total = total + loss;
      }
      std::vector<Tensor> learned, gradients;
      for (const auto& [name, parameter, role] : transfer.learned()) {
        learned.push_back(parameter);
        gradients.push_back(parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter));
      }
      testing::expect_gradients_close(
          gradients, testing::gradients({total * 0.5 * 1000 / 2}, {at::ones({}, at::kDouble)}, learned), 1e-9);
      for (const auto& entry : model->named_parameters()) {
        EXPECT_TRUE(entry.value().requires_grad() || !entry.value().grad().defined()) << entry.key();
      }
    }
  }
}

}  // namespace
}  // namespace cortado
