// Properties of macchiato's sparse cache beyond those of every mechanism.
#include "cortado/mechanisms/macchiato/cache.h"

#include <gtest/gtest.h>

#include "cortado/mechanisms/registry.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/conformance.h"
#include "cortado/testing/errors.h"

namespace cortado::macchiato_cache_test {
namespace {

constexpr int64_t kWidth = 24;

std::shared_ptr<Mixer> make(const std::string& settings, bool causal = true) {
  MixerContext context;
  context.dim = kWidth;
  context.heads = 4;
  context.causal = causal;
  Json json = {{"mixer", "macchiato"}, {"latents", 8}, {"source", "conv"}};
  json.update(parse_json(settings, "settings"));
  at::manual_seed(3);
  auto mixer = make_mixer(json, context, "test");
  mixer->to(at::kDouble);
  return mixer;
}

Tensor some(int64_t rows, int64_t tokens) {
  at::manual_seed(5);
  return at::randn({rows, tokens, kWidth}, at::kDouble);
}

// Without a cache, outputs and state are those of the plain mixer, bit for bit.
TEST(SparseCache, OfNoPairsIsMacchiatoBitForBit) {
  const auto plain = make(R"({"window": 9})");
  for (const char* none : {R"({"window": 9, "cache": 0})", R"({"window": 9, "cache": [0, 0, 0, 0], "chunk": 4})"}) {
    const auto mixer = make(none);
    const Tensor x = some(2, 70);
    EXPECT_TRUE(mixer->forward(x, {}, nullptr).equal(plain->forward(x, {}, nullptr)));
    EXPECT_EQ(mixer->state_bytes(70), plain->state_bytes(70));
    EXPECT_TRUE(mixer->memories().empty());
  }
}

// With room for every pair, and the window's logit far above the latents', it equals softmax attention over all tokens.
TEST(SparseCache, WithRoomForAllPairsIsSoftmaxAttention) {
  const auto whole = make(R"({"window": 300, "rotary": false, "window_logit": 1e3})");
  const Tensor x = some(2, 150), right = whole->forward(x, {}, nullptr);
  for (const int64_t chunk : {1, 8}) {  // with chunk 1 the cache sometimes holds a single pair
    const auto mixer =
        make(concat(R"({"window": 9, "cache": 200, "rotary": false, "window_logit": 1e3, "chunk": )", chunk, "}"));
    EXPECT_CLOSE(mixer->forward(x, {}, nullptr), right, 1e-11);
  }
}

// Any split keeps the same pairs. Repeated tokens have equal scores, and rounding must not rank them.
TEST(SparseCache, AnySplitGivesTheSame) {
  const at::NoGradGuard no_grad;
  for (const auto type : {at::kFloat, at::kDouble}) {
    std::vector<std::shared_ptr<Mixer>> mixers;
    for (const char* by :
         {R"("fading": 0)", R"("fading": 0.5)",
          R"("fading": 1, "rope_scaling": {"type": "yarn", "factor": 4, "original_context": 64})",  // keys turned back
          R"("fading": 0.25, "score": "learned", "span": 3)"}) {
      mixers.push_back(make(concat(R"({"window": 7, "cache": [12, 0, 5, 12], "chunk": 8, "distance": 20, )", by, "}")));
      mixers.back()->to(type);
    }
    at::manual_seed(11);
    for (int draw = 0; draw < 16; ++draw) {
      SCOPED_TRACE(concat(type, " ", draw));
      const auto& mixer = mixers[static_cast<size_t>(draw / 4)];  // each mixer sees every number of distinct tokens
      const int64_t tokens = 80 + at::randint(40, {1}).item<int64_t>();
      const Tensor few = at::randn({1 + draw % 4 * 20, kWidth}, type);
      const Tensor x = few.index_select(0, at::randint(few.size(0), {tokens})).unsqueeze(0);
      const Tensor whole = mixer->forward(x, {}, nullptr);
      SequenceState state = mixer->zero_state(1, x.options());
      std::vector<Tensor> parts;
      for (int64_t first = 0, count = 0; first < tokens; first += count) {
        count = std::min(tokens - first, 1 + at::randint(30, {1}).item<int64_t>());
        parts.push_back(mixer->forward(x.narrow(1, first, count), {}, &state));
        EXPECT_EQ(state.bytes(), mixer->state_bytes(first + count, type));
      }
      EXPECT_CLOSE(at::cat(parts, 1), whole, type == at::kDouble ? 1e-10 : 1e-4);
    }
  }
}

// Pairs may be stored in a shorter type than the computation's: checks outputs, the state's bytes, and several splits.
TEST(SparseCache, KeepsPairsInAShorterType) {
  const at::NoGradGuard no_grad;
  const auto mixer = make(R"({"window": 7, "cache": [12, 0, 5, 12], "chunk": 8, "distance": 30})");
  mixer->to(at::kFloat);
  const Tensor x = some(1, 150).to(at::kFloat), right = mixer->forward(x, {}, nullptr);
  for (const auto& [type, tolerance] : {std::pair(at::kHalf, 2e-3), std::pair(at::kBFloat16, 2e-2)}) {
    for (const std::vector<int64_t>& cut : {std::vector<int64_t>{150}, {20, 60, 1, 69}, {1, 1, 148}}) {
      SequenceState state = mixer->zero_state(1, x.options(), type);
      std::vector<Tensor> parts;
      for (const Tensor& part : x.split_with_sizes(cut, 1)) parts.push_back(mixer->forward(part, {}, &state));
      const Tensor all = at::cat(parts, 1);
      EXPECT_EQ(all.scalar_type(), at::kFloat);
      EXPECT_CLOSE(all, right, tolerance);
      EXPECT_GT(testing::relative_error(all, right), 1e-6);
      EXPECT_EQ(state.bytes(), mixer->state_bytes(150, at::kFloat, type));
      EXPECT_EQ(mixer->state_bytes(150) - state.bytes(), (12 + 5 + 12 + 4 * 12) * 2 * 6 * 2);
      for (const char* what : {"keys", "cache_keys_5", "cache_values_12"}) {
        EXPECT_EQ(state.at(what).scalar_type(), type);
      }
    }
  }
}

// Rows that are at different points of their chunks, and read over several chunks, give what each gives alone.
class SparseCacheRows : public ::testing::TestWithParam<const char*> {};

TEST_P(SparseCacheRows, ApartAreAsAlone) {
  const at::NoGradGuard no_grad;
  const auto mixer = make(GetParam());
  const StateLayout layout = mixer->state_layout();
  for (const int64_t tokens : {1, 3, 8, 30}) {
    SCOPED_TRACE(tokens);
    const Tensor x = some(4, 100);
    const std::vector<int64_t> begun{0, 5, 48, 61};
    std::vector<SequenceState> states;
    std::vector<Tensor> alone, last;
    for (size_t row = 0; row < begun.size(); ++row) {
      const auto of = [&](int64_t first, int64_t count) {
        return x.narrow(0, static_cast<int64_t>(row), 1).narrow(1, first, count);
      };
      SequenceState state = mixer->zero_state(1, x.options());
      if (begun[row] > 0) mixer->forward(of(0, begun[row]), {}, &state);
      states.push_back(layout.join({state}));
      alone.push_back(mixer->forward(of(begun[row], tokens), {}, &state));
      last.push_back(mixer->forward(of(begun[row] + tokens - 1, 1), {}, &state));
    }
    SequenceState together = layout.join(states);
    std::vector<Tensor> given, next;
    for (size_t row = 0; row < begun.size(); ++row) {
      given.push_back(x[static_cast<int64_t>(row)].narrow(0, begun[row], tokens));
      next.push_back(given.back().narrow(0, tokens - 1, 1));
    }
    EXPECT_CLOSE(mixer->forward(at::stack(given), {}, &together), at::cat(alone), 1e-11);
    EXPECT_CLOSE(mixer->forward(at::stack(next), {}, &together), at::cat(last), 1e-11);
  }
}

INSTANTIATE_TEST_SUITE_P(Scores, SparseCacheRows,
                         ::testing::Values(R"({"window": 7, "cache": [12, 0, 5, 12], "chunk": 8})",
                                           R"({"window": 7, "cache": [12, 0, 5, 12], "chunk": 8, "score": "learned",
                                               "fading": 0.25, "span": 3})"));

// Pairs from further away than the prepared angles, with and without a limit on the distance.
TEST(SparseCache, OldPairsAreTurnedByWhatTheyLieBefore) {
  const at::NoGradGuard no_grad;
  for (const char* distance : {"40", "1000000"}) {
    const auto mixer = make(concat(R"({"window": 5, "cache": 6, "chunk": 64, "distance": )", distance, "}"));
    const Tensor x = some(1, 1300), whole = mixer->forward(x, {}, nullptr);
    SequenceState state = mixer->zero_state(1, x.options());
    std::vector<Tensor> parts;
    for (const int64_t count : {100, 28, 1000, 1, 171}) {
      parts.push_back(mixer->forward(x.narrow(1, state.at("position")[0].item<int64_t>(), count), {}, &state));
    }
    EXPECT_CLOSE(at::cat(parts, 1), whole, 1e-10);
  }
}

// A pair unlike everything that the latents have seen stays.
TEST(SparseCache, KeepsWhatTheLatentsWouldAnswerWrongly) {
  const at::NoGradGuard no_grad;
  const auto mixer = make(R"({"window": 4, "cache": 2, "chunk": 4, "source": "x"})");
  Tensor x = at::zeros({1, 80, kWidth}, at::kDouble) + some(1, 1);
  x.select(1, 29) = 5 * some(1, 2).select(1, 1);
  const Tensor places = mixer->held(x).places.select(1, -1);  // [H, T] at the last token
  EXPECT_TRUE(places.select(1, 29).eq(1).all().item<bool>()) << places;
  EXPECT_EQ(places.eq(1).sum().item<int64_t>(), 4 * 2);
}

// A learned score that reads one channel keeps the tokens at which this channel is large.
TEST(SparseCache, KeepsWhatALearnedScoreLikes) {
  const at::NoGradGuard no_grad;
  const auto mixer = make(R"({"window": 4, "cache": 2, "chunk": 4, "source": "x", "score": "learned"})");
  auto parameters = mixer->named_parameters();
  parameters["score_weight"].zero_();
  parameters["score_weight"].select(1, 7).fill_(1);
  Tensor x = some(1, 80);
  x.select(2, 7).fill_(0);
  x[0][13][7] = 3;
  x[0][50][7] = 2;
  const Tensor places = mixer->held(x).places.select(1, -1);  // [H, T] at the last token
  for (const int64_t kept : {13, 50}) EXPECT_TRUE(places.select(1, kept).eq(1).all().item<bool>()) << kept;
  EXPECT_EQ(places.eq(1).sum().item<int64_t>(), 4 * 2);
  // Without a cache the score's parameters exist and have no effect, so that what was learned is kept under another
  // memory.
  const auto without = make(R"({"window": 4, "source": "x", "score": "learned"})");
  EXPECT_TRUE(without->named_parameters().contains("score_weight"));
  EXPECT_TRUE(without->memories().empty());
}

// If there are more equally salient pairs than entries, the fading share holds recent ones and the lasting share the
// oldest.
TEST(SparseCache, KeepsOldAndYoungInTwoShares) {
  const at::NoGradGuard no_grad;
  Tensor x = some(1, 300);
  x.select(2, 7).fill_(0);
  const auto kept = [&](double fading) {
    const auto mixer = make(concat(R"({"window": 4, "cache": [4, 0, 0, 0], "chunk": 4, "distance": 50, "source": "x",)",
                                   R"("score": "learned", "fading": )", fading, "}"));
    auto parameters = mixer->named_parameters();
    parameters["score_weight"].zero_();
    parameters["score_weight"].select(1, 7).fill_(1);
    const Tensor places = mixer->held(x).places.select(1, -1)[0];
    std::vector<int64_t> found;
    for (int64_t s = 0; s < places.size(0); ++s) {
      if (places[s].item<int64_t>() == 1) found.push_back(s);
    }
    return found;
  };
  using Kept = std::vector<int64_t>;
  for (const int64_t salient : {10, 20, 30, 40, 260, 265, 270, 275}) x[0][salient][7] = 3;
  EXPECT_EQ(kept(0), (Kept{10, 20, 30, 40}));
  EXPECT_EQ(kept(0.5), (Kept{10, 20, 260, 265}));
  EXPECT_EQ(kept(1), (Kept{260, 265, 270, 275}));
  // A learned score is a log: this much makes up for an age of so many times 50 tokens, when the last pair is judged.
  const double made_up = std::log((280.0 - 30) / 50);
  x[0][30][7] = 3 + made_up + 1e-3;
  EXPECT_EQ(kept(1), (Kept{30, 260, 265, 270}));
  x[0][30][7] = 3 + made_up - 1e-3;
  EXPECT_EQ(kept(1), (Kept{260, 265, 270, 275}));
}

// Lasting and fading pairs are chosen by two maps, which here read two channels.
TEST(SparseCache, EachShareHasAScoreOfItsOwn) {
  const at::NoGradGuard no_grad;
  const auto mixer = make(R"({"window": 4, "cache": [4, 0, 0, 0], "chunk": 4, "distance": 50, "source": "x",
                              "score": "learned", "fading": 0.5})");
  const Tensor weight = mixer->named_parameters()["score_weight"].zero_().unflatten(0, {4, 2});
  weight.select(1, 0).select(1, 7).fill_(1);
  weight.select(1, 1).select(1, 8).fill_(1);
  Tensor x = some(1, 300);
  x.narrow(2, 7, 2).fill_(0);
  for (const int64_t lasting : {10, 20, 30, 270}) x[0][lasting][7] = 3;
  for (const int64_t fading : {40, 50, 220, 230}) x[0][fading][8] = 3;
  const Tensor places = mixer->held(x).places.select(1, -1)[0];
  for (const int64_t kept : {10, 20, 220, 230}) EXPECT_EQ(places[kept].item<int64_t>(), 1) << kept;
  EXPECT_EQ(places.eq(1).sum().item<int64_t>(), 4);
}

// With a span, a single high token is not kept, a run of high tokens is. The text's first token is scored alone.
TEST(SparseCache, WhatLastsIsChosenWithItsNeighbours) {
  const at::NoGradGuard no_grad;
  Tensor x = some(1, 300);
  x.select(2, 7).fill_(0);
  x[0][0][7] = 4;
  x[0][40][7] = 5;
  for (int64_t token = 100; token < 105; ++token) x[0][token][7] = 3;
  const auto kept = [&](int64_t span, double fading) {
    const auto mixer =
        make(concat(R"({"window": 4, "cache": [4, 0, 0, 0], "chunk": 4, "distance": 5000, "source": "x",)",
                    R"("score": "learned", "fading": )", fading, R"(, "span": )", span, "}"));
    mixer->named_parameters()["score_weight"].zero_().select(1, 7).fill_(1);
    const Tensor places = mixer->held(x).places.select(1, -1)[0].eq(1).nonzero().flatten();
    return std::vector<int64_t>(places.const_data_ptr<int64_t>(), places.const_data_ptr<int64_t>() + places.numel());
  };
  using Kept = std::vector<int64_t>;
  EXPECT_EQ(kept(0, 0), (Kept{0, 40, 100, 101}));
  EXPECT_EQ(kept(2, 0), (Kept{0, 101, 102, 103}));
  EXPECT_EQ(kept(2, 1), (Kept{0, 40, 100, 101}));  // fading pairs are chosen by their own scores
}

TEST(SparseCache, SaysWhatDoesNotFit) {
  const auto error = [](const char* settings, bool causal = true) {
    return testing::error_of([&] { make(settings, causal); });
  };
  for (const char* wrong : {R"({"cache": -1})", R"({"cache": "all"})", R"({"cache": 2.5})"}) {
    EXPECT_EQ(error(wrong).find("[test] key \"cache\": expected an integer"), 0) << error(wrong);
  }
  EXPECT_EQ(error(R"({"cache": [1, 2.5, 3, 4]})"),
            "[test] key \"cache\": expected integers from 0 to 16777216, got 2.5");
  EXPECT_EQ(error(R"({"cache": [1, 2]})"), "[test] key \"cache\" has 2 entries for 4 key heads");
  EXPECT_EQ(error(R"({"cache": 4, "window": null})"),
            "[test] \"cache\" needs a window, which pairs leave, and latents");
  EXPECT_EQ(error(R"({"cache": 4, "latents": 0})"), "[test] \"cache\" needs a window, which pairs leave, and latents");
  EXPECT_EQ(error(R"({"cache": 4})", false), "[test] \"cache\" needs a causal mixer");
  EXPECT_EQ(error(R"({"score": "learned", "latents": 0})"),
            "[test] \"score\" is of a cache, which needs a window and latents");
  EXPECT_EQ(error(R"({"fading": 0.5})"),
            R"([test] "chunk", "distance", "fading" and "span" are of a cache: give "cache", too)");
  EXPECT_EQ(error(R"({"cache": 4, "span": 2})"), R"([test] "span" is of learned scores: "score" is "surprise")");
  EXPECT_EQ(error(R"({"cache": 4, "window": 5, "score": "learned", "span": 5})"),
            "[test] \"span\" 5 reaches beyond the window, 5");
}

}  // namespace
}  // namespace cortado::macchiato_cache_test
