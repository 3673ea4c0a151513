// Invariants of every mechanism's state: a sequence cut anywhere gives what the whole gives.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/testing/conformance.h"
#include "cortado/testing/parts.h"

namespace cortado {
namespace {

using testing::copy_weights;
using testing::expect_gradients_close;
using testing::expect_same_with_gradients;
using testing::gradients;
using testing::kWidth;
using testing::weights_like;

class States : public testing::Conformance {};

// 2. One token at a time gives what one call gives; any cut point; gradients flow through the state.
TEST_P(States, StepsEqualTheWhole) {
  auto mixer = make();
  at::NoGradGuard no_grad;
  for (const int64_t rows : {1, 2}) {
    const Tensor x = at::randn({rows, 45, kWidth}, at::kDouble), whole = mixer->forward(x, {}, nullptr);
    SequenceState state = fresh(*mixer, rows, x);
    std::vector<Tensor> steps;
    for (int64_t t = 0; t < x.size(1); ++t) steps.push_back(mixer->forward(x.narrow(1, t, 1), {}, &state));
    EXPECT_CLOSE(at::cat(steps, 1), whole, 1e-9) << rows << " rows";
  }
}

TEST_P(States, AnyCutEqualsTheWhole) {
  auto mixer = make();
  const Tensor x = inputs(2, 90), whole = mixer->forward(x, {}, nullptr);
  for (const int64_t cut : {1, 2, 31, 64, 65, 89}) {
    SCOPED_TRACE(concat("cut at ", cut));
    SequenceState state = fresh(*mixer, 2, x);
    const Tensor first = mixer->forward(x.narrow(1, 0, cut), {}, &state);
    const Tensor second = mixer->forward(x.narrow(1, cut, 90 - cut), {}, &state);
    expect_same_with_gradients(*mixer, x, at::cat({first, second}, 1), whole, 1e-9);
    // A loss on the second part alone reaches the first part only through the state.
    const auto weights = weights_like({second});
    expect_gradients_close(gradients({second}, weights, {x}), gradients({whole.narrow(1, cut, 90 - cut)}, weights, {x}),
                           1e-9);
  }
}

// Reads packed sequences, then a dense batch.
void expect_packed_then_dense(Mixer& mixer, const Tensor& x, const std::vector<int64_t>& lengths) {
  std::vector<Tensor> rows, first, next, expected;
  for (int64_t n = 0; n < 4; ++n) rows.push_back(x.narrow(0, n, 1));
  for (int64_t n = 0; n < 4; ++n) first.push_back(rows[n].narrow(1, 0, lengths[n]));
  Batch packed;
  packed.cu_seqlens = at::cat({at::zeros({1}, at::kLong), at::tensor(lengths, at::kLong).cumsum(0)});
  SequenceState state = mixer.zero_state(4, x.options().requires_grad(false));
  mixer.forward(at::cat(first, 1), packed, &state);
  for (int64_t n = 0; n < 4; ++n) next.push_back(rows[n].narrow(1, lengths[n], 12));
  const Tensor dense = at::cat(next, 0);
  Tensor got =
      at::cat({mixer.forward(dense.narrow(1, 0, 1), {}, &state), mixer.forward(dense.narrow(1, 1, 8), {}, &state)}, 1);
  // Packed again, continuing from the states, three tokens per sequence.
  packed.cu_seqlens = at::tensor({0, 3, 6, 9, 12}, at::kLong);
  const Tensor more = mixer.forward(dense.narrow(1, 9, 3).reshape({1, 12, kWidth}), packed, &state);
  got = at::cat({got, more.reshape({4, 3, kWidth})}, 1);
  for (int64_t n = 0; n < 4; ++n) {
    const Tensor whole = mixer.forward(rows[n].narrow(1, 0, lengths[n] + 12), {}, nullptr);
    expected.push_back(whole.narrow(1, lengths[n], 12));
  }
  expect_same_with_gradients(mixer, x, got, at::cat(expected, 0), 1e-9);
}

TEST_P(States, PackedPrefillThenDenseDecoding) {
  auto mixer = make();
  for (const std::vector<int64_t>& lengths : {{7, 0, 40, 1}, {0, 1, 0, 0}, std::vector<int64_t>{0, 0, 0, 0}}) {
    SCOPED_TRACE(at::tensor(lengths, at::kLong));
    expect_packed_then_dense(*mixer, inputs(4, 60), lengths);
  }
}

// 5. A state continues identically after save and load, clone, row selection or move. A fork leaves its origin
// unchanged.
TEST_P(States, StatesSurviveEverything) {
  auto mixer = make();
  at::NoGradGuard no_grad;
  const Tensor x = at::randn({3, 60, kWidth}, at::kDouble), rest = x.narrow(1, 40, 20);
  SequenceState state = fresh(*mixer, 3, x);
  mixer->forward(x.narrow(1, 0, 40), {}, &state);
  const SequenceState kept = state.clone();
  SequenceState fork = kept.clone();
  const Tensor expected = mixer->forward(rest, {}, &fork);
  EXPECT_CLOSE(expected, mixer->forward(x, {}, nullptr).narrow(1, 40, 20), 1e-9);

  const auto path = std::filesystem::temp_directory_path() / concat("cortado-state-", ::getpid(), ".safetensors");
  write_safetensors(path.string(), file_of_states({kept}, "this model"));
  const TensorFile file = read_safetensors(path.string());
  SequenceState loaded = states_of_file(file, "this model")[0];
  EXPECT_EQ(loaded.mechanism(), GetParam().mechanism->name);
  EXPECT_TRUE(at::equal(mixer->forward(rest, {}, &loaded), expected));
  EXPECT_THROW(states_of_file(file, "another model"), InputError);
  std::filesystem::remove(path);

  SequenceState moved = kept.to(x.options());
  EXPECT_TRUE(at::equal(mixer->forward(rest, {}, &moved), expected));
  SequenceState picked = kept.index(at::tensor({2, 0, 2}, at::kLong));
  const Tensor order = at::tensor({2, 0, 2}, at::kLong);
  EXPECT_CLOSE(mixer->forward(rest.index_select(0, order), {}, &picked), expected.index_select(0, order), 1e-12);
  SequenceState again = kept.clone();  // nothing above changed it
  EXPECT_TRUE(at::equal(mixer->forward(rest, {}, &again), expected));
}

// Rows of different lengths are joined into one batch; some leave, others join; each continues as it would alone.
TEST_P(States, RowsJoinAndLeave) {
  auto mixer = make();
  const std::vector<int64_t> lengths = {9, 40, 40, 1, 0};
  const Tensor x = inputs(5, 70);
  const StateLayout layout = mixer->state_layout();
  const auto read = [&](int64_t row, int64_t count) {
    const Tensor part = x.narrow(0, row, count);
    SequenceState state = fresh(*mixer, count, x);
    if (lengths[row]) mixer->forward(part.narrow(1, 0, lengths[row]), {}, &state);
    return state;
  };
  std::vector<int64_t> rows = {3, 0, 1, 2}, places = {1, 9, 40, 40};
  std::vector<Tensor> got(5), expected(5);
  SequenceState state = layout.join({read(3, 1), read(0, 1), read(1, 2)});
  const auto go_on = [&](int64_t tokens) {
    std::vector<Tensor> parts;
    for (size_t i = 0; i < rows.size(); ++i) parts.push_back(x.narrow(0, rows[i], 1).narrow(1, places[i], tokens));
    const Tensor y = mixer->forward(at::cat(parts), {}, &state);
    for (size_t i = 0; i < rows.size(); ++i) {
      Tensor& all = got[rows[i]];
      all = all.defined() ? at::cat({all, y.narrow(0, i, 1)}, 1) : y.narrow(0, i, 1);
      places[i] += tokens;
    }
  };
  go_on(1);
  go_on(6);
  state = layout.join({state.index(at::tensor({1, 0}, at::kLong)), read(4, 1)});
  rows = {0, 3, 4};
  places = {16, 8, 0};
  go_on(1);
  go_on(1);
  go_on(12);
  for (int64_t n = 0; n < 5; ++n) {
    const Tensor whole = mixer->forward(x.narrow(0, n, 1).narrow(1, 0, lengths[n] + got[n].size(1)), {}, nullptr);
    expected[n] = whole.narrow(1, lengths[n], got[n].size(1));
  }
  expect_same_with_gradients(*mixer, x, at::cat(got, 1), at::cat(expected, 1), 1e-9);
}

// A fork shares the memory of growing caches with its origin; both continue independently.
TEST_P(States, AForkAndItsOriginGoOnApart) {
  auto mixer = make(at::kFloat);
  const at::NoGradGuard no_grad;
  const Tensor x = at::randn({3, 30, kWidth});
  const StateLayout layout = mixer->state_layout();
  const auto read = [&](int64_t row, int64_t from, int64_t tokens, SequenceState& state) {
    return mixer->forward(x.narrow(0, row, 1).narrow(1, from, tokens), {}, &state);
  };
  SequenceState begun = mixer->zero_state(1, x.options());
  read(0, 0, 9, begun);
  std::vector<SequenceState> clones = {begun.clone(), begun.clone(), begun.clone()};
  std::vector<SequenceState> forks = {layout.join({begun}, 300)};
  for (const size_t origin : {0, 1}) forks.push_back(layout.fork(forks[origin]));
  for (int64_t t = 9; t < 29; ++t) {
    for (const size_t i : {0, 1, 2}) {
      const auto row = static_cast<int64_t>(i);
      EXPECT_CLOSE(read(row, t, 1, forks[i]), read(row, t, 1, clones[i]), 1e-4) << i << ", token " << t;
    }
  }
}

// When rows leave, the batch drops what no remaining row needs: it keeps no trace of the size of former rows.
TEST_P(States, JoiningForgetsWhatNoRowNeeds) {
  auto mixer = make(at::kFloat);
  const at::NoGradGuard no_grad;
  const Tensor x = at::randn({2, 300, kWidth});
  const StateLayout layout = mixer->state_layout();
  SequenceState longer = mixer->zero_state(1, x.options()), shorter = longer.clone();
  mixer->forward(x.narrow(0, 0, 1), {}, &longer);
  mixer->forward(x.narrow(0, 1, 1).narrow(1, 0, 3), {}, &shorter);
  SequenceState both = layout.join({longer, shorter});
  const SequenceState left = layout.join({both.index(at::tensor({1}, at::kLong))});
  EXPECT_LE(left.bytes(), mixer->state_bytes(3));
}

// Decoding in float32 and in inference mode: the mixers' shorter code paths agree with float64, and a longer call
// continues from the state that such a path leaves.
TEST_P(States, SingleTokensInFloat32StayNear) {
  auto exact = make();
  auto mixer = make(at::kFloat);
  copy_weights(*mixer, *exact);
  const c10::InferenceMode mode;
  const Tensor x = inputs(2, 90).detach(), x32 = x.to(at::kFloat);
  SequenceState state = fresh(*exact, 2, x), state32 = fresh(*mixer, 2, x32);
  for (int64_t t = 0; t < 90;) {
    const int64_t tokens = t == 50 ? 20 : 1;
    EXPECT_CLOSE(mixer->forward(x32.narrow(1, t, tokens), {}, &state32),
                 exact->forward(x.narrow(1, t, tokens), {}, &state), 1e-4)
        << "token " << t;
    t += tokens;
  }
}

// In bfloat16 the output has the input's type and is as close as its eight bits allow.
TEST_P(States, Bfloat16StaysBfloat16) {
  auto exact = make(), mixer = make(at::kBFloat16);
  copy_weights(*exact, *mixer);
  const at::NoGradGuard no_grad;
  const Tensor x16 = inputs(2, 41, at::kBFloat16).detach(), x = x16.to(at::kDouble);
  SequenceState state = fresh(*exact, 2, x), state16 = fresh(*mixer, 2, x16);
  for (const auto& [from, tokens] : {std::pair<int64_t, int64_t>{0, 40}, {40, 1}}) {
    const Tensor y16 = mixer->forward(x16.narrow(1, from, tokens), {}, &state16);
    EXPECT_EQ(y16.scalar_type(), at::kBFloat16) << tokens << " tokens";
    EXPECT_CLOSE(y16, exact->forward(x.narrow(1, from, tokens), {}, &state), 0.05) << tokens << " tokens";
  }
}

// A sequence in several processes, for mechanisms whose states compose: outputs and the last part's state equal those
// of one process. The previous contents of the other processes' states do not matter.
TEST_P(States, PartsJoinToTheWhole) {
  auto mixer = make();
  const int64_t least = mixer->joining().least, begun = 11;
  if (least == 0) GTEST_SKIP() << "its parts wait for each other";
  const std::vector<int64_t> lengths = {least + 20, least, 70};
  for (const bool differentiated : {true, false}) {
    const at::AutoGradMode mode(differentiated);
    const Tensor x = inputs(2, begun + 2 * least + 90);
    SequenceState expected = fresh(*mixer, 2, x), state = fresh(*mixer, 2, x), other = fresh(*mixer, 2, x);
    const Tensor whole = mixer->forward(x, {}, &expected);
    mixer->forward(at::randn_like(x), {}, &other);
    std::vector<Tensor> y = {mixer->forward(x.narrow(1, 0, begun), {}, &state)};
    testing::PlayedParts parts;
    Batch batch;
    batch.parts = &parts;
    batch.before = begun;
    for (size_t part = 0; part < lengths.size(); ++part) {
      if (part > 0) state = other.clone();
      if (Tensor* position = state.find(StateLayout::kPosition)) position->fill_(batch.before);
      y.push_back(mixer->forward(x.narrow(1, batch.before, lengths[part]), batch, &state));
      batch.before += lengths[part];
      parts.next();
    }
    if (differentiated) expect_same_with_gradients(*mixer, x, at::cat(y, 1), whole, 1e-9);
    EXPECT_CLOSE(at::cat(y, 1), whole, 1e-9);
    for (size_t i = 0; i < expected.tensors().size(); ++i) {
      EXPECT_CLOSE(state.tensors()[i].second, expected.tensors()[i].second, 1e-9) << expected.tensors()[i].first;
    }
  }
}

// For a mixer that says where each past token is stored: a token is in one of its memories when it is read, and in none
// before.
TEST_P(States, EveryTokenReadIsHeldSomewhere) {
  auto mixer = make();
  const auto memories = static_cast<int64_t>(mixer->memories().size());
  if (memories == 0) GTEST_SKIP() << "it has no such memories";
  const at::NoGradGuard no_grad;
  constexpr int64_t kTokens = 37;
  const Tensor places = mixer->held(at::randn({1, kTokens, kWidth}, at::kDouble)).places;
  ASSERT_EQ(places.sizes(), (at::IntArrayRef{places.size(0), kTokens, kTokens}));
  EXPECT_TRUE(places.triu(1).eq(-at::ones_like(places).triu(1)).all().item<bool>());  // not yet read
  EXPECT_TRUE(places.diagonal(0, 1, 2).ge(0).all().item<bool>());
  EXPECT_LT(places.max().item<int64_t>(), memories);
}

// The state has the number of bytes that its formula says (float32 inputs).
TEST_P(States, StateHasTheSizeOfItsFormula) {
  auto mixer = make(at::kFloat);
  at::NoGradGuard no_grad;
  const Tensor x = at::randn({2, 300, kWidth});
  for (const int64_t tokens : {1, 5, 64, 299, 300}) {
    SequenceState state = mixer->zero_state(2, x.options());
    mixer->forward(x.narrow(1, 0, tokens), {}, &state);
    EXPECT_EQ(state.bytes(), 2 * mixer->state_bytes(tokens)) << tokens << " tokens";
  }
}

INSTANTIATE_TEST_SUITE_P(Every, States, ::testing::ValuesIn(testing::subjects(true)), testing::subject_name);

}  // namespace
}  // namespace cortado
