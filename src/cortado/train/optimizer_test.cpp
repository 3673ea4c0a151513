#include "cortado/train/optimizer.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <set>

#include "cortado/base/error.h"
#include "cortado/testing/examples.h"

namespace cortado {
namespace {

// A matrix, a vector, and a parameter that never gets a gradient.
struct Toy : Module {
  Tensor matrix, vector, idle;
  Toy() : Module("Toy") {
    at::manual_seed(3);
    register_parameter(matrix, "matrix", at::randn({5, 7}), Role::kMatrix);
    register_parameter(vector, "vector", at::randn({5}), Role::kGain);
    register_parameter(idle, "idle", at::randn({2, 2}), Role::kMatrix);
  }
  void differentiate(int64_t step) {
    at::manual_seed(100 + uint64_t(step));
    const Tensor x = at::randn({3, 7}) * 10;
    at::tanh(at::linear(x, matrix, vector)).pow(2).sum().backward();
  }
};

TrainingOptions toy_options() {
  TrainingOptions options;
  options.weight_decay = 0.3;
  return options;
}

TEST(AdamW, EqualsTorchsOwn) {
  Toy ours, theirs;
  AdamW optimizer(trainable(ours), toy_options());
  const auto settings = torch::optim::AdamWOptions(1.0).betas({0.9, 0.99}).eps(1e-8);
  auto decayed = std::make_unique<torch::optim::AdamWOptions>(settings);
  decayed->weight_decay(0.3);
  auto plain = std::make_unique<torch::optim::AdamWOptions>(settings);
  plain->weight_decay(0.0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<Tensor>{theirs.matrix, theirs.idle}, std::move(decayed));
  groups.emplace_back(std::vector<Tensor>{theirs.vector}, std::move(plain));
  torch::optim::AdamW expected(groups, settings);

  for (int64_t step = 0; step < 20; ++step) {
    const double rate = 0.01 / double(step + 1);
    ours.differentiate(step);
    optimizer.step(rate);
    optimizer.clear_gradients();
    theirs.differentiate(step);
    for (auto& group : expected.param_groups()) group.options().set_lr(rate);
    expected.step();
    expected.zero_grad();
  }
  EXPECT_TRUE(at::allclose(ours.matrix, theirs.matrix, 1e-5, 1e-7));
  EXPECT_TRUE(at::allclose(ours.vector, theirs.vector, 1e-5, 1e-7));
  EXPECT_TRUE(at::equal(ours.idle, theirs.idle));
}

TEST(AdamW, DecaysMatricesOnly) {
  const Toy toy;
  EXPECT_EQ(AdamW(trainable(toy), toy_options()).decayed(), (std::vector<std::string>{"matrix", "idle"}));
}

// With rate · decay = 1, decayed parameters become 0. In every mechanism these are the matrices and embeddings only.
TEST(AdamW, LeavesTheDynamicsOfEveryMechanismAsTheyAre) {
  const std::set<std::string> dynamics{"a_log", "step_bias", "dt_bias", "log_step", "log_decay", "frequency",
                                       "decay", "bonus",     "mix",     "mix_x",    "mix_k",     "mix_v",
                                       "mix_r", "bound",     "lambda",  "alpha",    "delta"};
  TrainingOptions options;
  options.weight_decay = 1;
  for (const Mechanism* mechanism : mechanisms()) {
    Json settings = parse_json(testing::examples_of(*mechanism).examples.front(), mechanism->name);
    settings["mixer"] = mechanism->name;
    const auto mixer = make_mixer(settings, {.dim = 24, .heads = 4, .causal = mechanism->causal}, "example");
    const Parameters parameters = trainable(*mixer);
    std::vector<Tensor> before;
    for (const Parameter& parameter : parameters) {
      Tensor(parameter.value).mutable_grad() = at::zeros_like(parameter.value);
      before.push_back(parameter.value.detach().clone());
    }
    AdamW(parameters, options).step(1.0);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& [name, value, role] = parameters[i];
      const std::string last = name.substr(name.find_last_of('.') + 1);
      EXPECT_TRUE(role == Role::kDynamics || !dynamics.contains(last)) << mechanism->name << ": " << name;
      EXPECT_TRUE(value.dim() >= 2 || !is_decayed(role)) << mechanism->name << ": " << name;
      EXPECT_TRUE(is_decayed(role) ? !value.any().item<bool>() : at::equal(value, before[i]))
          << mechanism->name << ": " << name;
    }
  }
}

TEST(AdamW, ClipsByTheGlobalNorm) {
  Toy toy;
  AdamW optimizer(trainable(toy), toy_options());
  toy.differentiate(0);
  const double norm =
      std::sqrt(toy.matrix.grad().pow(2).sum().item<double>() + toy.vector.grad().pow(2).sum().item<double>());
  EXPECT_NEAR(optimizer.gradient_norm(), norm, 1e-5 * norm);
  EXPECT_EQ(clip_divisor(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_divisor(5.0, 1.0), 5.0);
  EXPECT_EQ(clip_divisor(5.0, 0.0), 1.0);
  const Tensor gradient = toy.vector.grad().clone();
  optimizer.step(0.1, 4.0);
  // The first moment after one step is (1 - beta1) · gradient / divisor.
  for (const auto& [name, moment] : optimizer.moments()) {
    if (name != "first.vector") continue;
    EXPECT_TRUE(at::allclose(moment, gradient * 0.1 / 4.0, 1e-4, 1e-9));
  }
}

TEST(AdamW, RestoresExactly) {
  Toy a, b;
  AdamW first(trainable(a), toy_options()), second(trainable(b), toy_options());
  const auto step = [](Toy& toy, AdamW& optimizer, int64_t number) {
    toy.differentiate(number);
    optimizer.step(0.01);
    optimizer.clear_gradients();
  };
  for (int64_t i = 0; i < 3; ++i) step(a, first, i);
  {
    const at::NoGradGuard no_grad;
    for (auto& entry : b.named_parameters()) entry.value().copy_(a.named_parameters()[entry.key()]);
  }
  // Moments are found by name: earlier versions stored them in the order of other groups.
  auto reversed = first.moments();
  std::ranges::reverse(reversed);
  second.restore(reversed, 3);
  for (int64_t i = 3; i < 6; ++i) {
    step(a, first, i);
    step(b, second, i);
  }
  EXPECT_TRUE(at::equal(a.matrix, b.matrix));
  EXPECT_TRUE(at::equal(a.vector, b.vector));

  auto moments = first.moments();
  moments.pop_back();
  EXPECT_THROW(second.restore(moments, 3), InputError);
  moments = first.moments();
  moments[0].second = at::zeros({1});
  EXPECT_THROW(second.restore(moments, 3), InputError);
}

}  // namespace
}  // namespace cortado
