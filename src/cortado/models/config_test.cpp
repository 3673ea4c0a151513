#include "cortado/models/config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "cortado/base/error.h"

namespace cortado {
namespace {

Json small() {
  return parse_json(R"({"dim": 8, "heads": 2, "layers": 3, "mixer": {"mixer": "latte", "latents": 4}})", "test");
}

void expect_refused(const Json& json, const std::string& words) {
  try {
    ModelConfig::from_json(json, "model.json");
    ADD_FAILURE() << "accepted, expected: " << words;
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

Json with(const std::string& assignment) {
  Json json = small();
  apply_setting(json, assignment);
  return json;
}

TEST(Config, HasDefaults) {
  const ModelConfig config = ModelConfig::from_json(small(), "test");
  EXPECT_EQ(config.layers.size(), 3u);
  EXPECT_EQ(config.layers[2]["latents"], 4);
  EXPECT_EQ(config.norm, NormKind::kRms);
  EXPECT_EQ(config.feed_forward.kind, FeedForwardKind::kSwiglu);
  EXPECT_EQ(config.feed_forward.dim, 24);  // 8/3·8 = 21.3, rounded up to a multiple of 8
  EXPECT_EQ(config.vocabulary, 0);
  EXPECT_TRUE(config.tied);
  EXPECT_FALSE(config.final_softcap);
  EXPECT_EQ(ModelConfig::from_json(with("feed_forward.type=mlp"), "test").feed_forward.dim, 32);
}

TEST(Config, ExpandsPatterns) {
  const Json json = parse_json(R"({"dim": 8, "repeat_layers": 2, "layers": [
      {"repeat": 3, "mixer": {"mixer": "linear"}}, {"mixer": {"mixer": "softmax", "heads": 2}}]})",
                               "test");
  const ModelConfig config = ModelConfig::from_json(json, "test");
  ASSERT_EQ(config.layers.size(), 8u);
  const std::vector<std::string> expected = {"linear", "linear", "linear", "softmax"};
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(config.layers[i]["mixer"], expected[i % 4]);
}

TEST(Config, LayersChangeWhatTheModelSays) {
  const Json json = parse_json(R"({"dim": 8, "repeat_layers": 2, "post_norm": true, "layers": [
      {"mixer": {"mixer": "linear"}}, {"repeat": 2, "mixer": {"mixer": "linear"}, "pre_norm": false},
      {"mixer": {"mixer": "linear"}, "post_norm": false, "feed_forward": false}], "feed_forward": {"type": "geglu"}})",
                               "test");
  const ModelConfig config = ModelConfig::from_json(json, "test");
  ASSERT_EQ(config.layers.size(), 8u);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(config.has_pre_norm(i), i % 4 == 0 || i % 4 == 3) << i;
    EXPECT_EQ(config.has_post_norm(i), i % 4 != 3) << i;
    EXPECT_EQ(config.feed_forward_of(i).kind, i % 4 != 3 ? FeedForwardKind::kGeglu : FeedForwardKind::kNone) << i;
  }
  const Json written = config.to_json()["layers"];
  ASSERT_EQ(written.size(), 6u) << written.dump();
  EXPECT_EQ(written[1]["repeat"], 2);
  EXPECT_FALSE(written[0].contains("pre_norm"));
}

TEST(Config, ALayerMayHaveItsOwnFeedForward) {
  const auto of = [](const std::string& own) {
    const std::string layers = R"({"dim": 8, "layers": [{"mixer": {"mixer": "linear"}, "feed_forward": )" + own +
                               R"(}, {"mixer": {"mixer": "linear"}}], "feed_forward": {"type": "mlp", "dim": 9}})";
    return parse_json(layers, "test");
  };
  const ModelConfig config = ModelConfig::from_json(of(R"({"type": "swiglu"})"), "test");
  EXPECT_EQ(config.feed_forward_of(0).dim, 24);  // its own default, not the model's 9
  EXPECT_EQ(config.feed_forward_of(1).dim, 9);
  EXPECT_NE(config.architecture_hash(), ModelConfig::from_json(of("true"), "test").architecture_hash());
  EXPECT_EQ(ModelConfig::from_json(of("true"), "test").changes.size(), 0u);
  expect_refused(of("3"), "feed_forward");
  expect_refused(of(R"({"type": "swiglu", "dmi": 3})"), "layers[0].feed_forward");
}

TEST(Config, RoundTrips) {
  const std::vector<std::string> texts = {
      small().dump(),
      R"({"dim": 6, "layers": [{"repeat": 2, "mixer": {"mixer": "linear"}}, {"mixer": {"mixer": "softmax"}}],
          "norm": "layer", "norm_bias": false, "norm_eps": 0.1, "post_norm": true, "vocabulary": 9, "name": "x",
          "feed_forward": {"type": "geglu", "dim": 5, "bias": true, "activation": "gelu"}, "positions": "learned",
          "context": 7, "embedding": {"tied": false, "scaled": true}, "head_bias": true, "dropout": 0.25,
          "final_softcap": 30, "causal": false, "initialization": {"type": "normal", "scale_residual": true},
          "training": {"steps": 3}})",
      R"({"dim": 6, "layers": 1, "mixer": {"mixer": "softmax"}, "feed_forward": {"type": "none"},
          "positions": "rotary", "rope_theta": 500000})",
      R"({"dim": 6, "layers": 1, "mixer": {"mixer": "softmax"}, "embedding": {"scale": 2.5, "norm": true},
          "feed_forward": {"type": "experts", "experts": 3, "per_token": 3, "normalized": false, "shared": 2}})",
      R"({"dim": 6, "layers": 1, "mixer": {"mixer": "softmax"},
          "feed_forward": {"type": "experts", "experts": 3, "shared": 2, "shared_gate": false}})",
      R"({"dim": 6, "layers": [{"mixer": {"mixer": "softmax"}, "pre_norm": true, "post_norm": false},
          {"repeat": 2, "mixer": {"mixer": "softmax"}, "feed_forward": false}], "pre_norm": false, "post_norm": true,
          "feed_forward": {"type": "mlp", "activation": "relu2"}})",
      R"({"dim": 6, "layers": [{"mixer": {"mixer": "softmax"}, "feed_forward": {"type": "swiglu", "dim": 9}},
          {"repeat": 2, "mixer": {"mixer": "softmax"}}], "normed_residual": true,
          "feed_forward": {"type": "experts", "experts": 8, "gated": false, "activation": "relu2", "scores": "sigmoid",
          "choice_bias": true, "groups": 4, "groups_per_token": 2, "scale": 2.5, "latent": 3}})",
      R"({"dim": 6, "layers": 1, "mixer": {"mixer": "softmax"}, "feed_forward": {"type": "experts", "bias": true,
          "router_bias": true, "scale_input": true, "limit": 0.5, "alpha": 1.1}})"};
  for (const std::string& text : texts) {
    const ModelConfig once = ModelConfig::from_json(parse_json(text, "test"), "test");
    const ModelConfig twice = ModelConfig::from_json(once.to_json(), "test");
    EXPECT_EQ(once.to_json(), twice.to_json());
    EXPECT_EQ(once.architecture_hash(), twice.architecture_hash());
  }
  const Json full = ModelConfig::from_json(parse_json(texts[1], "test"), "test").to_json();
  const Json given = parse_json(texts[1], "test");
  for (const auto& [key, value] : given.items()) {
    EXPECT_TRUE(full.contains(key)) << key;
    if (key != "layers" && key != "initialization") {
      EXPECT_EQ(full[key], value) << key;
    }
  }
}

TEST(Config, IsStrict) {
  expect_refused(with("dmi=3"), "\"dim\"");
  expect_refused(with("dim=9"), "\"dim\" = 9 is not divisible by \"heads\" = 2");
  expect_refused(with("dim=0"), "dim");
  expect_refused(with("dim=text"), "dim");
  expect_refused(with("layers=0"), "layers");
  expect_refused(with("layers=[]"), "layers");
  expect_refused(with("layers=[{\"mixer\": {\"mixer\": \"latte\"}}]"), "\"mixer\" goes with a number of layers");
  expect_refused(with("repeat_layers=2"), "repeat_layers");
  expect_refused(with("mixer=latte"), "mixer");
  expect_refused(with("mixer={\"latents\": 3}"), "must be an object that names a mixer");
  expect_refused(with("norm=batch"), "norm");
  expect_refused(with("feed_forward={\"type\": \"geglu\", \"activation\": \"relu2\"}"), "activation");
  expect_refused(with("feed_forward={\"type\": \"experts\", \"alpha\": 2}"), "\"alpha\" needs \"limit\"");
  expect_refused(with("feed_forward={\"type\": \"experts\", \"gated\": false, \"limit\": 2}"), "gated");
  expect_refused(with("norm_bias=true"), "norm_bias");  // RMSNorm has no bias
  expect_refused(with("feed_forward.dmi=3"), "[model.json.feed_forward]");
  expect_refused(with("feed_forward={\"type\": \"none\", \"dim\": 3}"), "dim");
  expect_refused(with("feed_forward={\"type\": \"swiglu\", \"activation\": \"gelu\"}"), "activation");
  expect_refused(with("feed_forward={\"type\": \"experts\", \"experts\": 2, \"per_token\": 3}"), "per_token");
  expect_refused(with("feed_forward={\"type\": \"experts\", \"activation\": \"gelu\"}"), "activation");
  expect_refused(with("feed_forward={\"type\": \"experts\", \"shared_gate\": false}"), "shared_gate");
  expect_refused(with("feed_forward={\"type\": \"experts\", \"groups\": 3}"), "do not make \"groups\" = 3");
  expect_refused(with("feed_forward={\"type\": \"experts\", \"groups\": 4, \"per_token\": 3}"), "have fewer than");
  expect_refused(with("feed_forward={\"type\": \"experts\", \"scores\": \"relu\"}"), "scores");
  expect_refused(with("embedding={\"scaled\": true, \"scale\": 2}"), "in place of");
  expect_refused(with("positions=learned"), "context");
  expect_refused(with("positions=alibi"), "positions");
  expect_refused(with("embedding.tide=true"), "tied");
  expect_refused(with("dropout=1.5"), "dropout");
  expect_refused(with("final_softcap=0"), "final_softcap");
  expect_refused(with("initialization={\"type\": \"lecun\", \"std\": 1}"), "std");
  expect_refused(with("training=3"), "training");
  expect_refused(parse_json(R"({"dim": 8})", "test"), "layers");
  expect_refused(parse_json("[]", "test"), "model.json");
}

TEST(Config, HashSeesWhatWeightsDependOn) {
  const auto hash = [](const std::string& assignment) {
    return ModelConfig::from_json(with(assignment), "test").architecture_hash();
  };
  const std::string plain = hash("heads=2");
  for (const char* same :
       {"name=other", "dropout=0.5", "training.steps=3", "initialization.type=normal", "context=9"}) {
    EXPECT_EQ(hash(same), plain) << same;
  }
  for (const char* other : {"heads=1", "mixer.latents=8", "norm_eps=0.1", "vocabulary=9", "embedding.tied=false",
                            "feed_forward.dim=9", "layers=2", "final_softcap=3", "rope_theta=100", "embedding.scale=2",
                            "embedding.norm=true", "feed_forward.type=experts"}) {
    EXPECT_NE(hash(other), plain) << other;
  }
}

TEST(ApplySetting, SetsJsonOrText) {
  Json json = small();
  apply_setting(json, "mixer.latents=12");
  apply_setting(json, "name=a=b c");
  apply_setting(json, "training.dtype=bfloat16");
  apply_setting(json, "mixer.window=null");
  EXPECT_EQ(json["mixer"]["latents"], 12);
  EXPECT_EQ(json["name"], "a=b c");
  EXPECT_EQ(json["training"]["dtype"], "bfloat16");
  EXPECT_TRUE(json["mixer"]["window"].is_null());
  json["layers"] = parse_json(R"([{"mixer": {"mixer": "linear"}}])", "test");
  apply_setting(json, "layers.0.mixer.heads=3");
  EXPECT_EQ(json["layers"][0]["mixer"]["heads"], 3);
  for (const char* bad : {"dim", "=3", "dim.more=3", "layers.1.mixer=3", "layers.x=3", "mixer..latents=3", ".a=3"}) {
    EXPECT_THROW(apply_setting(json, bad), InputError) << bad;
  }
}

TEST(Config, EveryShippedConfigIsValid) {
  const char* source = std::getenv("CORTADO_SOURCE");
  ASSERT_NE(source, nullptr) << "run by ctest, or set CORTADO_SOURCE to the repository";
  int found = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(std::string(source) + "/configs")) {
    if (entry.path().extension() != ".json") continue;
    ++found;
    EXPECT_NO_THROW(ModelConfig::from_json(read_json_file(entry.path()), entry.path())) << entry.path();
  }
  EXPECT_GE(found, 12);
}

// Griffin's recurrences take no positions, so the model has none, but its local attention is rotary.
TEST(Config, GriffinsLocalAttentionKnowsPositions) {
  const std::string path = std::string(std::getenv("CORTADO_SOURCE")) + "/configs/table2/griffin.json";
  const Json attention = read_json_file(path)["layers"][1]["mixer"];
  EXPECT_EQ(attention["mixer"], "sliding_window");
  EXPECT_EQ(attention["rotary"], true);
  EXPECT_EQ(attention["kv_heads"], 1);
  EXPECT_EQ(attention["window"], 129);  // the paper's 128 and the current token
}

}  // namespace
}  // namespace cortado
