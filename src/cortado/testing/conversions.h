// Small runs to convert, for the tests of conversions.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cortado/base/files.h"
#include "cortado/convert/linearize.h"
#include "cortado/models/checkpoint.h"

namespace cortado::testing::conversions {

inline Json small_config(const std::string& mixer) {
  Json config = parse_json(R"({"vocabulary": 256, "dim": 24, "heads": 4, "layers": 3, "norm": "rms",
      "feed_forward": {"type": "swiglu", "dim": 32}, "positions": "rotary", "context": 64})",
                           "test");
  config["mixer"] = parse_json(mixer, "mixer");
  return config;
}

const char* const kGrouped =
    R"({"mixer": "softmax", "kv_heads": 2, "head_dim": 8, "bias": true, "output_bias": false})";

inline Json lolcats_settings(const std::string& more = "{}") {
  Json settings = parse_json(R"({"mixer": "lolcats", "window": 4, "layout": "sliding"})", "test");
  settings.update(parse_json(more, "test"));
  return settings;
}

inline Json macchiato_settings() {
  return parse_json(R"({"mixer": "macchiato", "window": 5, "source": "conv", "latents": 8, "window_logit": 20})",
                    "test");
}

inline std::string random_words() {
  const std::vector<std::string> words = {"tea ", "and ", "milk ", "or ", "coffee. "};
  std::string text;
  for (uint32_t i = 0, x = 7; i < 900; ++i, x = x * 1664525 + 1013904223) text += words[(x >> 16) % words.size()];
  return text;
}

class ConversionTest : public ::testing::Test {
 protected:
  ConversionTest() {
    at::set_num_threads(1);
    std::ofstream(path("text.txt")) << random_words();
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  // A run of random weights.
  std::string make_run(const Json& config, const std::string& name = "source") const {
    at::manual_seed(5);
    LanguageModel model(ModelConfig::from_json(config, "test"));
    std::filesystem::create_directories(path(name) + "/tokenizer");
    make_tokenizer("byte", {})->save(path(name) + "/tokenizer");
    write_file(path(name) + "/config.json", model.config().to_json().dump());
    save_weights(model, path(name) + "/best.safetensors");
    return path(name);
  }

  LinearizeRequest request(const std::string& source, const std::string& out,
                           const Json& mixer = lolcats_settings()) const {
    LinearizeRequest request;
    request.plan.source = source;
    request.plan.conversion.mixer = mixer;
    request.plan.data = {path("text.txt")};
    request.plan.context = 32;
    request.plan.evaluation_chunks = 3;
    request.plan.transfer.accumulate = 2;
    request.plan.transfer.tokens = 10 * 64;
    request.plan.transfer.evaluate_every = 4;
    request.out = path(out);
    request.progress = false;
    return request;
  }

  LinearizeRequest resuming(const std::string& out) const {
    LinearizeRequest again;
    again.out = path(out);
    again.use = FolderUse::kResume;
    again.progress = false;
    return again;
  }

  TemporaryDirectory folder_;
};

inline Tensor some_tokens(int64_t rows, int64_t length) {
  at::manual_seed(11);
  return at::randint(256, {rows, length}, at::kLong);
}

}  // namespace cortado::testing::conversions
