#include "cortado/nn/lora.h"

#include <gtest/gtest.h>

#include "cortado/base/files.h"
#include "cortado/formats/safetensors.h"
#include "cortado/nn/feed_forward.h"
#include "cortado/nn/linear.h"
#include "cortado/nn/weights.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

using testing::error_of;

// Two maps, one inside another module.
struct TwoMaps : torch::nn::Module {
  std::shared_ptr<Linear> first, second;
  TwoMaps() {
    first = register_module("q", std::make_shared<Linear>(6, 5, true));
    auto inner = register_module("inner", std::make_shared<torch::nn::Module>("inner"));
    second = inner->register_module("o", std::make_shared<Linear>(5, 4));
  }
  Tensor forward(const Tensor& x) const { return second->forward(first->forward(x)); }
};

std::shared_ptr<TwoMaps> two_maps() {
  at::manual_seed(4);
  return std::make_shared<TwoMaps>();
}

const LoraOptions kBoth{.rank = 2, .alpha = 6, .targets = {"q", "o"}};

void randomize_adapters(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (const Parameter& parameter : lora_weights(module)) Tensor(parameter.value).normal_();
}

TEST(Lora, ChangesNothingAtFirst) {
  const auto maps = two_maps();
  const Tensor x = at::randn({3, 6}), before = maps->forward(x);
  attach_lora(*maps, kBoth);
  EXPECT_TRUE(at::equal(maps->forward(x), before));
  std::vector<std::string> names;
  for (const auto& entry : lora_weights(*maps)) names.push_back(entry.name);
  EXPECT_EQ(names, (std::vector<std::string>{"q.lora.down", "q.lora.up", "inner.o.lora.down", "inner.o.lora.up"}));
}

TEST(Lora, IsTheLowRankSum) {
  const auto maps = two_maps();
  attach_lora(*maps, {.rank = 2, .alpha = 6, .targets = {"q"}});
  randomize_adapters(*maps);
  const Tensor x = at::randn({3, 6});
  const Tensor &down = maps->first->lora()->down, &up = maps->first->lora()->up;
  const Tensor right = at::linear(x, maps->first->weight + 3.0 * at::matmul(up, down), maps->first->bias);
  EXPECT_CLOSE(maps->first->forward(x), right, 1e-6);
}

TEST(Lora, MergedEqualsApart) {
  const auto maps = two_maps();
  attach_lora(*maps, kBoth);
  randomize_adapters(*maps);
  const Tensor x = at::randn({3, 6}), apart = maps->forward(x);
  const auto merged = merged_weights(*maps);
  EXPECT_CLOSE(maps->forward(x), apart, 0.0);  // merged_weights does not change the module
  const auto plain = two_maps();
  auto now = named_weights(*plain);
  ASSERT_EQ(merged.size(), now.size());
  const at::NoGradGuard no_grad;
  for (const auto& [name, weight] : merged) now[name].copy_(weight);
  EXPECT_CLOSE(plain->forward(x), apart, 1e-6);
}

TEST(Lora, MergesIntoWeightsOfOtherTypes) {
  const auto maps = two_maps();
  attach_lora(*maps, kBoth);
  randomize_adapters(*maps);
  std::map<std::string, Tensor> weights = {{"q.weight", maps->first->weight.detach().to(at::kBFloat16)},
                                           {"inner.o.weight", maps->second->weight.detach()}};
  const Tensor right = weights["q.weight"].to(at::kFloat) + maps->first->lora()->product();
  merge_into(weights, tensors_of(lora_weights(*maps)), kBoth);
  EXPECT_EQ(weights["q.weight"].scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(weights["q.weight"], right.to(at::kBFloat16)));
  weights.erase("q.weight");
  EXPECT_EQ(error_of([&] { merge_into(weights, tensors_of(lora_weights(*maps)), kBoth); }),
            "[lora] \"q\" lacks a part");
}

TEST(Lora, GradientsReachTheAdaptersAlone) {
  const auto maps = two_maps();
  for (Tensor& parameter : maps->parameters()) parameter.requires_grad_(false);
  attach_lora(*maps, kBoth);
  randomize_adapters(*maps);
  maps->forward(at::randn({3, 6})).sum().backward();
  for (const auto& entry : maps->named_parameters()) {
    EXPECT_EQ(entry.value().grad().defined(), entry.key().find("lora") != std::string::npos) << entry.key();
  }
}

TEST(Lora, SurvivesAFile) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/lora.safetensors";
  const auto maps = two_maps(), again = two_maps();
  attach_lora(*maps, kBoth);
  randomize_adapters(*maps);
  save_lora(path, tensors_of(lora_weights(*maps)), kBoth);
  EXPECT_EQ(load_lora(path, *again), kBoth);
  const Tensor x = at::randn({3, 6});
  EXPECT_TRUE(at::equal(again->forward(x), maps->forward(x)));

  EXPECT_EQ(error_of([&] { load_lora(path, *again); }), "[lora] the linear map has an adapter");
  Linear other(6, 5);
  EXPECT_NE(error_of([&] { load_lora(path, other); }).find("no linear map"), std::string::npos);
  write_safetensors(path, {{{"x", at::ones({2})}}, {}});
  EXPECT_NE(error_of([&] { load_lora(path, *two_maps()); }).find("holds no adapters"), std::string::npos);
}

TEST(Lora, RefusesTargetsThatAreNotThere) {
  EXPECT_EQ(error_of([] { attach_lora(*two_maps(), {.targets = {"q", "gate"}}); }),
            "[lora] the model has no linear map \"gate\"; it has o, q");
}

}  // namespace
}  // namespace cortado
