// Compares our states with the state sizes of Blurry Window Attention's Table 1 (elements per layer of width D with H
// heads of d = D/H channels). The table's parameters are kernel size, window, head dimension, slots and modes. Its
// states: S [d_k, d_v] per head for GLA and GDN (§2); keys and values [slots, D] each for GSA (eq. 3); C_m, m = 0..M,
// and Z_m, m = 1..M, for BLA (eq. 5: 2M + 1 rows, since Z_0 is zero); the window's keys and values for SWA.
#include <gtest/gtest.h>

#include "cortado/mechanisms/registry.h"

namespace cortado {
namespace {

constexpr int64_t kD = 24, kH = 4, kTokens = 50;

struct TableRow {
  const char* name;
  const char* settings;
  int64_t table;     // elements by the table's formula
  int64_t ours;      // difference of our state from the table ...
  const char* why;   // ... and the reason
  int64_t counters;  // int64 positions, which the table does not count
};

// w = 9 keys, W = 4 taps, M = 3 modes besides the constant one, 5 slots, d_k = 3 or 6, d_v = 6 or 12.
const TableRow kTable[] = {
    {"swa", R"({"mixer": "sliding_window", "window": 9})", 2 * 9 * kD, -2 * kD,
     "between two tokens w - 1 of the w are kept: the last is the token itself", 1},
    {"gla", R"({"mixer": "gla", "key_dim": 12, "value_dim": 24})", kH * 3 * 6, 0, "", 0},
    {"gdn", R"({"mixer": "gated_delta_net", "head_dim": 6, "value_head_dim": 12, "taps": 0})", kH * 6 * 12, 0, "", 0},
    {"gsa", R"({"mixer": "gated_slot", "slots": 5})", 2 * 5 * kD, 0, "", 0},
    {"bla", R"({"mixer": "blurry_window", "slots": 7, "period": 21})", 2 * (2 * 3 + 1) * kD, 0, "", 1},
    {"short_conv", R"({"mixer": "gated_slot", "slots": 5, "taps": 4})", 2 * 5 * kD + 3 * 4 * kD, -3 * kD,
     "W - 1 of a convolution's W inputs are kept: the last is the token itself; q, k and v have one each", 0},
    {"abc", R"({"mixer": "abc", "slots": 5})", 2 * 5 * kD, 2 * 5 * kH, "a slot's normaliser and running maximum", 0},
    {"linear", R"({"mixer": "linear"})", kH * 6 * 6, kH * 6, "the normaliser", 0},
};

void PrintTo(const TableRow& row, std::ostream* out) { *out << row.name; }

class StateSize : public ::testing::TestWithParam<TableRow> {};

TEST_P(StateSize, IsThatOfThePapersTable) {
  const TableRow& row = GetParam();
  MixerContext context;
  context.dim = kD;
  context.heads = kH;
  const auto mixer = make_mixer(parse_json(row.settings, "row"), context, "row");
  const at::NoGradGuard no_grad;
  const Tensor x = at::randn({1, kTokens, kD});
  SequenceState state = mixer->zero_state(1, x.options());
  mixer->forward(x, {}, &state);
  int64_t elements = 0, counters = 0;
  for (const auto& [name, tensor] : state.tensors()) {
    (tensor.is_floating_point() ? elements : counters) += tensor.numel();
  }
  EXPECT_EQ(elements, row.table + row.ours) << row.why;
  EXPECT_EQ(counters, row.counters);
  EXPECT_EQ(mixer->state_bytes(kTokens), 4 * elements + 8 * counters);
}

INSTANTIATE_TEST_SUITE_P(Table1, StateSize, ::testing::ValuesIn(kTable),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace cortado
