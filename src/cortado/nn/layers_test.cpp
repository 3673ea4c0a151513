// Linear, norms, feed-forward, positions, embedding, block-diagonal: each against its formula in float64.
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "cortado/base/error.h"
#include "cortado/nn/autocast.h"
#include "cortado/nn/batch.h"
#include "cortado/nn/embedding.h"
#include "cortado/nn/experts.h"
#include "cortado/nn/feed_forward.h"
#include "cortado/nn/initialization.h"
#include "cortado/nn/linear.h"
#include "cortado/nn/matmul.h"
#include "cortado/nn/norm/norms.h"
#include "cortado/nn/rg_lru/rg_lru.h"
#include "cortado/nn/rotary/rotary.h"
#include "cortado/testing/compare.h"

namespace cortado {
namespace {

using testing::gradient_error;
using testing::relative_error;

Tensor random(at::IntArrayRef shape) { return at::randn(shape, at::kDouble); }

TEST(Linear, IsAMatrixProductWithLecunWeights) {
  at::manual_seed(1);
  Linear layer(400, 300, true);
  EXPECT_NEAR(layer.weight.std().item<double>(), 1.0 / 20, 1e-3);
  EXPECT_EQ(layer.bias->abs().max().item<double>(), 0.0);
  layer.to(at::kDouble);
  {
    const at::NoGradGuard no_grad;
    layer.bias->normal_();
  }
  const Tensor x = random({2, 3, 400});
  EXPECT_LT(relative_error(layer.forward(x), at::matmul(x, layer.weight.t()) + *layer.bias), 1e-12);
  EXPECT_EQ(layer.named_parameters().size(), 2u);
  EXPECT_EQ(Linear(4, 3).named_parameters().size(), 1u);
}

TEST(Linear, IsTheSameByOneDnn) {
  for (const bool with_bias : {true, false}) {
    std::vector<Tensor> leaves{at::randn({2, 30, 40}).requires_grad_(), at::randn({50, 40}).requires_grad_()};
    if (with_bias) leaves.push_back(at::randn({50}).requires_grad_());
    const std::optional<Tensor> bias = with_bias ? std::optional(leaves[2]) : std::nullopt;
    const Tensor got = onednn_linear(leaves[0], leaves[1], bias), right = at::linear(leaves[0], leaves[1], bias);
    EXPECT_LT(relative_error(got, right), 1e-6);
    const Tensor w = at::randn_like(right);
    const auto gradients = torch::autograd::grad({got}, leaves, {w}),
               expected = torch::autograd::grad({right}, leaves, {w});
    for (size_t i = 0; i < leaves.size(); ++i) EXPECT_LT(relative_error(gradients[i], expected[i]), 1e-6) << i;
  }
}

TEST(Linear, KnowsWhatThisMachineMultipliesFaster) {
  EXPECT_GT(matmul_speeds().blas, 0);
  EXPECT_GT(matmul_speeds().bfloat16, 0);
  const bool shorter = matmul_speeds().bfloat16 < matmul_speeds().blas;
  EXPECT_TRUE(fast_training_type() == at::kFloat || shorter);
  const char* before = std::getenv("CORTADO_MATMUL");
  const std::string kept = before ? before : "";
  setenv("CORTADO_MATMUL", "blas", 1);
  EXPECT_EQ(fast_training_type(), at::kFloat);
  before ? setenv("CORTADO_MATMUL", kept.c_str(), 1) : unsetenv("CORTADO_MATMUL");
}

TEST(RmsNorm, IsTheFormulaAndSoIsItsGradient) {
  RmsNorm norm(6, 1e-3);
  norm.to(at::kDouble);
  {
    const at::NoGradGuard no_grad;
    norm.weight.normal_();
  }
  const Tensor x = random({2, 3, 6});
  const Tensor expected = x / at::sqrt(at::mean(x * x, -1, true) + 1e-3) * norm.weight;
  EXPECT_LT(relative_error(norm.forward(x), expected), 1e-12);
  EXPECT_LT(gradient_error([&](const Tensor& v) { return norm.forward(v); }, x), 1e-7);
  EXPECT_LT(gradient_error([&](const Tensor& v) { return norm.forward(v * 1e-2); }, x), 1e-7);  // eps matters
  norm.zero_grad();
  norm.forward(x).sum().backward();
  EXPECT_LT(relative_error(norm.weight.grad(), (expected / norm.weight).sum(at::IntArrayRef{0, 1}).detach()), 1e-12);
}

TEST(RmsNorm, CastsBeforeTheWeight) {
  RmsNorm norm(64);
  norm.to(at::kBFloat16);
  {
    const at::NoGradGuard no_grad;
    norm.weight.normal_();
  }
  const Tensor x = at::randn({5, 64}).to(at::kBFloat16);
  const Tensor wide = x.to(at::kFloat);
  const Tensor expected = (wide * at::rsqrt(wide.square().mean(-1, true) + 1e-6)).to(at::kBFloat16) * norm.weight;
  EXPECT_TRUE(norm.forward(x).equal(expected));
  const Tensor with_graph = x.clone().requires_grad_(true);
  EXPECT_TRUE(norm.forward(with_graph).equal(expected));
}

TEST(LayerNorm, IsTheFormula) {
  LayerNorm norm(6, 1e-3, true);
  norm.to(at::kDouble);
  {
    const at::NoGradGuard no_grad;
    norm.weight.normal_();
    norm.bias->normal_();
  }
  const Tensor x = random({2, 3, 6});
  const Tensor centred = x - x.mean(-1, true);
  const Tensor expected = centred / at::sqrt(at::mean(centred * centred, -1, true) + 1e-3) * norm.weight + *norm.bias;
  EXPECT_LT(relative_error(norm.forward(x), expected), 1e-12);
  EXPECT_EQ(LayerNorm(6, 1e-5, false).named_parameters().size(), 1u);
}

// Rows are processed a few hundred at a time.
TEST(FeedForward, WithNarrowWeightsRowsStandAlone) {
  const at::NoGradGuard no_grad;
  for (const auto& [format, most] : {std::pair{WeightFormat::kInt8, 0.05}, {WeightFormat::kInt4, 0.3}}) {
    FeedForward layer({64, 96, true, Activation::kSilu, true});
    const Tensor x = at::randn({2, 450, 64}), right = layer.forward(x);
    for (const auto& module : layer.named_children()) {
      dynamic_cast<MatrixModule&>(*module.value()).set_format(format, true);
    }
    const Tensor all = layer.forward(x);
    EXPECT_LT(relative_error(all, right), most);
    for (const int64_t first : {0, 280, 449}) {
      const Tensor row = x.narrow(0, 1, 1).narrow(1, first, 1);
      EXPECT_TRUE(layer.forward(row).equal(all.narrow(0, 1, 1).narrow(1, first, 1))) << first;
    }
  }
}

// Every expert on every token, weighed by what of the softmax the k largest have.
TEST(Experts, EachTokenGoesThroughItsLikeliest) {
  at::manual_seed(8);
  for (const bool normalized : {true, false}) {
    for (const int64_t shared : {0, 5}) {
      Experts layer({6, 4, true, Activation::kSilu, false},
                    {.count = 5, .per_token = 2, .normalized = normalized, .shared = shared});
      layer.to(at::kDouble);
      const auto named = layer.named_parameters();
      EXPECT_EQ(named.size(), 1u + 3 * 5 + (shared ? 4 : 0));
      const auto swiglu = [&](const std::string& at, const Tensor& x) {
        const auto map = [&](const char* name, const Tensor& y) { return at::linear(y, named[at + name]); };
        return map(".down.weight", at::silu(map(".gate.weight", x)) * map(".up.weight", x));
      };
      const auto defined = [&](const Tensor& x) {
        const Tensor p = at::softmax(at::linear(x, named["router.weight"]), -1);
        const Tensor least = std::get<0>(p.topk(2, -1)).narrow(-1, 1, 1);
        Tensor weight = p.masked_fill(p < least, 0);
        if (normalized) weight = weight / weight.sum(-1, true);
        Tensor y = at::zeros_like(x);
        for (int64_t i = 0; i < 5; ++i) y = y + weight.narrow(-1, i, 1) * swiglu(concat("experts.", i), x);
        return shared ? y + at::sigmoid(at::linear(x, named["shared_gate.weight"])) * swiglu("shared", x) : y;
      };
      const Tensor x = at::randn({3, 7, 6}, at::kDouble).requires_grad_(true);
      const Tensor y = layer.forward(x), expected = defined(x), weights = at::randn_like(y);
      EXPECT_CLOSE(y, expected, 1e-12);
      std::vector<Tensor> leaves = layer.parameters();
      leaves.push_back(x);
      const auto got = torch::autograd::grad({(y * weights).sum()}, leaves, {}, {}, false, true);
      const auto wanted = torch::autograd::grad({(expected * weights).sum()}, leaves, {}, {}, false, true);
      for (size_t i = 0; i < leaves.size(); ++i) {
        ASSERT_EQ(got[i].defined(), wanted[i].defined()) << i;
        if (!got[i].defined()) continue;  // for an expert that no token used
        EXPECT_CLOSE(got[i], wanted[i], 1e-10) << i;
      }
      const double each = 2.0 * 3 * 6 * 4;
      EXPECT_EQ(layer.flops_per_token(), 2 * 6 * 5 + 2 * each + (shared ? 2 * 3 * 6 * 5 + 2 * 6 : 0));
      EXPECT_EQ(layer.forward(x.narrow(1, 0, 0)).sizes(), at::IntArrayRef({3, 0, 6}));
    }
  }
}

// Rounding errors give the router no gradient, either.
TEST(Experts, OneWholeExpertSaysNothingToTheRouter) {
  at::manual_seed(8);
  for (const bool normalized : {true, false}) {
    Experts layer({6, 4, true, Activation::kSilu, false}, {.count = 5, .per_token = 1, .normalized = normalized});
    layer.forward(at::randn({3, 7, 6})).sum().backward();
    const Tensor gradient = layer.named_parameters()["router.weight"].grad();
    EXPECT_EQ(gradient.abs().max().item<float>() > 0, !normalized);
  }
}

TEST(Experts, ASharedOneMayHaveNoGate) {
  at::manual_seed(8);
  const FeedForwardOptions each = {6, 4, true, Activation::kSilu, false};
  Experts gated(each, {.count = 5, .per_token = 2, .shared = 5});
  Experts plain(each, {.count = 5, .per_token = 2, .shared = 5, .shared_gate = false});
  Experts routed(each, {.count = 5, .per_token = 2});
  const auto named = gated.named_parameters();
  EXPECT_EQ(plain.named_parameters().size(), named.size() - 1);
  const c10::InferenceMode inference;
  for (Experts* layer : {&plain, &routed}) {
    for (const auto& it : layer->named_parameters()) it.value().copy_(named[it.key()]);
  }
  const Tensor x = at::randn({3, 7, 6}), gate = at::sigmoid(at::linear(x, named["shared_gate.weight"]));
  EXPECT_CLOSE((plain.forward(x) - routed.forward(x)) * gate, gated.forward(x) - routed.forward(x), 1e-5);
  EXPECT_EQ(plain.flops_per_token(), gated.flops_per_token() - 2 * 6);
}

// DeepSeek-V3's choice, and Nemotron-3's experts: token by token, by the definition.
TEST(Experts, ComeFromOpenGroupsAndSeeALatent) {
  at::manual_seed(8);
  for (const int64_t latent : {0, 3}) {
    Experts layer({6, 4, false, Activation::kRelu2, true}, {.count = 6,
                                                            .per_token = 3,
                                                            .shared = 5,
                                                            .shared_gate = false,
                                                            .gated = false,
                                                            .scores = RouterScores::kSigmoid,
                                                            .choice_bias = true,
                                                            .groups = 3,
                                                            .groups_per_token = 2,
                                                            .scale = 2.5,
                                                            .latent = latent});
    layer.to(at::kDouble);
    auto named = layer.named_parameters();
    {
      const c10::InferenceMode inference;
      named["choice_bias"].normal_(0, 0.3);
    }
    const auto map = [&](const std::string& name, const Tensor& x) {
      return at::linear(x, named[name + ".weight"], named[name + ".bias"]);
    };
    const auto mlp = [&](const std::string& name, const Tensor& x) {
      return map(name + ".down", at::relu(map(name + ".up", x)).square());
    };
    const auto defined = [&](const Tensor& token) {
      const Tensor scores = at::sigmoid(at::linear(token, named["router.weight"]));
      const Tensor ranks = scores + named["choice_bias"];
      const Tensor of_groups = ranks.view({3, 2}).sum(1);  // a group's two best are all it has
      const auto closed = of_groups.argmin().item<int64_t>();
      const Tensor open = ranks.index_fill(0, at::tensor({2 * closed, 2 * closed + 1}), -9);
      const Tensor chosen = std::get<1>(open.topk(3));
      const Tensor inside = latent > 0 ? map("latent_in", token) : token;
      Tensor sum = at::zeros_like(inside);
      for (int64_t i = 0; i < 3; ++i) {
        const auto expert = chosen[i].item<int64_t>();
        sum =
            sum + 2.5 * scores[expert] / scores.index_select(0, chosen).sum() * mlp(concat("experts.", expert), inside);
      }
      return mlp("shared", token) + (latent > 0 ? map("latent_out", sum) : sum);
    };
    const Tensor x = at::randn({9, 6}, at::kDouble).requires_grad_(true);
    std::vector<Tensor> rows;
    for (const Tensor& token : x.unbind(0)) rows.push_back(defined(token));
    const Tensor y = layer.forward(x), expected = at::stack(rows), weights = at::randn_like(y);
    EXPECT_CLOSE(y, expected, 1e-12);
    std::vector<Tensor> leaves = {x};
    for (const Parameter& parameter : trainable(layer)) leaves.push_back(parameter.value);
    EXPECT_EQ(leaves.size(), layer.parameters().size());  // all but the choice's bias, and x
    const auto got = torch::autograd::grad({(y * weights).sum()}, leaves, {}, {}, false, true);
    const auto wanted = torch::autograd::grad({(expected * weights).sum()}, leaves, {}, {}, false, true);
    for (size_t i = 0; i < leaves.size(); ++i) {
      ASSERT_EQ(got[i].defined(), wanted[i].defined()) << i;
      if (!got[i].defined()) continue;
      EXPECT_CLOSE(got[i], wanted[i], 1e-10) << i;
    }
    EXPECT_EQ(layer.forward(x.narrow(0, 0, 0)).sizes(), at::IntArrayRef({0, 6}));
  }
}

// gpt-oss's gate and router, and Llama 4's inputs: token by token, by the definition.
TEST(Experts, HaveLimitedGatesABiasedRouterAndScaledInputs) {
  at::manual_seed(8);
  for (const bool scale_input : {false, true}) {
    const GateLimit gate = {.limit = 0.6, .alpha = 1.3};
    Experts layer({6, 4, true, Activation::kSilu, true},
                  {.count = 5, .per_token = 2, .router_bias = true, .scale_input = scale_input, .limit = gate});
    layer.to(at::kDouble);
    auto named = layer.named_parameters();
    {
      const c10::InferenceMode inference;
      for (const auto& it : named) it.value().normal_();
    }
    const auto map = [&](const std::string& name, const Tensor& x) {
      return at::linear(x, named[name + ".weight"], named[name + ".bias"]);
    };
    const auto defined = [&](const Tensor& token) {
      const auto [scores, chosen] = map("router", token).topk(2);
      const Tensor weights = at::softmax(scores, 0);
      Tensor sum = at::zeros_like(token);
      for (int64_t i = 0; i < 2; ++i) {
        const std::string expert = concat("experts.", chosen[i].item<int64_t>());
        const Tensor x = scale_input ? token * weights[i] : token;
        const Tensor g = at::minimum(map(expert + ".gate", x), at::full({}, gate.limit, x.options()));
        const Tensor u = map(expert + ".up", x).clamp(-gate.limit, gate.limit);
        const Tensor y = map(expert + ".down", (u + 1) * g / (1 + (-gate.alpha * g).exp()));
        sum = sum + (scale_input ? y : y * weights[i]);
      }
      return sum;
    };
    const Tensor x = at::randn({2, 5, 6}, at::kDouble), y = layer.forward(x);
    for (int64_t t = 0; t < 10; ++t) EXPECT_CLOSE(y.view({10, 6})[t], defined(x.view({10, 6})[t]), 1e-12) << t;
  }
}

TEST(Experts, ComputeUnderAutocast) {
  for (const int64_t shared : {0, 5}) {
    Experts layer({6, 4, true, Activation::kSilu, false}, {.count = 5, .per_token = 2, .shared = shared});
    const Tensor x = at::randn({3, 7, 6}).requires_grad_(true);
    const Tensor wide = layer.forward(x);
    const Autocast on(at::kCPU, at::kBFloat16);
    const Tensor y = layer.forward(x);
    EXPECT_LT(relative_error(y.to(at::kFloat), wide), 0.05);
    y.sum().backward();
    EXPECT_TRUE(x.grad().defined());
  }
}

TEST(FeedForward, HasThreeKinds) {
  const Tensor x = random({2, 3, 5});
  const auto weights = [](FeedForward& layer, const char* name) {
    return layer.named_parameters()[std::string(name) + ".weight"];
  };
  const auto gelu = [](const Tensor& v) { return 0.5 * v * (1 + at::erf(v / std::sqrt(2.0))); };
  const auto gelu_tanh = [](const Tensor& v) {
    return 0.5 * v * (1 + at::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  };
  FeedForward mlp({5, 7, false, Activation::kGelu, false});
  mlp.to(at::kDouble);
  const Tensor plain = at::matmul(gelu(at::matmul(x, weights(mlp, "up").t())), weights(mlp, "down").t());
  EXPECT_LT(relative_error(mlp.forward(x), plain), 1e-12);
  FeedForward glu({5, 7, true, Activation::kSilu, false});
  glu.to(at::kDouble);
  const Tensor gate = at::matmul(x, weights(glu, "gate").t());
  const Tensor hidden = gate * at::sigmoid(gate) * at::matmul(x, weights(glu, "up").t());
  EXPECT_LT(relative_error(glu.forward(x), at::matmul(hidden, weights(glu, "down").t())), 1e-12);
  EXPECT_LT(relative_error(activate(x, Activation::kGeluTanh), gelu_tanh(x)), 1e-12);
  EXPECT_EQ(mlp.flops_per_token(), 2.0 * 2 * 5 * 7);
  EXPECT_EQ(glu.flops_per_token(), 3.0 * 2 * 5 * 7);
  EXPECT_EQ(FeedForward({5, 7, true, Activation::kSilu, true}).named_parameters().size(), 6u);
}

TEST(Positions, AreInterleavedSinesAndCosines) {
  const Tensor positions = at::tensor({0, 3, 70}, at::kLong).unsqueeze(0);
  const Tensor table = sinusoidal_positions(positions, 5, at::kDouble);
  ASSERT_EQ(table.sizes(), (std::vector<int64_t>{1, 3, 5}));
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t d = 0; d < 5; ++d) {
      const double angle = positions[0][t].item<double>() / std::pow(1e4, 2.0 * static_cast<double>(d / 2) / 5);
      EXPECT_NEAR(table[0][t][d].item<double>(), d % 2 == 0 ? std::sin(angle) : std::cos(angle), 1e-12);
    }
  }
}

TEST(Embedding, LooksUpAndScales) {
  Embedding plain(7, 4), scaled(7, 4, 2.0);
  const Tensor tokens = at::tensor({1, 6, 0, 1}, at::kLong).view({2, 2});
  EXPECT_TRUE(plain.forward(tokens, at::kFloat)[0][1].equal(plain.weight[6]));
  EXPECT_TRUE(scaled.forward(tokens, at::kFloat)[0][1].equal(scaled.weight[6] * 2));
}

TEST(BlockDiagonal, MultipliesEveryHeadByItsOwnMatrix) {
  BlockDiagonal layer(6, 2);
  layer.to(at::kDouble);
  {
    const at::NoGradGuard no_grad;
    layer.bias.normal_();
  }
  const Tensor x = random({2, 3, 6});
  const Tensor first = at::matmul(x.slice(-1, 0, 3), layer.weight[0]);
  const Tensor second = at::matmul(x.slice(-1, 3, 6), layer.weight[1]);
  EXPECT_LT(relative_error(layer.forward(x), at::cat({first, second}, -1) + layer.bias), 1e-12);
  EXPECT_THROW(BlockDiagonal(6, 4), InputError);
}

class Pair : public torch::nn::Module {
 public:
  Pair() {
    in = register_module("in", std::make_shared<Linear>(100, 100, true));
    out = register_module("out", make_output_linear(100, 100));
    embedding = register_module("embedding", std::make_shared<Embedding>(100, 100));
  }
  std::shared_ptr<Linear> in, out;
  std::shared_ptr<Embedding> embedding;
};

TEST(Initialization, RedrawsAndScalesTheResidualProjections) {
  Pair pair;
  {
    const at::NoGradGuard no_grad;
    pair.in->bias->fill_(3);
  }
  initialize(pair, {true, 0.02, true, 8});
  EXPECT_NEAR(pair.in->weight.std().item<double>(), 0.02, 1e-3);
  EXPECT_NEAR(pair.embedding->weight.std().item<double>(), 0.02, 1e-3);
  EXPECT_NEAR(pair.out->weight.std().item<double>(), 0.02 / 4, 3e-4);
  EXPECT_EQ(pair.in->bias->abs().max().item<double>(), 0.0);
  Pair other;
  initialize(other, {false, 0.02, true, 2});
  EXPECT_NEAR(other.out->weight.std().item<double>(), 0.1 / 2, 2e-3);
  EXPECT_NEAR(other.in->weight.std().item<double>(), 0.1, 4e-3);
}

TEST(Initialization, CanBeSkipped) {
  at::manual_seed(5);
  const double expected = at::rand({1}, at::kDouble).item<double>();
  at::manual_seed(5);
  {
    const SkipInitialization skip;
    Linear unused(10, 10);
  }
  EXPECT_EQ(at::rand({1}, at::kDouble).item<double>(), expected);
  Linear drawn(10, 10);
  EXPECT_NE(at::rand({1}, at::kDouble).item<double>(), expected);
}

TEST(Batch, CountsPositionsOfDenseAndPackedTokens) {
  const Tensor x = at::zeros({2, 3, 1});
  const Tensor start = at::tensor({10, 20}, at::kLong);
  EXPECT_TRUE(Batch{}.positions(x).equal(at::tensor({0, 1, 2, 0, 1, 2}, at::kLong).view({2, 3})));
  EXPECT_TRUE(Batch{}.positions(x, start).equal(at::tensor({10, 11, 12, 20, 21, 22}, at::kLong).view({2, 3})));
  EXPECT_TRUE(Batch{}.lengths(x).equal(at::tensor({3, 3}, at::kLong)));
  Batch packed;
  packed.cu_seqlens = at::tensor({0, 2, 2, 5}, at::kInt);
  const Tensor y = at::zeros({1, 5, 1});
  EXPECT_EQ(packed.rows(y), 3);
  EXPECT_TRUE(packed.positions(y).equal(at::tensor({0, 1, 0, 1, 2}, at::kLong).view({1, 5})));
  EXPECT_TRUE(packed.positions(y, at::tensor({7, 8, 9}, at::kLong))
                  .equal(at::tensor({7, 8, 9, 10, 11}, at::kLong).view({1, 5})));
  EXPECT_TRUE(packed.lengths(y).equal(at::tensor({2, 0, 3}, at::kLong)));
}

TEST(Batch, PacksAPaddedBatch) {
  const Tensor tokens = at::tensor({1, 2, 0, 0, 0, 0, 3, 4, 5}, at::kLong).view({3, 3});
  const Packed packed = pack_padded(tokens, at::tensor({2, 0, 3}, at::kLong));
  EXPECT_TRUE(packed.tokens.equal(at::tensor({1, 2, 3, 4, 5}, at::kLong).unsqueeze(0)));
  EXPECT_TRUE(packed.batch.cu_seqlens->equal(at::tensor({0, 2, 2, 5}, at::kLong)));
  EXPECT_THROW(pack_padded(tokens, at::tensor({2, 0, 4}, at::kLong)), InputError);
  EXPECT_THROW(pack_padded(tokens, at::tensor({2, 0}, at::kLong)), InputError);
  EXPECT_THROW(last_of_each(packed.tokens, packed.batch), InputError);
  const Packed full = pack_padded(tokens, at::tensor({2, 1, 3}, at::kLong));
  EXPECT_TRUE(last_of_each(full.tokens, full.batch).equal(at::tensor({2, 0, 5}, at::kLong)));
}

}  // namespace
}  // namespace cortado
