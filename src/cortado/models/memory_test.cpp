#include "cortado/models/memory.h"

#include <gtest/gtest.h>

#include "cortado/base/files.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/models/checkpoint.h"
#include "cortado/nn/initialization.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/examples.h"

namespace cortado {
namespace {

ModelConfig config_of(const char* layers) {
  const std::string text = std::string(R"({"dim": 24, "heads": 4, "vocabulary": 11, "layers": )") + layers + "}";
  return ModelConfig::from_json(parse_json(text, "test"), "test");
}

const char* kConverted = R"([{"mixer": {"mixer": "lolcats", "kv_heads": 2, "rotary": true, "window": 8,
    "layout": "sliding", "features": 5}}, {"mixer": {"mixer": "softmax"}}])";

Memory memory(const std::string& kind) {
  Memory wanted;
  wanted.kind = kind;
  return wanted;
}

TEST(Memory, ChangesTheMixersThatItCan) {
  CORTADO_NEEDS("lola");
  Memory lola = memory("lola");
  lola.options["chunk"] = 4;
  lola.options["cache"] = 6;
  const ModelConfig config = with_memory(config_of(kConverted), lola);
  EXPECT_EQ(config.layers[0].dump(),
            R"({"mixer":"lola","kv_heads":2,"rotary":true,"features":5,"mixture":"gated","chunk":4,"cache":6})");
  EXPECT_EQ(config.layers[1].dump(), R"({"mixer":"softmax"})");
  Memory window = memory("window");
  window.options["window"] = 3;
  EXPECT_EQ(with_memory(config_of(kConverted), window).layers[1].dump(), R"({"mixer":"sliding_window","window":3})");
  EXPECT_EQ(with_memory(config_of(kConverted), memory("softmax")).layers[0].dump(),
            R"({"mixer":"softmax","kv_heads":2,"rotary":true})");
  // A window stays what it is, but for the option.
  const char* const aligned =
      R"([{"mixer": {"mixer": "sliding_window", "window": 8, "aligned": true, "sinks": true}}])";
  EXPECT_EQ(with_memory(config_of(aligned), window).layers[0].dump(),
            R"({"mixer":"sliding_window","window":3,"aligned":true,"sinks":true})");
}

TEST(Memory, OneCheckpointRunsWithEveryMemory) {
  CORTADO_NEEDS("lola");
  const TemporaryDirectory directory;
  const std::string& run = directory.path();
  LanguageModel trained(config_of(kConverted));
  write_file(run + "/config.json", trained.config().to_json().dump());
  save_weights(trained, run + "/last.safetensors");
  const at::NoGradGuard no_grad;
  const Tensor tokens = at::randint(11, {2, 40}, at::kLong);
  const auto run_with = [&](const Memory& wanted) {
    OpenOptions options;
    options.memory = wanted;
    return open_model(run, options)->forward(tokens);
  };
  const Tensor softmax = run_with(memory("softmax"));
  Memory lola = memory("lola");
  lola.options["cache"] = 64;
  EXPECT_CLOSE(run_with(lola), softmax, 1e-4);  // the cache holds everything
  lola.options["cache"] = 4;
  lola.options["chunk"] = 4;
  EXPECT_GT((run_with(lola) - softmax).abs().max().item<double>(), 1e-3);
  EXPECT_TRUE(run_with(memory("lolcats")).equal(trained.forward(tokens)));
  Memory window = memory("window");
  window.options["window"] = 40;
  EXPECT_CLOSE(run_with(window), softmax, 1e-5);
}

TEST(Memory, RefusesWhatMakesNoSense) {
  const auto error = [](const char* layers, Memory wanted) {
    return testing::error_of([&] { with_memory(config_of(layers), wanted); });
  };
  EXPECT_EQ(error(R"([{"mixer": {"mixer": "latte"}}])", memory("window")),
            "[memory] no layer of this model can run as window");
  CORTADO_NEEDS("lola");
  Memory wrong = memory("window");
  wrong.options["cache"] = 4;
  EXPECT_EQ(error(kConverted, wrong), "[memory] window has no cache");
  EXPECT_EQ(error(R"([{"mixer": {"mixer": "softmax"}}])", memory("lola")),
            "[memory] no layer of this model can run as lola: `cortado linearize` makes a model that can");
  EXPECT_EQ(error(kConverted, memory("large")),
            "[memory] expected softmax, window, macchiato, lolcats or lola, got \"large\"");
}

// Only for a model that was converted to macchiato: other models have no weights with its names.
TEST(Memory, MacchiatoHasACache) {
  CORTADO_NEEDS("macchiato");
  Memory cached = memory("macchiato");
  cached.options["cache"] = 6;
  const char* converted = R"([{"mixer": {"mixer": "macchiato", "latents": 8, "window": 5, "source": "conv"}},
      {"mixer": {"mixer": "softmax"}}])";
  const ModelConfig config = with_memory(config_of(converted), cached);
  EXPECT_EQ(config.layers[0].dump(), R"({"mixer":"macchiato","latents":8,"window":5,"source":"conv","cache":6})");
  EXPECT_EQ(config.layers[1].dump(), R"({"mixer":"softmax"})");
  EXPECT_EQ(with_memory(config_of(converted), memory("softmax")).layers[0], config_of(converted).layers[0]);
  EXPECT_EQ(testing::error_of([&] { with_memory(config_of(kConverted), cached); }),
            "[memory] no layer of this model can run as macchiato: `cortado linearize` makes a model that can");
}

// The compression column of LoLA's Tables 1 and 2: heads of width 128 in Llama-3.1-8B, with feature maps that the paper
// takes as D = 256 wide.
TEST(Memory, CountsPairsAsThePaperDoes) {
  const SkipInitialization skip;
  const auto pairs = [](const Json& settings, int64_t tokens) {
    MixerContext context;
    context.dim = 128;
    return make_mixer(settings, context, "test")->pairs(tokens);
  };
  EXPECT_FALSE(pairs({{"mixer", "latte"}}, 100).has_value());
  EXPECT_EQ(pairs({{"mixer", "softmax"}}, 100)->total(), 100);
  EXPECT_EQ(pairs({{"mixer", "sliding_window"}, {"window", 30}}, 100)->total(), 30);
  CORTADO_NEEDS("lola");
  const auto compression = [&](Json settings, int64_t tokens) {
    settings["features"] = 128;
    return static_cast<double>(tokens) / pairs(settings, tokens)->total();
  };
  const auto lola = [](int64_t size) { return Json{{"mixer", "lola"}, {"chunk", size}, {"cache", size}}; };
  const Json lolcats = {{"mixer", "lolcats"}, {"window", 64}, {"layout", "sliding"}};
  EXPECT_NEAR(compression(lolcats, 2048), 10.7, 0.05);
  EXPECT_NEAR(compression(lolcats, 4096), 21.3, 0.05);
  struct Row {
    int64_t size, tokens;
    double paper;
  };
  for (const auto& [size, tokens, paper] : {Row{64, 2048, 6.4},
                                            {64, 4096, 12.8},
                                            {128, 2048, 4.0},
                                            {128, 4096, 8.0},
                                            {256, 2048, 2.3},
                                            {256, 4096, 4.6},
                                            {512, 2048, 1.2},
                                            {512, 4096, 2.46},
                                            {512, 8192, 4.92},
                                            {512, 16384, 9.85}}) {
    EXPECT_NEAR(compression(lola(size), tokens), paper, 0.05) << size << " at " << tokens;
  }
  EXPECT_EQ(pairs(lolcats, 20)->softmax, 20);
}

}  // namespace
}  // namespace cortado
