// Small runs for the tests of conversions.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cortado/base/files.h"
#include "cortado/convert/linearize.h"
#include "cortado/convert/weights.h"
#include "cortado/formats/safetensors.h"
#include "cortado/mechanisms/shared/student.h"
#include "cortado/models/checkpoint.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/examples.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado::testing::conversions {

// Returns the config of a language model with three layers and the given mixer.
inline Json small_config(const std::string& mixer) {
  Json config = parse_json(R"({"vocabulary": 256, "dim": 24, "heads": 4, "layers": 3, "norm": "rms",
      "feed_forward": {"type": "swiglu", "dim": 32}, "positions": "rotary", "context": 64})",
                           "test");
  config["mixer"] = parse_json(mixer, "mixer");
  return config;
}

// Softmax attention with two heads per key-value head.
const char* const kGrouped =
    R"({"mixer": "softmax", "kv_heads": 2, "head_dim": 8, "bias": true, "output_bias": false})";

// Returns LoLCATs' settings with the changes in `more`, a JSON object.
inline Json lolcats_settings(const std::string& more = "{}") {
  Json settings = parse_json(R"({"mixer": "lolcats", "window": 4, "layout": "sliding"})", "test");
  settings.update(parse_json(more, "test"));
  return settings;
}

// Returns about 4500 characters, the same in every call.
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
  void SetUp() override { CORTADO_NEEDS("lolcats"); }  // the mechanism that the tests convert to

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  // Makes a run with random weights.
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

// Returns random tokens [rows, length] below 256, the same in every call.
inline Tensor some_tokens(int64_t rows, int64_t length) {
  at::manual_seed(11);
  return at::randint(256, {rows, length}, at::kLong);
}

// Returns the converted model of a run in float64.
inline std::shared_ptr<LanguageModel> convert(const std::string& run, const Json& mixer,
                                              std::vector<int64_t> keep = {}) {
  const ModelConfig source = read_config(run);
  const ModelConfig config = converted_config(source, {mixer, std::move(keep)});
  auto model = converted_model(config, source_weights(run, "best", source, config), 1, at::kDouble);
  model->to(at::kDouble);
  return model;
}

inline void expect_same_weights(const std::string& a, const std::string& b) {
  const TensorFile first = read_safetensors(a), second = read_safetensors(b);
  ASSERT_EQ(first.tensors.size(), second.tensors.size());
  for (size_t i = 0; i < first.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(first.tensors[i].second, second.tensors[i].second)) << first.tensors[i].first;
  }
}

// Returns the input of each layer's mixer if every layer passes on the output of its softmax attention.
inline std::vector<Tensor> forced_inputs(const LanguageModel& model, const Tensor& tokens) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> inputs;
  model.walk(tokens, [&](int64_t layer, const Tensor& x) {
    inputs.push_back(x);
    const auto& mixer = model.mixers()[size_t(layer)];
    const SoftmaxStudent* student = student_of(*mixer);
    return student ? student->project_output(student->lesson(x).teacher, x) : mixer->forward(x, {}, nullptr);
  });
  return inputs;
}

// Expects that the output a student is trained on equals the output of its layer.
inline void expect_own_outputs_as_lessons(const LanguageModel& model) {
  at::manual_seed(3);
  const Tensor x = at::randn({2, 19, 24}, at::kDouble);
  const auto& layer = model.mixers()[1];
  const SoftmaxStudent* student = student_of(*layer);
  ASSERT_NE(student, nullptr);
  EXPECT_CLOSE(student->project_output(student->lesson(x).student, x), layer->forward(x, {}, nullptr), 1e-12);
}

}  // namespace cortado::testing::conversions
