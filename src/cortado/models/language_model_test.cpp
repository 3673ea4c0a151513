#include "cortado/models/language_model.h"

#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/formats/safetensors.h"
#include "cortado/models/checkpoint.h"
#include "cortado/nn/lora.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

using testing::error_of;
using testing::relative_error;

// One layer per kind of state: a growing cache, a ring, a scan, a convolution's tail.
constexpr const char* kMixed = R"({"dim": 12, "heads": 2, "vocabulary": 11, "positions": "rotary", "layers": [
    {"mixer": {"mixer": "softmax"}}, {"mixer": {"mixer": "sliding_window", "window": 4}}, {"mixer": {"mixer": "linear"}},
    {"mixer": {"mixer": "latte", "latents": 4}}, {"mixer": {"mixer": "griffin", "taps": 3}}],
    "feed_forward": {"type": "geglu", "dim": 10}, "post_norm": true, "final_softcap": 5.0,
    "embedding": {"tied": false, "scaled": true}, "head_bias": true})";

constexpr const char* kPlain = R"({"dim": 12, "heads": 2, "vocabulary": 11, "layers": 2,
    "mixer": {"mixer": "latte", "latents": 4}, "positions": "learned", "context": 9})";

ModelConfig config_of(const std::string& text, const std::vector<std::string>& settings = {}) {
  Json json = parse_json(text, "test");
  for (const std::string& setting : settings) apply_setting(json, setting);
  return ModelConfig::from_json(json, "test");
}

std::shared_ptr<LanguageModel> make(const std::string& text, const std::vector<std::string>& settings = {}) {
  at::manual_seed(3);
  auto model = std::make_shared<LanguageModel>(config_of(text, settings));
  model->to(at::kDouble);
  return model;
}

Tensor some_tokens(int64_t rows, int64_t tokens) { return at::randint(0, 11, {rows, tokens}, at::kLong); }

void expect_message(const std::string& words, const std::function<void()>& action) {
  const std::string text = error_of(action);
  EXPECT_NE(text.find(words), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(LanguageModel, ContinuesFromItsState) {
  const auto model = make(kMixed);
  const at::NoGradGuard no_grad;
  const Tensor tokens = some_tokens(2, 13);
  const Tensor whole = model->forward(tokens);
  EXPECT_EQ(whole.sizes(), (std::vector<int64_t>{2, 13, 11}));
  ModelState state = model->zero_state(2);
  const Tensor first = model->forward(tokens.slice(1, 0, 6), {}, &state);
  EXPECT_LT(relative_error(first, whole.slice(1, 0, 6)), 1e-9);
  for (int64_t t = 6; t < 13; ++t) {
    const Tensor step = model->forward(tokens.slice(1, t, t + 1), {}, &state);
    EXPECT_LT(relative_error(step, whole.slice(1, t, t + 1)), 1e-9) << t;
  }
  EXPECT_TRUE(state.position.equal(at::full({2}, 13, at::kLong)));
}

TEST(LanguageModel, PrefillsAPaddedBatchPackedAndDecodesDense) {
  const auto model = make(kMixed);
  const at::NoGradGuard no_grad;
  const Tensor tokens = some_tokens(3, 7), next = some_tokens(3, 1);
  const Tensor lengths = at::tensor({5, 7, 1}, at::kLong);
  const Packed packed = pack_padded(tokens, lengths);
  ModelState state = model->zero_state(3);
  const Tensor last = last_of_each(model->hidden(packed.tokens, packed.batch, &state), packed.batch);
  EXPECT_TRUE(state.position.equal(lengths));
  const Tensor decoded = model->forward(next, {}, &state);
  for (int64_t row = 0; row < 3; ++row) {
    const int64_t length = lengths[row].item<int64_t>();
    const Tensor alone = at::cat({tokens[row].slice(0, 0, length), next[row]}).unsqueeze(0);
    const Tensor expected = model->forward(alone);
    EXPECT_LT(relative_error(model->logits(last[row]), expected[0][length - 1]), 1e-9) << row;
    EXPECT_LT(relative_error(decoded[row][0], expected[0][length]), 1e-9) << row;
  }
}

TEST(LanguageModel, LossIsTheCrossEntropyOfItsLogits) {
  const auto model = make(kMixed);
  const Tensor tokens = some_tokens(2, 6);
  Tensor targets = some_tokens(2, 6);
  targets[1][2] = -1;
  const auto gradients = [&](const Tensor& loss) {
    model->zero_grad();
    loss.backward();
    std::vector<Tensor> result;
    for (const Tensor& parameter : model->parameters()) result.push_back(parameter.grad().clone());
    return result;
  };
  const Tensor loss = model->loss(tokens, targets);
  const Tensor expected =
      at::cross_entropy_loss(model->forward(tokens).flatten(0, 1), targets.flatten(), {}, at::Reduction::Mean, -1);
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-12);
  const auto ours = gradients(loss), theirs = gradients(expected);
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_LT(relative_error(ours[i], theirs[i]), 1e-10);
  EXPECT_LE(model->forward(tokens).abs().max().item<double>(), 5.0);  // the soft-cap
}

// The loss includes an adapter of the head, as the logits do.
TEST(LanguageModel, LossHasTheHeadsAdapter) {
  auto model = make(kMixed);
  attach_lora(*model, {.rank = 2, .alpha = 2, .targets = {"head"}});
  model->to(at::kDouble);
  for (const auto& [name, weight, role] : lora_weights(*model)) Tensor(weight).detach().normal_();
  const Tensor tokens = at::randint(11, {2, 8}, at::kLong), targets = at::randint(11, {2, 8}, at::kLong);
  const Tensor logits = model->forward(tokens), loss = model->loss(tokens, targets);
  const Tensor expected = at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
  EXPECT_LT(relative_error(loss, expected), 1e-12);
  loss.backward();
  for (const auto& [name, weight, role] : lora_weights(*model))
    EXPECT_GT(weight.grad().abs().max().item<double>(), 0) << name;
}

TEST(LanguageModel, DropsOnlyInTraining) {
  const auto model = make(kPlain, {"dropout=0.5"});
  const Tensor tokens = some_tokens(1, 5);
  Batch training;
  training.training = true;
  EXPECT_TRUE(model->forward(tokens).equal(model->forward(tokens)));
  EXPECT_FALSE(model->forward(tokens, training).equal(model->forward(tokens, training)));
  at::manual_seed(8);
  const Tensor once = model->forward(tokens, training);
  at::manual_seed(8);
  EXPECT_TRUE(once.equal(model->forward(tokens, training)));
}

TEST(LanguageModel, SinusoidalPositionsGoOnInTheState) {
  const auto model = make(kPlain, {"positions=sinusoidal"});
  const at::NoGradGuard no_grad;
  const Tensor tokens = some_tokens(2, 8);
  ModelState state = model->zero_state(2);
  model->forward(tokens.slice(1, 0, 5), {}, &state);
  const Tensor rest = model->forward(tokens.slice(1, 5), {}, &state);
  EXPECT_LT(relative_error(rest, model->forward(tokens).slice(1, 5)), 1e-9);
  EXPECT_GT(relative_error(rest, model->forward(tokens.slice(1, 5))), 1e-3);  // positions matter
}

// Experts as the feed-forward, and scale and norm of the embedding: rows, pieces and packed texts are independent.
TEST(LanguageModel, ScalesAndNormalizesItsEmbeddingAndHasExperts) {
  const std::vector<std::string> settings = {
      "embedding={\"scale\": 3, \"norm\": true}",
      "feed_forward={\"type\": \"experts\", \"dim\": 8, \"experts\": 4, \"shared\": 4}"};
  const auto model = make(kPlain, settings), unscaled = make(kPlain, {settings[1]});
  EXPECT_EQ(model->named_parameters().contains("embedding_norm.weight"), true);
  const at::NoGradGuard no_grad;
  const Tensor tokens = some_tokens(2, 8), whole = model->forward(tokens);
  ModelState state = model->zero_state(2);
  model->forward(tokens.slice(1, 0, 5), {}, &state);
  EXPECT_LT(relative_error(model->forward(tokens.slice(1, 5), {}, &state), whole.slice(1, 5)), 1e-9);
  Batch packed;
  packed.cu_seqlens = at::tensor({0, 8, 16}, at::kLong);
  EXPECT_LT(relative_error(model->forward(tokens.view({1, 16}), packed).view(whole.sizes()), whole), 1e-9);
  for (auto& weight : unscaled->named_parameters()) weight.value().copy_(model->named_parameters()[weight.key()]);
  EXPECT_GT(relative_error(unscaled->forward(tokens), whole), 1e-3);  // norm and scale matter
}

TEST(LanguageModel, RefusesBadInput) {
  const auto model = make(kPlain);
  expect_message("learned positions for 9 tokens, the sequence reaches 10",
                 [&] { model->forward(some_tokens(1, 10)); });
  ModelState state = model->zero_state(1);
  model->forward(some_tokens(1, 9), {}, &state);
  expect_message("learned positions for 9 tokens, the sequence reaches 10",
                 [&] { model->forward(some_tokens(1, 1), {}, &state); });
  expect_message("token 11 is outside the vocabulary 0..10", [&] { model->forward(at::full({1, 1}, 11, at::kLong)); });
  expect_message("token -1 is outside", [&] { model->forward(at::full({1, 1}, -1, at::kLong)); });
  expect_message("target 11 is outside", [&] { model->loss(some_tokens(1, 2), at::full({1, 2}, 11, at::kLong)); });
  expect_message("expected int64 tokens", [&] { model->forward(at::zeros({1, 2})); });
  ModelState fresh = model->zero_state(1);
  expect_message("the state has 1 rows, the batch 2", [&] { model->forward(some_tokens(2, 1), {}, &fresh); });
  expect_message("\"vocabulary\"", [] {
    LanguageModel nothing(config_of(R"({"dim": 4, "layers": 1,
      "mixer": {"mixer": "latte"}})"));
  });
  expect_message("layers[1]", [] {
    make(R"({"dim": 4, "vocabulary": 4, "layers": [{"mixer": {"mixer": "latte"}},
      {"mixer": {"mixer": "latte", "latnets": 3}}]})");
  });
  const auto both = make(kPlain, {"causal=false"});
  expect_message("no state", [&] { both->zero_state(1); });
}

TEST(LanguageModel, NamesItsParametersAsUsersExpect) {
  const auto names = make(kPlain)->named_parameters();
  for (const char* name :
       {"embedding.weight", "positions.weight", "layers.0.mixer.q.weight", "layers.1.mixer_norm.weight",
        "layers.0.feed_forward.gate.weight", "layers.0.feed_forward_norm.weight", "norm.weight"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_FALSE(names.contains("head.weight"));
  EXPECT_TRUE(make(kMixed)->named_parameters().contains("head.bias"));
  EXPECT_TRUE(make(kPlain, {"head_bias=true"})->named_parameters().contains("head_bias"));
}

TEST(LanguageModel, StartsAsGpt2Does) {
  const auto model = make(R"({"dim": 64, "vocabulary": 300, "layers": 8, "mixer": {"mixer": "softmax"},
      "feed_forward": {"type": "mlp"}, "initialization": {"type": "normal", "std": 0.02, "scale_residual": true}})");
  const auto names = model->named_parameters();
  const auto deviation = [&](const char* name) { return names[name].std().item<double>(); };
  EXPECT_NEAR(deviation("embedding.weight"), 0.02, 1e-3);
  EXPECT_NEAR(deviation("layers.3.mixer.q.weight"), 0.02, 1e-3);
  EXPECT_NEAR(deviation("layers.3.feed_forward.up.weight"), 0.02, 1e-3);
  EXPECT_NEAR(deviation("layers.3.mixer.o.weight"), 0.005, 3e-4);
  EXPECT_NEAR(deviation("layers.3.feed_forward.down.weight"), 0.005, 3e-4);
}

TEST(LanguageModel, CountsItsStateBytes) {
  const auto model = make(kMixed);
  model->to(at::kFloat);
  const at::NoGradGuard no_grad;
  ModelState state = model->zero_state(1);
  EXPECT_EQ(state.bytes(), model->state_bytes(0));
  model->forward(some_tokens(1, 40), {}, &state);
  EXPECT_EQ(state.bytes(), model->state_bytes(40));
}

TEST(LanguageModel, FlopsFollowItsMatrices) {
  const auto model = make(kPlain);
  const double matrices = 2.0 * (11 * 12 + 2 * (2 * 12 * 4 + 2 * 12 * 12 + 3 * 12 * 32));
  EXPECT_GE(model->flops_per_token(100), matrices);
  EXPECT_LE(model->flops_per_token(100), matrices * 1.2);
  EXPECT_EQ(model->flops_per_token(100), model->flops_per_token(100000));  // linear time
}

TEST(Checkpoint, RoundTripsAndRefusesOthers) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/w.safetensors";
  const auto model = make(kMixed);
  model->to(at::kFloat);
  save_weights(*model, path, {{"step", "12"}});
  const auto other = std::make_shared<LanguageModel>(config_of(kMixed));
  EXPECT_NE(other->identity(), model->identity());
  EXPECT_EQ(load_weights(other->config(), *other, path).at("step"), "12");
  EXPECT_EQ(other->identity(), model->identity());
  const Tensor tokens = some_tokens(1, 5);
  EXPECT_TRUE(other->forward(tokens).equal(model->forward(tokens)));

  LanguageModel wider(config_of(kMixed, {"feed_forward.dim=12"}));
  expect_message(
      "is the checkpoint of another model: \"layers.0.feed_forward.gate.weight\" is [10, 12], expected [12, 12]",
      [&] { load_weights(wider.config(), wider, path); });
  LanguageModel tied(config_of(kMixed, {"embedding.tied=true"}));
  expect_message("another model: it has no \"head_bias\"", [&] { load_weights(tied.config(), tied, path); });
  LanguageModel flatter(config_of(kMixed, {"post_norm=false"}));
  expect_message("that the model lacks", [&] { load_weights(flatter.config(), flatter, path); });
  LanguageModel capped(config_of(kMixed, {"final_softcap=6"}));
  expect_message("its config differs", [&] { load_weights(capped.config(), capped, path); });
  write_safetensors(path, {{{"a", at::zeros({1})}}, {}});
  expect_message("is not a checkpoint", [&] { load_weights(capped.config(), capped, path); });
}

// Random features are drawn and not trained; with other features it would be another model.
TEST(Checkpoint, HoldsRandomFeatures) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/w.safetensors";
  const ModelConfig config = config_of(R"({"dim": 12, "heads": 2, "vocabulary": 11, "layers": 1,
    "mixer": {"mixer": "performer"}, "positions": "learned", "context": 9})");
  LanguageModel model(config);
  save_weights(model, path);
  LanguageModel other(config);
  const Tensor tokens = some_tokens(1, 5);
  EXPECT_FALSE(other.forward(tokens).equal(model.forward(tokens)));
  load_weights(other.config(), other, path);
  EXPECT_TRUE(other.forward(tokens).equal(model.forward(tokens)));
}

TEST(Checkpoint, OpensARun) {
  const TemporaryDirectory directory;
  const std::string& run = directory.path();
  expect_message("is not a run", [&] { open_model(run); });
  const auto model = make(kPlain);
  model->to(at::kFloat);
  write_file(run + "/config.json", model->config().to_json().dump());
  expect_message("has no weights yet", [&] { open_model(run); });
  save_weights(*model, run + "/last.safetensors");
  const Tensor tokens = some_tokens(1, 5);
  EXPECT_TRUE(open_model(run)->forward(tokens).equal(model->forward(tokens)));  // best falls back to last
  EXPECT_EQ(open_model(run)->identity(), model->identity());
  OpenOptions narrow;
  narrow.dtype = at::kBFloat16;
  EXPECT_EQ(open_model(run, narrow)->dtype(), at::kBFloat16);
  expect_message("config without weights", [&] { open_model(run + "/config.json"); });
  OpenOptions random;
  random.allow_random = true;
  EXPECT_EQ(open_model(run + "/config.json", random)->forward(tokens).size(2), 11);
  expect_message("there is no run or config", [&] { open_model(run + "/nothing"); });
  write_file(run + "/others.gguf", "GGUF\x03");
  expect_message("is a GGUF file: `cortado import` makes a run of it", [&] { open_model(run + "/others.gguf"); });
  write_file(run + "/config.json", R"({"model_type": "llama", "hidden_size": 64})");
  expect_message("is a model of transformers: `cortado import` makes a run of it", [&] { open_model(run); });
}

// Wide enough for full groups of 64, with an untied or a tied head.
std::string wide_model(bool tied) {
  Json json = parse_json(kMixed, "test");
  json["dim"] = 128;
  json["vocabulary"] = 300;
  json["embedding"]["tied"] = tied;
  json["feed_forward"]["dim"] = 192;
  return json.dump();
}

TEST(Weights, NarrowOnesGiveNearlyTheSameModel) {
  const TemporaryDirectory directory;
  const std::string& run = directory.path();
  const at::NoGradGuard no_grad;
  for (const bool tied : {true, false}) {
    const auto model = make(wide_model(tied));
    model->to(at::kFloat);
    write_file(run + "/config.json", model->config().to_json().dump());
    save_weights(*model, run + "/last.safetensors");
    const Tensor tokens = at::randint(0, 300, {2, 21}, at::kLong), right = model->forward(tokens);
    const double loss = model->loss(tokens, tokens.roll(1, 1)).item<double>();
    for (const auto& [name, most] : {std::pair{"bfloat16", 0.02}, {"float16", 0.003}, {"int8", 0.05}, {"int4", 0.5}}) {
      const auto narrow = open_model(run, {.weights = weight_format_of(name)});
      EXPECT_LE(relative_error(narrow->forward(tokens), right), most) << name;
      EXPECT_NEAR(narrow->loss(tokens, tokens.roll(1, 1)).item<double>(), loss, most) << name;
      EXPECT_EQ(narrow->parameter_count(), model->parameter_count());
      EXPECT_EQ(narrow->dtype(), at::kFloat);
      EXPECT_LT(narrow->weight_bytes(), 0.75 * static_cast<double>(model->weight_bytes())) << name;
      ModelState state = narrow->zero_state(2);
      const Tensor first = narrow->forward(tokens.slice(1, 0, 13), {}, &state);
      const Tensor rest = narrow->forward(tokens.slice(1, 13), {}, &state);
      EXPECT_LE(relative_error(at::cat({first, rest}, 1), narrow->forward(tokens)), 1e-3) << name;
      expect_message("not saved", [&, weights = name] {
        EXPECT_EQ(weight_format_name(narrow->weight_format()), weights);
        save_weights(*narrow, run + "/again.safetensors");
      });
      // Loading in a format and converting to it give equal results.
      const auto changed = open_model(run);
      changed->set_weight_format(weight_format_of(name));
      EXPECT_TRUE(changed->forward(tokens).equal(narrow->forward(tokens))) << name;
    }
  }
}

// The embedding and the head, which choose the next token, keep 8 bits.
TEST(Weights, OfFourBitsLeaveTheVocabularyEight) {
  for (const bool tied : {true, false}) {
    const auto four = make(wide_model(tied)), eight = make(wide_model(tied));
    four->set_weight_format(WeightFormat::kInt4);
    eight->set_weight_format(WeightFormat::kInt8);
    const auto wide = eight->matrices();
    for (const auto& [name, matrix] : four->matrices()) {
      const bool of_words = name == "embedding.weight" || name == "head.weight";
      EXPECT_EQ(matrix->weight_bytes() == wide.at(name)->weight_bytes(), of_words) << name;
    }
  }
}

TEST(ModelState, CachesOfAShorterType) {
  const auto model = make(kMixed);
  model->to(at::kFloat);
  const at::NoGradGuard no_grad;
  const Tensor tokens = some_tokens(2, 30);
  const Tensor right = model->forward(tokens);
  const int64_t whole = model->zero_state(2).bytes();
  model->set_cache_type(at::kHalf);
  EXPECT_EQ(model->zero_state(2).bytes(), whole);  // caches grow from nothing
  for (const std::vector<int64_t>& cut : {std::vector<int64_t>{30}, {20, 9, 1}, {1, 1, 28}}) {
    ModelState state = model->zero_state(2);
    std::vector<Tensor> parts;
    for (const Tensor& part : tokens.split_with_sizes(cut, 1)) parts.push_back(model->forward(part, {}, &state));
    EXPECT_LE(relative_error(at::cat(parts, 1), right), 6e-3);
    EXPECT_EQ(state.layers[0].at("keys").scalar_type(), at::kHalf);
    EXPECT_EQ(state.layers[1].at("keys").scalar_type(), at::kFloat);  // a ring does not grow
  }
}

TEST(ModelState, SavesLoadsForksAndRefusesAnotherModels) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/state";
  const auto model = make(kMixed);
  const at::NoGradGuard no_grad;
  const Tensor tokens = some_tokens(2, 9), next = some_tokens(2, 2);
  ModelState state = model->zero_state(2);
  model->forward(tokens, {}, &state);
  ModelState fork = state.clone();
  write_safetensors(path, state.file(model->identity(), {{"tokens", tokens}}));
  std::vector<std::pair<std::string, Tensor>> extra;
  ModelState loaded = ModelState::of_file(read_safetensors(path), *model, &extra);
  ASSERT_EQ(extra.size(), 1u);
  EXPECT_TRUE(extra[0].second.equal(tokens));
  EXPECT_EQ(loaded.bytes(), state.bytes());
  ModelState swapped = state.index(at::tensor({1, 0}, at::kLong));
  const Tensor expected = model->forward(next, {}, &state);
  EXPECT_TRUE(model->forward(next, {}, &loaded).equal(expected));
  EXPECT_TRUE(model->forward(next, {}, &fork).equal(expected));
  EXPECT_LT(relative_error(model->forward(next.flip(0), {}, &swapped), expected.flip(0)), 1e-12);
  const auto stranger = make(kMixed);
  expect_message("belongs to another model", [&] { ModelState::of_file(read_safetensors(path), *stranger); });
  // A state loaded by a model of another type gets that type where the model's own state has it.
  model->to(at::kFloat);
  const ModelState narrowed = ModelState::of_file(read_safetensors(path), *model);
  EXPECT_EQ(narrowed.layers[0].at("keys").scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace cortado
