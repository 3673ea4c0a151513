// Stacks of different mixers keep each mixer's properties: the decoder carries the state of every layer separately.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "cortado/models/language_model.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/examples.h"

namespace cortado {
namespace {

struct Stack {
  std::string name;
  std::string layers;  // one period of the pattern
};

// Three linear layers to one of softmax, with gates or the delta rule; Samba (Mamba and a window); Griffin (two
// recurrences and a window); state spaces and token shifts; fixed decays with latents; and one model with all remaining
// mechanisms.
const std::vector<Stack> kStacks = {
    {"gla_3_softmax_1",
     R"([{"repeat": 3, "mixer": {"mixer": "gla"}}, {"mixer": {"mixer": "softmax", "kv_heads": 1}}])"},
    {"samba", R"([{"mixer": {"mixer": "mamba", "state": 5}}, {"mixer": {"mixer": "sliding_window", "window": 5}}])"},
    {"gated_delta_net_3_softmax_1",
     R"([{"repeat": 3, "mixer": {"mixer": "gated_delta_net"}}, {"mixer": {"mixer": "softmax"}}])"},
    {"griffin", R"([{"repeat": 2, "mixer": {"mixer": "griffin"}},
                    {"mixer": {"mixer": "sliding_window", "window": 4, "kv_heads": 1}}])"},
    {"rg_lru_macchiato",
     R"([{"mixer": {"mixer": "rg_lru"}}, {"mixer": {"mixer": "macchiato", "window": 4, "latents": 4}}])"},
    {"every_other_family",
     R"([{"mixer": {"mixer": "delta_net"}}, {"mixer": {"mixer": "kda"}}, {"mixer": {"mixer": "abc", "slots": 3}},
         {"mixer": {"mixer": "gated_slot", "slots": 3}}, {"mixer": {"mixer": "blurry_window", "slots": 3, "period": 7}},
         {"mixer": {"mixer": "lolcats", "window": 4}}, {"mixer": {"mixer": "h3", "states": 2, "taps": 3}},
         {"mixer": {"mixer": "s5", "states": 3}}, {"mixer": {"mixer": "mega", "average": 2, "chunk": 8}},
         {"mixer": {"mixer": "rwkv6", "mix_rank": 2, "decay_rank": 3}}, {"mixer": {"mixer": "linear"}}])"},
    {"mamba2_rwkv4_rwkv6", R"([{"mixer": {"mixer": "mamba2", "state": 4}}, {"mixer": {"mixer": "rwkv4"}},
                               {"mixer": {"mixer": "rwkv6", "mix_rank": 2, "decay_rank": 3}}])"},
    // Layers that share the first one's values, with others in between.
    {"rwkv7", R"([{"mixer": {"mixer": "linear"}}, {"mixer": {"mixer": "rwkv7", "decay_rank": 2, "value_rank": 3}},
                  {"mixer": {"mixer": "rwkv7_channel_mix", "hidden": 10}}])"},
    {"retention_lightning_latte", R"([{"mixer": {"mixer": "retention", "conv": 3}}, {"mixer": {"mixer": "lightning"}},
                                      {"mixer": {"mixer": "latte", "latents": 4}}])"},
};

// The stacks without deleted mechanisms.
std::vector<Stack> stacks() {
  std::vector<Stack> found;
  for (const Stack& stack : kStacks) {
    Json layers = Json::array();
    for (const Json& layer : parse_json(stack.layers, stack.name)) {
      if (testing::is_registered(layer["mixer"]["mixer"].get<std::string>())) layers.push_back(layer);
    }
    if (!layers.empty()) found.push_back({stack.name, layers.dump()});
  }
  return found;
}

void PrintTo(const Stack& stack, std::ostream* out) { *out << stack.name; }

class Hybrid : public ::testing::TestWithParam<Stack> {
 protected:
  void SetUp() override { at::manual_seed(11); }

  // A model with the pattern twice.
  static std::shared_ptr<LanguageModel> stack(at::ScalarType type = at::kDouble) {
    const std::string text =
        concat(R"({"dim": 12, "heads": 2, "vocabulary": 13, "positions": "rotary", "repeat_layers": 2, "layers": )",
               GetParam().layers, R"(, "feed_forward": {"type": "swiglu", "dim": 16}})");
    auto model = std::make_shared<LanguageModel>(ModelConfig::from_json(parse_json(text, "stack"), "stack"));
    model->to(type);
    return model;
  }
  static Tensor words(int64_t rows, int64_t tokens) { return at::randint(0, 13, {rows, tokens}, at::kLong); }

  // Compares logits computed in two ways, and the gradients of all parameters.
  static void expect_same_logits(LanguageModel& model, const Tensor& actual, const Tensor& expected) {
    EXPECT_CLOSE(actual, expected, 1e-9);
    const auto weights = testing::weights_like({expected});
    const auto got = testing::gradients({actual}, weights, model.parameters());
    const auto wanted = testing::gradients({expected}, weights, model.parameters());
    testing::expect_gradients_close(got, wanted, 1e-8, model.named_parameters().keys());
  }
};

TEST_P(Hybrid, StepsEqualTheWhole) {
  const auto model = stack();
  const at::NoGradGuard no_grad;
  const Tensor tokens = words(2, 24), whole = model->forward(tokens);
  ModelState state = model->zero_state(2);
  std::vector<Tensor> steps;
  for (int64_t t = 0; t < 24; ++t) steps.push_back(model->forward(tokens.narrow(1, t, 1), {}, &state));
  EXPECT_CLOSE(at::cat(steps, 1), whole, 1e-9);
}

TEST_P(Hybrid, AnyCutEqualsTheWhole) {
  const auto model = stack();
  const Tensor tokens = words(2, 70), whole = model->forward(tokens);
  for (const int64_t cut : {1, 3, 31, 64, 69}) {
    SCOPED_TRACE(concat("cut at ", cut));
    ModelState state = model->zero_state(2);
    const Tensor first = model->forward(tokens.narrow(1, 0, cut), {}, &state);
    const Tensor second = model->forward(tokens.narrow(1, cut, 70 - cut), {}, &state);
    expect_same_logits(*model, at::cat({first, second}, 1), whole);
  }
}

TEST_P(Hybrid, PackedEqualsSeparate) {
  const auto model = stack();
  const std::vector<int64_t> bounds = {0, 1, 1, 20, 67, 70};
  const Tensor tokens = words(1, 70);
  Batch batch;
  batch.cu_seqlens = at::tensor(bounds, at::kLong);
  std::vector<Tensor> parts;
  for (size_t n = 0; n + 1 < bounds.size(); ++n) {
    const int64_t length = bounds[n + 1] - bounds[n];
    if (length > 0) parts.push_back(model->forward(tokens.narrow(1, bounds[n], length)));
  }
  expect_same_logits(*model, model->forward(tokens, batch), at::cat(parts, 1));
}

TEST_P(Hybrid, PaddedPrefillThenDenseDecoding) {
  const auto model = stack();
  const at::NoGradGuard no_grad;
  const Tensor tokens = words(3, 12), lengths = at::tensor({9, 4, 1}, at::kLong);
  const Packed packed = pack_padded(tokens.narrow(1, 0, 9), lengths);
  ModelState state = model->zero_state(3);
  model->forward(packed.tokens, packed.batch, &state);
  const Tensor next = words(3, 3), decoded = model->forward(next, {}, &state);
  for (int64_t row = 0; row < 3; ++row) {
    const int64_t length = lengths[row].item<int64_t>();
    const Tensor alone = at::cat({tokens[row].narrow(0, 0, length), next[row]}).unsqueeze(0);
    EXPECT_CLOSE(decoded[row], model->forward(alone)[0].narrow(0, length, 3), 1e-9) << row;
  }
}

TEST_P(Hybrid, NothingLooksAhead) {
  const auto model = stack();
  const at::NoGradGuard no_grad;
  const Tensor tokens = words(1, 70), before = model->forward(tokens);
  for (const int64_t t : {0, 16, 40, 63}) {
    Tensor other = tokens.clone();
    other.narrow(1, t + 1, 69 - t).add_(1).remainder_(13);
    EXPECT_CLOSE(model->forward(other).narrow(1, 0, t + 1), before.narrow(1, 0, t + 1), 1e-11) << t;
  }
}

TEST_P(Hybrid, ItsStateIsSavedAndHasTheSizeOfItsFormula) {
  const auto model = stack(at::kFloat);
  const at::NoGradGuard no_grad;
  const Tensor tokens = words(1, 30);
  ModelState state = model->zero_state(1);
  model->forward(tokens.narrow(1, 0, 20), {}, &state);
  EXPECT_EQ(state.bytes(), model->state_bytes(20));
  const auto path = std::filesystem::temp_directory_path() / concat("cortado-hybrid-", ::getpid(), ".safetensors");
  write_safetensors(path.string(), state.file(model->identity()));
  ModelState loaded = ModelState::of_file(read_safetensors(path.string()), *model);
  std::filesystem::remove(path);
  const Tensor rest = tokens.narrow(1, 20, 10), expected = model->forward(rest, {}, &state);
  EXPECT_TRUE(at::equal(model->forward(rest, {}, &loaded), expected));
}

INSTANTIATE_TEST_SUITE_P(Patterns, Hybrid, ::testing::ValuesIn(stacks()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cortado
