#include <gtest/gtest.h>

#include "cortado/mechanisms/lola/rule.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/nn/weights.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"

namespace cortado::lola_test {
namespace {

constexpr int64_t kWidth = 24;

std::shared_ptr<Mixer> make(const std::string& settings) {
  at::manual_seed(3);
  MixerContext context;
  context.dim = kWidth;
  context.heads = 4;
  auto mixer = make_mixer(parse_json(settings, "test"), context, "test");
  mixer->to(at::kDouble);
  return mixer;
}

Tensor some(int64_t rows, int64_t tokens) {
  at::manual_seed(tokens);
  return at::randn({rows, tokens, kWidth}, at::kDouble);
}

void copy_common_weights(Mixer& to, const Mixer& from) {
  const at::NoGradGuard no_grad;
  const auto given = named_weights(from);
  for (auto& weight : named_weights(to)) weight.value().copy_(given[weight.key()]);
}

// Reads x token by token.
Tensor decode(Mixer& mixer, const Tensor& x, SequenceState& state) {
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < x.size(1); ++t) outputs.push_back(mixer.forward(x.narrow(1, t, 1), {}, &state));
  return at::cat(outputs, 1);
}

// It equals softmax attention until a pair must leave the cache: for (⌊λ/C⌋ + 2)·C tokens by chunks.
TEST(Lola, IsSoftmaxUntilTheCacheIsFull) {
  const at::NoGradGuard no_grad;
  for (const auto& [chunk, cache] : {std::pair{8, 20}, {8, 24}, {5, 0}}) {
    for (const char* mixture : {"lolcats", "gated", "plain"}) {
      const auto lola = make(concat(R"({"mixer": "lola", "chunk": )", chunk, R"(, "cache": )", cache,
                                    R"(, "mixture": ")", mixture, R"("})"));
      const auto softmax = make(R"({"mixer": "softmax"})");
      copy_common_weights(*softmax, *lola);
      const int64_t exact = (cache / chunk + 2) * chunk;
      const Tensor x = some(2, exact + 1);
      const Tensor got = lola->forward(x, {}, nullptr), right = softmax->forward(x, {}, nullptr);
      EXPECT_CLOSE(got.narrow(1, 0, exact), right.narrow(1, 0, exact), 1e-11);
      EXPECT_GT((got - right).narrow(1, exact, 1).abs().max().item<double>(), 1e-6);
    }
  }
}

// ... and for λ + η tokens if pairs leave one at a time.
TEST(Lola, IsSoftmaxUntilTheCacheIsFullInTokenDecoding) {
  const at::NoGradGuard no_grad;
  const auto lola = make(R"({"mixer": "lola", "cache": 9, "token_window": 6})");
  const auto softmax = make(R"({"mixer": "softmax"})");
  copy_common_weights(*softmax, *lola);
  const Tensor x = some(2, 16), right = softmax->forward(x, {}, nullptr);
  SequenceState state = lola->zero_state(2, x.options());
  const Tensor got = decode(*lola, x, state);
  EXPECT_CLOSE(got.narrow(1, 0, 15), right.narrow(1, 0, 15), 1e-11);
  EXPECT_GT((got - right).narrow(1, 15, 1).abs().max().item<double>(), 1e-6);
}

// Without a cache it equals LoLCATs in terraces.
TEST(Lola, WithoutACacheIsLolcats) {
  for (const char* mixture : {"lolcats", "gated", "plain"}) {
    const auto lola = make(concat(R"({"mixer": "lola", "chunk": 8, "cache": 0, "mixture": ")", mixture, R"("})"));
    const auto lolcats = make(concat(R"({"mixer": "lolcats", "window": 8, "mixture": ")", mixture, R"("})"));
    copy_common_weights(*lolcats, *lola);
    const Tensor x = some(2, 75);
    EXPECT_CLOSE(lola->forward(x, {}, nullptr), lolcats->forward(x, {}, nullptr), 1e-11);
  }
}

// Repeated tokens have equal scores. Which of them stay depends on their positions, not on how a split rounds.
TEST(Lola, AnySplitOfRepeatedTokensGivesTheSame) {
  const at::NoGradGuard no_grad;
  at::manual_seed(11);
  for (const char* score : {"error", "leave_one_out", "squared", "absolute", "ratio", "share"}) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const bool rotary : {true, false}) {
        SCOPED_TRACE(concat(score, " ", type, rotary ? " rotary" : ""));
        const auto lola = make(concat(R"({"mixer": "lola", "chunk": 8, "cache": 12, "score": ")", score,
                                      R"(", "rotary": )", rotary ? "true" : "false", "}"));
        lola->to(type);
        for (int draw = 0; draw < 12; ++draw) {
          const int64_t tokens = 80 + at::randint(40, {1}).item<int64_t>();
          const Tensor few = at::randn({1 + draw % 3, kWidth}, type);
          const Tensor x = few.index_select(0, at::randint(few.size(0), {tokens})).unsqueeze(0);
          const Tensor whole = lola->forward(x, {}, nullptr);
          SequenceState state = lola->zero_state(1, x.options());
          std::vector<Tensor> parts;
          for (int64_t first = 0, count = 0; first < tokens; first += count) {
            count = std::min(tokens - first, 1 + at::randint(30, {1}).item<int64_t>());
            parts.push_back(lola->forward(x.narrow(1, first, count), {}, &state));
          }
          EXPECT_CLOSE(at::cat(parts, 1), whole, type == at::kDouble ? 1e-10 : 1e-4) << draw;
        }
      }
    }
  }
}

// The definition's output with a mixer's parameters; the first `chunked` tokens are read by chunks.
Tensor by_definition(const Mixer& mixer, const Tensor& x, const LolaRule& rule, int64_t chunked) {
  const auto weights = named_weights(mixer);
  const auto heads = [&](const char* name) { return at::linear(x, weights[name]).unflatten(2, {4, 6}); };
  const Tensor q = heads("q.weight"), k = heads("k.weight"), v = heads("v.weight");
  const auto phi = [&](const Tensor& y, const char* name) {
    const Tensor z = at::matmul(y.transpose(1, 2), weights[name]).transpose(1, 2);
    return at::cat({z.softmax(-1), (-z).softmax(-1)}, -1);
  };
  const Tensor o = lola_reference({q, k, v, phi(q, "phi_q.weight"), phi(k, "phi_k.weight"), weights["window_factor"]},
                                  rule, chunked);
  return at::linear(o.flatten(2), weights["o.weight"]);
}

// The paper's decoding with every score: from the start, and after a prefill by chunks, from whose window the oldest
// pairs leave one by one; in rows of different lengths.
TEST(Lola, DecodesByTokensAsDefined) {
  const at::NoGradGuard no_grad;
  for (const char* score : {"error", "squared", "absolute", "ratio", "share", "recent"}) {
    SCOPED_TRACE(score);
    const auto mixer = make(concat(
        R"({"mixer": "lola", "chunk": 7, "cache": 5, "token_window": 4, "softcap": 0.2, "score": ")", score, R"("})"));
    LolaRule rule;
    rule.softcap = 0.2;
    rule.chunk = 7;
    rule.cache = 5;
    rule.token_window = 4;
    rule.score = value_of(lola_scores(), score, "score");
    const Tensor x = some(2, 50);
    SequenceState state = mixer->zero_state(2, x.options());
    EXPECT_CLOSE(decode(*mixer, x, state), by_definition(*mixer, x, rule, 0), 1e-10);

    const std::vector<int64_t> prefill = {31, 3};
    Batch packed;
    packed.cu_seqlens = at::tensor({0, 31, 34}, at::kLong);
    state = mixer->zero_state(2, x.options());
    mixer->forward(at::cat({x.narrow(0, 0, 1).narrow(1, 0, 31), x.narrow(0, 1, 1).narrow(1, 0, 3)}, 1), packed, &state);
    const Tensor rest = at::stack({x[0].narrow(0, 31, 19), x[1].narrow(0, 3, 19)});
    const Tensor got = decode(*mixer, rest, state);
    for (int64_t n = 0; n < 2; ++n) {
      const Tensor right = by_definition(*mixer, x.narrow(0, n, 1).narrow(1, 0, prefill[n] + 19), rule, prefill[n]);
      EXPECT_CLOSE(got.narrow(0, n, 1), right.narrow(1, prefill[n], 19), 1e-10);
    }
  }
}

// After single tokens a longer call continues by chunks: the pairs that are too old for its chunk leave together.
TEST(Lola, ReadsOnByChunksAfterTokens) {
  const at::NoGradGuard no_grad;
  const auto mixer = make(R"({"mixer": "lola", "chunk": 4, "cache": 100, "token_window": 30})");
  const auto softmax = make(R"({"mixer": "softmax"})");
  copy_common_weights(*softmax, *mixer);
  const Tensor x = some(1, 60), right = softmax->forward(x, {}, nullptr);
  SequenceState state = mixer->zero_state(1, x.options());
  decode(*mixer, x.narrow(1, 0, 41), state);
  EXPECT_EQ(state.at("keys").size(1), 30);
  const Tensor got = mixer->forward(x.narrow(1, 41, 19), {}, &state);
  EXPECT_CLOSE(got, right.narrow(1, 41, 19), 1e-11);  // the cache holds everything
  EXPECT_EQ(state.at("keys").size(1), 8);
  EXPECT_EQ(state.at("kept").item<int64_t>() + state.at("cached").item<int64_t>(), 60);
}

// The state bytes that describe reports for single tokens match the state.
TEST(Lola, CountsWhatSingleTokensLeave) {
  const at::NoGradGuard no_grad;
  const auto mixer = make(R"({"mixer": "lola", "chunk": 4, "cache": 5, "token_window": 17})");
  mixer->to(at::kFloat);
  const Tensor x = some(1, 40).to(at::kFloat);
  SequenceState state = mixer->zero_state(1, x.options());
  for (int64_t t = 0; t < 40; ++t) {
    mixer->forward(x.narrow(1, t, 1), {}, &state);
    EXPECT_EQ(state.bytes(), mixer->state_bytes(t + 1)) << t + 1 << " tokens";
  }
  EXPECT_EQ(mixer->pairs(40)->softmax, 17 + 5);
}

// The pair that the linear state answers worst stays: the one whose value differs from all others.
TEST(Lola, KeepsWhatTheStateWouldAnswerWrongly) {
  const at::NoGradGuard no_grad;
  const auto mixer = make(R"({"mixer": "lola", "chunk": 4, "cache": 2})");
  Tensor x = some(1, 80);
  for (auto& weight : named_weights(*mixer)) {  // all values equal channel 0
    if (weight.key() == "v.weight") {
      weight.value().zero_();
      weight.value().select(1, 0).fill_(1);
    }
  }
  x.select(2, 0).fill_(1);
  x[0][29][0] = -5;
  SequenceState state = mixer->zero_state(1, x.options());
  mixer->forward(x, {}, &state);
  const Tensor values = state.at("cache_values");
  EXPECT_EQ(values.size(1), 2);
  EXPECT_TRUE((values == -5).any(1).all().item<bool>()) << values;
}

TEST(Lola, StartsAndIsCalledLikeLolcats) {
  const auto lola = make(R"({"mixer": "lola"})"), lolcats = make(R"({"mixer": "lolcats"})");
  ASSERT_EQ(named_weights(*lola).keys(), named_weights(*lolcats).keys());
  for (const auto& weight : named_weights(*lola)) {
    EXPECT_EQ(weight.value().sizes(), named_weights(*lolcats)[weight.key()].sizes()) << weight.key();
  }
}

TEST(Lola, SaysWhatDoesNotFit) {
  EXPECT_EQ(testing::error_of([] { value_of(lola_scores(), "best", "[lola] score"); }),
            "[lola] score must be \"error\", \"leave_one_out\", \"squared\", \"absolute\", \"ratio\", \"share\" or "
            "\"recent\", "
            "got \"best\"");
  EXPECT_THROW(make(R"({"mixer": "lola", "chunk": 0})"), InputError);
  EXPECT_THROW(make(R"({"mixer": "lola", "cache": -1})"), InputError);
  EXPECT_THROW(make(R"({"mixer": "lola", "token_window": 0})"), InputError);
}

}  // namespace
}  // namespace cortado::lola_test
