#include "cortado/analyze/analyze.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cortado/base/chart.h"
#include "cortado/base/error.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/testing/examples.h"

namespace cortado::analyze_test {

std::shared_ptr<Mixer> mixer(const Json& settings, int64_t dim = 16, int64_t heads = 2) {
  torch::manual_seed(3);
  MixerContext context;
  context.dim = dim;
  context.heads = heads;
  return make_mixer(settings, context, "test");
}

at::Tensor input(int64_t tokens, int64_t dim = 16) {
  torch::manual_seed(5);
  return at::randn({1, tokens, dim});
}

at::Tensor weight(const Mixer& of, const std::string& name) { return of.named_parameters()[name].detach(); }

void expect_close(const at::Tensor& got, const at::Tensor& wanted, double tolerance = 1e-5) {
  ASSERT_EQ(got.sizes(), wanted.sizes());
  EXPECT_LT((got - wanted).abs().max().item<double>(), tolerance);
}

LanguageModel model(const Json& mixer) {
  torch::manual_seed(7);
  return LanguageModel(ModelConfig::from_json({{"vocabulary", 11},
                                               {"dim", 16},
                                               {"heads", 2},
                                               {"layers", 2},
                                               {"mixer", mixer},
                                               {"feed_forward", {{"type", "none"}}}},
                                              "test"));
}

Reading reading_of(LanguageModel& model, int64_t tokens, std::vector<int64_t> layers = {}) {
  std::vector<std::string> names;
  for (int64_t t = 0; t < tokens; ++t) names.push_back(std::to_string(t));
  return {model, at::randint(11, {1, tokens}, at::kLong), names, std::move(layers)};
}

TEST(PairWeights, OfSoftmaxWithSharedKeysAreThatOfItsScores) {
  const auto softmax = mixer({{"mixer", "softmax"}, {"heads", 2}, {"kv_heads", 1}});
  const at::Tensor x = input(6);
  const PairWeights found = pair_weights(*softmax, x, 2);
  EXPECT_TRUE(found.same_for_channels);
  const at::Tensor q = at::matmul(x[0], weight(*softmax, "q.weight").t()).unflatten(1, {2, 8}).transpose(0, 1);
  const at::Tensor k = at::matmul(x[0], weight(*softmax, "k.weight").t());
  const at::Tensor scores = at::matmul(q, k.t()) / std::sqrt(8.0);
  const at::Tensor future = at::ones({6, 6}, at::kBool).triu(1);
  expect_close(found.weights, at::softmax(scores.masked_fill(future, -INFINITY), -1));
}

// The definition: o_t = sum_l p(l|t) sum_s softmax_{s<=t}(theta_sl) v_s.
TEST(PairWeights, OfLatentsAreTheirProducts) {
  CORTADO_NEEDS("latte");
  const auto latte = mixer({{"mixer", "latte"}, {"latents", 8}});
  const at::Tensor x = input(5);
  const at::Tensor p =
      at::softmax(at::matmul(x[0], weight(*latte, "q.weight").t()).unflatten(1, {2, 4}).transpose(0, 1), -1);
  const at::Tensor theta = at::matmul(x[0], weight(*latte, "k.weight").t()).unflatten(1, {2, 4}).transpose(0, 1);
  at::Tensor wanted = at::zeros({2, 5, 5});
  for (int64_t t = 0; t < 5; ++t) {
    const at::Tensor over_time = at::softmax(theta.narrow(1, 0, t + 1), 1);  // [H, s, L]
    wanted.select(1, t).narrow(1, 0, t + 1).copy_(at::matmul(over_time, p.select(1, t).unsqueeze(2)).squeeze(2));
  }
  expect_close(pair_weights(*latte, x, 2).weights, wanted);
}

// Every causal mechanism has weights that give its output, or reports that it has none.
TEST(PairWeights, OfEveryMechanismSeeThePastOnly) {
  int with_weights = 0;
  for (const Mechanism* mechanism : mechanisms()) {
    if (!mechanism->causal) continue;
    const auto one = mixer({{"mixer", mechanism->name}});
    try {
      const PairWeights found = pair_weights(*one, input(7), 2);
      ++with_weights;
      EXPECT_EQ(found.weights.size(1), 7) << mechanism->name;
      EXPECT_EQ(found.weights.triu(1).abs().max().item<double>(), 0) << mechanism->name;
      EXPECT_GT(found.weights.abs().max().item<double>(), 0) << mechanism->name;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("no weights of tokens"), std::string::npos) << error.what();
    }
  }
  EXPECT_GE(with_weights, int(mechanisms().size()) * 2 / 3);
}

TEST(Attention, SummaryOfUniformWeights) {
  // With keys of zero, every token weighs its past uniformly: A_ts = 1/(t+1).
  LanguageModel uniform = model({{"mixer", "softmax"}});
  for (const auto& entry : uniform.named_parameters()) {
    if (entry.key().ends_with("k.weight")) entry.value().detach().zero_();
  }
  const Finding finding = analyze_attention(reading_of(uniform, 4, {1}), 1);
  ASSERT_EQ(finding.json["summary"].size(), 2u);  // layer 1, two heads
  const Json& row = finding.json["summary"][0];
  EXPECT_EQ(row["layer"], 1);
  EXPECT_NEAR(row["self"].get<double>(), (1 + 1 / 2.0 + 1 / 3.0 + 1 / 4.0) / 4, 1e-5);
  EXPECT_NEAR(row["distance"].get<double>(), (0 + 0.5 + 1 + 1.5) / 4, 1e-5);
  EXPECT_NEAR(row["entropy"].get<double>(), std::log(24.0) / 4, 1e-5);
  EXPECT_NEAR(row["last_16"].get<double>(), 1, 1e-6);
  EXPECT_EQ(finding.json["layers"][0]["heads"].size(), 1u);  // one head is drawn
  ASSERT_EQ(finding.pictures.size(), 1u);
  EXPECT_TRUE(finding.pictures[0].second.starts_with("<svg"));
  EXPECT_THROW(analyze_attention(reading_of(uniform, 4, {2}), 1), InputError);
}

TEST(Attention, WhereLolaHoldsItsPairs) {
  CORTADO_NEEDS("lola");
  LanguageModel lola = model({{"mixer", "lola"}, {"chunk", 2}, {"cache", 1}});
  const Reading reading = reading_of(lola, 8, {0});
  const auto layer = read_layers(reading).front();
  const at::Tensor held = layer.mixer.held(layer.x).places[0];
  // The last two chunks are the window. Of the pairs before it, one is cached and the others are in the state.
  for (int64_t t = 0; t < 8; ++t) {
    const int64_t first = std::max<int64_t>(0, (t / 2 - 1) * 2);
    int64_t cached = 0;
    for (int64_t s = 0; s < 8; ++s) {
      const auto place = held[t][s].item<int64_t>();
      EXPECT_EQ(place == -1, s > t);
      EXPECT_EQ(place == 0, s >= first && s <= t);
      cached += place == 1;
    }
    EXPECT_EQ(cached, first > 0 ? 1 : 0);
  }
  const Json row = analyze_attention(reading, 2).json["summary"][0];
  const Json& shares = row["memories"];
  EXPECT_NEAR(shares["window"].get<double>() + shares["cache"].get<double>() + shares["state"].get<double>(), 1, 1e-6);
}

// With equal logits all states are used equally; with one logit far above the others, only that state is used.
TEST(Latents, UsageOfAllStatesAndOfOne) {
  CORTADO_NEEDS("macchiato");
  LanguageModel macchiato = model({{"mixer", "macchiato"}, {"latents", 8}, {"source", "x"}, {"window", 3}});
  const auto set = [&](const std::function<void(at::Tensor)>& change) {
    for (const auto& entry : macchiato.named_parameters()) {
      if (entry.key().ends_with("latent_q.weight")) change(entry.value().detach());
    }
  };
  set([](at::Tensor weight) { weight.zero_(); });
  Json row = analyze_latents(reading_of(macchiato, 6), 1).json["summary"][0];
  EXPECT_EQ(row["states"], 5);  // four latents per head, and the window
  EXPECT_NEAR(row["usage"].get<double>(), 1, 1e-5);
  EXPECT_NEAR(row["window"].get<double>(), 0.2, 1e-5);
  EXPECT_NEAR(row["used"].get<double>(), 5, 1e-4);
  LanguageModel softmax = model({{"mixer", "softmax"}});
  EXPECT_THROW(analyze_latents(reading_of(softmax, 6), 1), InputError);
}

TEST(Collisions, ErrorsByHand) {
  // Orthogonal keys: the state returns the stored values exactly.
  const at::Tensor apart = recall_errors(at::eye(3), at::randn({3, 2}), 0, 0);
  EXPECT_NEAR(apart.nan_to_num(0.0).abs().max().item<double>(), 0, 1e-6);
  // Equal keys: the state returns the mean of the values: 1, then (1 + 3) / 2 = 2, then (1 + 3 + 8) / 3 = 4.
  const at::Tensor keys = at::ones({3, 1}), values = at::tensor({1.0, 3.0, 8.0}).unsqueeze(1);
  const at::Tensor errors = recall_errors(keys, values, 0, 0);
  const std::vector<std::vector<double>> wanted = {{0}, {1, 1}, {3, 1, 4}};
  for (size_t t = 0; t < 3; ++t) {
    for (size_t j = 0; j < 3; ++j) {
      const auto error = errors[int64_t(t)][int64_t(j)].item<double>();
      EXPECT_EQ(std::isnan(error), j >= wanted[t].size());
      EXPECT_NEAR(std::isnan(error) ? 0 : error, j < wanted[t].size() ? wanted[t][j] : 0, 1e-9);
    }
  }
  // With a window of one token, the last pair is not yet in the state.
  const at::Tensor behind = recall_errors(keys, values, 1, 0);
  EXPECT_TRUE(behind[0].isnan().all().item<bool>());
  EXPECT_NEAR(behind[2][1].item<double>(), 1, 1e-9);
  EXPECT_TRUE(std::isnan(behind[2][2].item<double>()));
  // A cache of one keeps the pair with the largest error. Against the empty state that is the larger value, 3 rather
  // than 1. Then 8 has error 7 against the state's 1, and 3 has error 2. So 1 and 3 enter the state.
  const at::Tensor cached = recall_errors(keys, values, 0, 1);
  EXPECT_TRUE(cached[0].isnan().all().item<bool>());
  EXPECT_NEAR(cached[1][0].item<double>(), 0, 1e-9);
  EXPECT_NEAR(cached[2][0].item<double>(), 1, 1e-9);
  EXPECT_NEAR(cached[2][1].item<double>(), 1, 1e-9);
  EXPECT_TRUE(std::isnan(cached[2][2].item<double>()));
}

TEST(Collisions, OfModelsWithALinearStateAlone) {
  LanguageModel softmax = model({{"mixer", "softmax"}});
  EXPECT_THROW(analyze_collisions(reading_of(softmax, 6), {.window = 2, .cache = 1}), InputError);
  CORTADO_NEEDS("linear");
  LanguageModel linear = model({{"mixer", "linear"}});
  const Finding finding = analyze_collisions(reading_of(linear, 6, {0}), {.window = 2, .cache = 1});
  ASSERT_EQ(finding.json["summary"].size(), 3u);
  EXPECT_EQ(finding.json["summary"][0]["stored"], 6);
  EXPECT_EQ(finding.json["summary"][1]["stored"], 4);
  EXPECT_EQ(finding.json["summary"][2]["stored"], 3);
  EXPECT_EQ(finding.pictures.size(), 3u);
}

TEST(Spectrum, LeastErrorsOfADiagonal) {
  const at::Tensor least = least_errors(at::diag(at::tensor({1.0, 3.0, 2.0})));
  const std::vector<double> wanted = {14, 5, 1, 0};
  for (size_t rank = 0; rank < 4; ++rank) EXPECT_NEAR(least[int64_t(rank)].item<double>(), wanted[rank], 1e-9);
}

TEST(Spectrum, APolynomialOfTheFirstDegreeHasRankD) {
  const Finding finding = analyze_spectrum({.n = {40}, .d = {5}, .powers = {1}, .reading = nullptr});
  const Json& rows = finding.json["grams"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["rank_9999"], 5);
  EXPECT_GT(rows[0]["rank_9999"], 5);  // exp has a higher effective rank
  EXPECT_NEAR(rows[1]["error_2d"].get<double>(), 0, 1e-12);
}

TEST(Memory, CountedByHand) {
  const Json base = {{"dim", 16}, {"heads", 2}, {"layers", 3}, {"vocabulary", 7}};
  Json softmax = base, hybrid = base;
  softmax["mixer"] = {{"mixer", "softmax"}};
  hybrid["layers"] = {{{"repeat", 2}, {"mixer", {{"mixer", "sliding_window"}, {"window", 10}}}},
                      {{"mixer", {{"mixer", "softmax"}}}}};
  const Finding finding = analyze_memory({.configs = {{"softmax", softmax}, {"hybrid", hybrid}}, .lengths = {256}});
  const Json& rows = finding.json["rows"];
  EXPECT_EQ(rows[0]["pairs"], 256);
  EXPECT_EQ(rows[0]["compression"], 1);
  EXPECT_NEAR(rows[0]["floats"].get<double>(), 3 * 256 * 2 * 16, 16);  // plus the position counters
  EXPECT_EQ(rows[1]["pairs"], 92);                                     // (10 + 10 + 256) / 3
  EXPECT_NEAR(rows[1]["compression"].get<double>(), 256.0 / 92, 1e-9);
}

TEST(Scaling, EveryPassOfEveryModel) {
  const Json config = {{"dim", 16}, {"heads", 2}, {"layers", 1}, {"vocabulary", 7}, {"mixer", {{"mixer", "softmax"}}}};
  int passes = 0;
  ScalingOptions options{.models = {{"a", config}, {"b", config}}, .lengths = {8, 16}, .tokens = 16, .rounds = 2};
  options.progress = [&](const std::string&) { ++passes; };
  const Finding finding = analyze_scaling(options);
  EXPECT_EQ(passes, 2 * 3 * 2);
  const Json& rows = finding.json["rows"];
  ASSERT_EQ(rows.size(), 2u * 2 * 3);
  for (const Json& row : rows) {
    EXPECT_GT(row["seconds"], 0);
    EXPECT_LE(row["low"], row["seconds"]);
    EXPECT_GE(row["high"], row["seconds"]);
    EXPECT_EQ(row["sequences"].get<int64_t>() * row["tokens"].get<int64_t>(), 16);
  }
}

TEST(Scaling, BothWaysNothingIsDecoded) {
  const Json config = {{"dim", 16},       {"heads", 2},      {"layers", 1},
                       {"vocabulary", 7}, {"causal", false}, {"mixer", {{"mixer", "linformer"}, {"length", 16}}}};
  const Finding finding =
      analyze_scaling({.models = {{"a", config}}, .lengths = {8, 16}, .tokens = 16, .sequences = 3, .rounds = 1});
  const Json& rows = finding.json["rows"];
  ASSERT_EQ(rows.size(), 2u * 2);
  for (const Json& row : rows) {
    EXPECT_EQ(row["mixer"], "a (bidirectional)");
    EXPECT_NE(row["pass"], "decoded token");
    EXPECT_EQ(row["sequences"], 3);
  }
}

// With as many slots as tokens per period and with decay, each slot holds only one of the last three tokens; without
// decay it holds the sum of all tokens written to it.
TEST(Convolution, SlotsOfOneToken) {
  CORTADO_NEEDS("blurry_window");
  const auto contents = [](bool decay) {
    const Json found =
        analyze_convolution("blurry_window", {{"slots", 3}, {"period", 3}, {"decay", decay}}, 7).json["contents"];
    return found.get<std::vector<std::vector<double>>>();
  };
  const auto kept = contents(true), summed = contents(false);
  for (size_t slot = 0; slot < 3; ++slot) {
    for (size_t t = 0; t < 7; ++t) {
      EXPECT_NEAR(kept[slot][t], t % 3 == slot && t >= 4 ? 1 : 0, 1e-9);
      EXPECT_NEAR(summed[slot][t], t % 3 == slot ? 1 : 0, 1e-9);
    }
  }
  EXPECT_THROW(analyze_convolution("softmax", Json::object(), 7), InputError);
}

TEST(HeatMap, ColoursOfTheScale) {
  const std::string svg =
      HeatMap{.title = "a < b", .x_label = "x", .y_label = "y", .panels = {{"p", {{0, 1}, {NAN, 0.5}}}}}.svg();
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_NE(svg.find("rgb(0,45,110)"), std::string::npos);  // a value of 1
  EXPECT_NE(svg.find("#cccccc"), std::string::npos);        // not a number
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

}  // namespace cortado::analyze_test
