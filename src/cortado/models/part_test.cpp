// Parts of models, with weights from outside, compute what the models compute.
#include "cortado/models/part.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/nn/weights.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/examples.h"
#include "cortado/testing/models.h"

namespace cortado {
namespace {

std::vector<Tensor> weights_of(const torch::nn::Module& module) {
  std::vector<Tensor> weights;
  for (const auto& weight : named_weights(module)) weights.push_back(weight.value());
  return weights;
}

std::string block_text(const ModelConfig& config, int64_t layer) {
  return Json{{"part", "block"}, {"config", config.to_json()}, {"layer", layer}}.dump();
}

// Every weight of every mechanism can be replaced: a part computes with the given weights, and gradients equal the
// model's.
TEST(Part, BlocksOfEveryMechanismAreTheModelsOwn) {
  for (const std::string& mixer : testing::causal_mixers()) {
    SCOPED_TRACE(mixer);
    const auto model = testing::byte_model(mixer);
    model->to(at::kDouble);
    const Tensor x = at::randn({2, 11, 24}, at::kDouble);
    const auto block = Part::make(block_text(model->config(), 1));
    auto expected_weights = weights_of(*model->named_modules()["layers.1"]);
    std::vector<Tensor> weights;
    for (const Tensor& weight : expected_weights) {
      weights.push_back(weight.detach().clone().set_requires_grad(weight.requires_grad()));
    }
    const Tensor expected = model->named_modules()["layers.1"]->as<Block>()->forward(x, {}, nullptr);
    const Tensor all = run_part({block_text(model->config(), 1), "", false, weights, {x}, {}, {}})[0];
    const Tensor y = all.narrow(2, 0, 24);  // behind them may be values that layers share
    EXPECT_TRUE(at::equal(y, expected));
    const Tensor seed = at::randn_like(y);
    const auto trained = [](const std::vector<Tensor>& all) {
      std::vector<Tensor> some;
      for (const Tensor& weight : all) {
        if (weight.requires_grad()) some.push_back(weight);
      }
      return some;
    };
    const auto got = torch::autograd::grad({y}, trained(weights), {seed}, false, false, true);
    const auto wanted = torch::autograd::grad({expected}, trained(expected_weights), {seed}, false, false, true);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].defined(), wanted[i].defined());
      if (got[i].defined()) {
        EXPECT_TRUE(at::equal(got[i], wanted[i]));
      }
    }
  }
}

// A block's result has the shared values behind its own channels, and the next block takes them from there.
TEST(Part, BlocksHandOnTheValuesThatTheyShare) {
  CORTADO_NEEDS("rwkv7");
  const at::NoGradGuard no_grad;
  const auto model = testing::byte_model(R"({"mixer": "rwkv7"})");
  const Tensor x = at::randn({2, 11, 24});
  Tensor values, expected = x, alone = x, y = x;
  const Batch pass{.cu_seqlens = {}, .first_values = &values};
  for (const int64_t layer : {0, 1}) {
    const auto module = model->named_modules()[concat("layers.", layer)];
    expected = module->as<Block>()->forward(expected, pass, nullptr);
    alone = module->as<Block>()->forward(alone, {}, nullptr);
    const std::string text = block_text(model->config(), layer);
    EXPECT_EQ(part_width(text, y.size(2)), 48);
    y = run_part({text, "", false, weights_of(*module), {y}, {}, {}})[0];
  }
  EXPECT_TRUE(at::equal(y, at::cat({expected, values}, 2)));
  EXPECT_GT(testing::relative_error(alone, expected), 1e-3);
}

// A given state is not changed, and can be continued from twice.
TEST(Part, StatesAreNotWrittenTo) {
  const at::NoGradGuard no_grad;
  for (const std::string& mixer : testing::causal_mixers()) {
    SCOPED_TRACE(mixer);
    const auto model = testing::byte_model(mixer);
    const Tensor x = at::randn({2, 23, 24});
    const std::string text = block_text(model->config(), 0);
    const auto weights = weights_of(*model->named_modules()["layers.0"]);
    const auto part = Part::make(text);
    std::vector<Tensor> state;
    const SequenceState zeros = part->state_layout().zeros(part->state_name(), 2, at::kFloat);
    for (const auto& [name, tensor] : zeros.tensors()) state.push_back(tensor);
    auto first = run_part({text, "", false, weights, {x.slice(1, 0, 9)}, state, {}});
    state.assign(first.begin() + 1, first.end());
    std::vector<Tensor> before;
    for (const Tensor& part_of_it : state) before.push_back(part_of_it.clone());
    const Tensor once = run_part({text, "", false, weights, {x.slice(1, 9)}, state, {}})[0];
    run_part({text, "", false, weights, {at::randn({2, 5, 24})}, state, {}});
    for (size_t i = 0; i < state.size(); ++i) EXPECT_TRUE(at::equal(state[i], before[i]));
    EXPECT_TRUE(at::equal(run_part({text, "", false, weights, {x.slice(1, 9)}, state, {}})[0], once));
    const Tensor whole = run_part({text, "", false, weights, {x}, {}, {}})[0];
    EXPECT_LT(testing::relative_error(once, whole.slice(1, 9)), 2e-4);
  }
}

// Linear maps and embeddings can be called elsewhere, all of them, by their names in the part.
TEST(Part, CallsWhatOthersKeep) {
  const auto model = testing::byte_model(testing::causal_mixers().front());
  const Tensor x = at::randn({2, 11, 24});
  const auto weights = weights_of(*model->named_modules()["layers.0"]);
  PartCall call{block_text(model->config(), 0), "", false, weights, {x}, {}, {}};
  const Tensor expected = run_part(call)[0];
  std::vector<std::string> seen;
  const auto maps = model->named_modules()["layers.0"]->named_modules();
  call.called = {"mixer.q", "feed_forward.down"};
  call.inner = [&](const std::string& name, const Tensor& in) {
    seen.push_back(name);
    return at::linear(in, maps[name]->as<Linear>()->weight);
  };
  EXPECT_LT(testing::relative_error(run_part(call)[0], expected), 1e-5);
  EXPECT_EQ(seen, call.called);
  call.inner = [&](const std::string& name, const Tensor& in) {
    return 0 * at::linear(in, maps[name]->as<Linear>()->weight);
  };
  EXPECT_GT(testing::relative_error(run_part(call)[0], expected), 1e-3);
  // The replacement has ended: the next call reads the weights again.
  call.called.clear();
  EXPECT_TRUE(at::equal(run_part(call)[0], expected));
  call.called = {"mixer.w"};
  EXPECT_NE(testing::error_of([&] { run_part(call); }).find("is called mixer.w"), std::string::npos);
}

// Every mechanism gives this error, whatever its matrix products would say; with autocast it computes.
TEST(Part, AnInputHasTheTypeOfAWeight) {
  for (const std::string& mixer : testing::causal_mixers()) {
    SCOPED_TRACE(mixer);
    const auto model = testing::byte_model(mixer);
    PartCall call{
        block_text(model->config(), 0), "", false, weights_of(*model->named_modules()["layers.0"]), {}, {}, {}};
    const auto said = [&](at::ScalarType type) {
      call.inputs = {at::randn({2, 11, 24}).to(type)};
      return testing::error_of([&] { run_part(call); });
    };
    const std::string half = said(at::kHalf), both = "the input is Half, the weights are Float";
    EXPECT_NE(half.find(both), std::string::npos) << half;
    EXPECT_EQ(half.find('\n'), std::string::npos);
    EXPECT_NE(said(at::kDouble).find("the input is Double"), std::string::npos);
    EXPECT_EQ(said(at::kFloat), testing::kNoError);
    call.autocast = "bfloat16";
    EXPECT_EQ(said(at::kHalf), testing::kNoError);
    EXPECT_NE(said(at::kDouble).find("the input is Double"), std::string::npos);
  }
}

// Sums are float32, or float64 beside float64 inputs. Caches may have the type that autocast gave them.
TEST(Part, AStateHasTheTypeOfItsInput) {
  for (const std::string& mixer : testing::causal_mixers()) {
    SCOPED_TRACE(mixer);
    const auto model = testing::byte_model(mixer);
    const std::string text = block_text(model->config(), 0);
    const Tensor x = at::randn({2, 11, 24});
    const std::vector<Tensor> weights = weights_of(*model->named_modules()["layers.0"]);
    const auto before = run_part({text, "", false, weights, {x}, part_zero_state(text, 2, x), {}});
    const auto kinds = part_zero_state(text, 0, at::ones({}, at::kHalf));
    for (size_t i = 0; i < kinds.size(); ++i) {
      for (const auto type : {at::kHalf, at::kBFloat16, at::kDouble, at::kFloat}) {
        if (!kinds[i].is_floating_point()) continue;
        std::vector<Tensor> state(before.begin() + 1, before.end());
        state[i] = state[i].to(type);
        const bool cache = kinds[i].scalar_type() == at::kHalf;
        const auto said = testing::error_of([&] { run_part({text, "", false, weights, {x}, state, {}}); });
        if (type == at::kFloat || (cache && type != at::kDouble)) {
          EXPECT_EQ(said, testing::kNoError) << i << " " << type;
        } else {
          EXPECT_NE(said.find(concat("is ", type)), std::string::npos) << said;
          EXPECT_NE(said.find("2 rows of Float"), std::string::npos) << said;
        }
      }
    }
  }
}

TEST(Part, RefusesWhatIsWrongByItsName) {
  const auto refused = [](const PartCall& call) { return testing::error_of([&] { run_part(call); }); };
  const std::string latte = R"({"part": "mixer", "settings": {"mixer": "latte"}, "dim": 8})";
  EXPECT_NE(refused({"{}", "", false, {}, {at::ones({1})}, {}, {}}).find("part"), std::string::npos);
  EXPECT_NE(refused({latte, "", false, {}, {at::ones({1, 2, 8})}, {}, {}}).find("expected 4 weights, got 0"),
            std::string::npos);
  const std::vector<Tensor> weights(4, at::ones({8, 7}));
  EXPECT_NE(refused({latte, "", false, weights, {at::ones({1, 2, 8})}, {}, {}}).find("expected q.weight of the shape"),
            std::string::npos);
  const std::string softmax = R"({"part": "mixer", "settings": {"mixer": "softmax"}, "dim": 8})";
  const auto places = [&](int64_t now, int64_t tokens) {
    const auto entries = part_zero_state(softmax, 1, at::ones({1})).size();
    return testing::error_of([&] { part_places(softmax, std::vector<int64_t>(entries, now), tokens); });
  };
  EXPECT_EQ(places(3, 5), testing::kNoError);
  EXPECT_NE(places(1, std::numeric_limits<int64_t>::max()).find("places and tokens"), std::string::npos);
  EXPECT_NE(places(-1, 5).find("places and tokens"), std::string::npos);
}

}  // namespace
}  // namespace cortado
