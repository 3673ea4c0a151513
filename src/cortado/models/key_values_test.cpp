#include <gtest/gtest.h>

#include "cortado/models/config.h"
#include "cortado/models/language_model.h"

namespace cortado::key_values_test {

ModelConfig config_of(const std::string& mixer) {
  const Json json = {{"vocabulary", 9}, {"dim", 24}, {"heads", 4}, {"layers", 3}, {"mixer", Json::parse(mixer)}};
  return ModelConfig::from_json(json, "test");
}

TEST(KeyValues, AreASoftmaxModelsOwnCache) {
  for (const char* mixer : {R"({"mixer": "softmax"})", R"({"mixer": "softmax", "kv_heads": 2})",
                            R"({"mixer": "softmax", "heads": 6, "kv_heads": 3, "head_dim": 10})",
                            R"({"mixer": "softmax", "heads": 2, "head_dim": 8})"}) {
    const LanguageModel model(config_of(mixer));
    EXPECT_EQ(key_value_bytes(model.config(), 512, at::kFloat), model.state_bytes(512) - model.state_bytes(0)) << mixer;
  }
}

TEST(KeyValues, StandInThePlacesOfOtherLayers) {
  const auto bytes = [](const char* mixer, at::ScalarType type) { return key_value_bytes(config_of(mixer), 10, type); };
  // 3 layers, a key and a value, 10 tokens.
  EXPECT_EQ(bytes(R"({"mixer": "gla"})", at::kFloat), 3 * 2 * 10 * 24 * 4);
  EXPECT_EQ(bytes(R"({"mixer": "sliding_window", "window": 3, "kv_heads": 1})", at::kBFloat16), 3 * 2 * 10 * 6 * 2);
  EXPECT_EQ(bytes(R"({"mixer": "exact_chunked", "chunk": 8, "kv_heads": 2, "head_dim": 10})", at::kHalf),
            3 * 2 * 10 * 20 * 2);
}

}  // namespace cortado::key_values_test
