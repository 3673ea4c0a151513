// The fused functions give the same bits on any number of threads. Without torch; also run by `make tsan`.
#include "cortado/testing/threads.h"

#include "cortado/nn/fused/kernel.h"

namespace cortado::fused_threads_test {
namespace {

using kernels::Parallel;
using testing::expect_same_on_any_number_of_threads;
using testing::Floats;
using testing::random_floats;

constexpr int64_t kRows = 1000, kWidth = 70;

fused::Rows rows(Floats& x) { return {.data = x.data(), .stride = kWidth}; }
Floats numbers() { return random_floats(kRows * kWidth); }
Floats room() { return Floats(kRows * kWidth); }

TEST(FusedThreads, RmsNorm) {
  Floats x = numbers(), dy = numbers(), weight = random_floats(kWidth), y = room(), dx = room(), scale(kRows);
  Floats dweight(kWidth), parts(static_cast<size_t>(fused::parts_size(kRows, kWidth)));
  fused::RmsNorm call{.rows = kRows,
                      .width = kWidth,
                      .groups = 1,
                      .eps = 1e-5f,
                      .x = rows(x),
                      .y = rows(y),
                      .weight = weight.data(),
                      .scale = scale.data(),
                      .dy = rows(dy),
                      .dx = rows(dx),
                      .dweight = dweight.data(),
                      .parts = parts.data()};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { fused::rms_norm(call, p); }, {&y, &scale});
  expect_same_on_any_number_of_threads([&](const Parallel& p) { fused::rms_norm_backward(call, p); }, {&dx, &dweight});
}

TEST(FusedThreads, GatedSilu) {
  Floats gate = numbers(), up = numbers(), dy = numbers(), y = room(), dgate = room(), dup = room();
  fused::GatedSilu call{.rows = kRows,
                        .width = kWidth,
                        .gate = rows(gate),
                        .up = rows(up),
                        .y = rows(y),
                        .dy = rows(dy),
                        .dgate = rows(dgate),
                        .dup = rows(dup)};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { fused::gated_silu(call, p); }, {&y});
  expect_same_on_any_number_of_threads([&](const Parallel& p) { fused::gated_silu_backward(call, p); }, {&dgate, &dup});
}

TEST(FusedThreads, RgLruGates) {
  Floats r = numbers(), i = numbers(), x = numbers(), slope = random_floats(kWidth, -2, 0), log_a = room(), b = room();
  Floats dlog_a = numbers(), db = numbers(), dr = room(), di = room(), dx = room(), dslope(kWidth);
  Floats parts(static_cast<size_t>(fused::parts_size(kRows, kWidth)));
  fused::RgLruGates call{.rows = kRows,
                         .width = kWidth,
                         .r = rows(r),
                         .i = rows(i),
                         .x = rows(x),
                         .slope = slope.data(),
                         .first = nullptr,
                         .largest_slope = 1000,
                         .log_a = rows(log_a),
                         .b = rows(b),
                         .dlog_a = rows(dlog_a),
                         .db = rows(db),
                         .dr = rows(dr),
                         .di = rows(di),
                         .dx = rows(dx),
                         .dslope = dslope.data(),
                         .parts = parts.data()};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { fused::rg_lru_gates(call, p); }, {&log_a, &b});
  expect_same_on_any_number_of_threads([&](const Parallel& p) { fused::rg_lru_gates_backward(call, p); },
                                       {&dr, &di, &dx, &dslope});
}

TEST(FusedThreads, Rotary) {
  constexpr int64_t kHeads = 2, kSize = 35, kHalf = 16;
  Floats x = numbers(), y = room(), cos = random_floats(kRows * kHalf), sin = random_floats(kRows * kHalf);
  fused::Rotary call{.batch = 1,
                     .tokens = kRows,
                     .heads = kHeads,
                     .width = kSize,
                     .half = kHalf,
                     .x = testing::timed(x, kRows, kHeads, kSize),
                     .y = {.data = y.data(), .stride = kSize},
                     .cos = cos.data(),
                     .sin = sin.data(),
                     .same_rows = true,
                     .direction = 1};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { fused::rotary(call, p); }, {&y});
}

TEST(FusedThreads, RgLruStep) {
  constexpr int64_t kBlocks = 7, kSize = kWidth / kBlocks;
  Floats x = numbers(), start = numbers(), h = room(), r = random_floats(kBlocks * kSize * kSize), i = r;
  Floats r_bias = random_floats(kWidth), i_bias = random_floats(kWidth), lambda = random_floats(kWidth, -3, 3);
  std::vector<int64_t> position(kRows);
  for (int64_t row = 0; row < kRows; ++row) position[row] = row % 3;
  const fused::RgLruStep call{.rows = kRows,
                              .width = kWidth,
                              .blocks = kBlocks,
                              .sharpness = 8,
                              .x = rows(x),
                              .r_weight = r.data(),
                              .r_bias = r_bias.data(),
                              .i_weight = i.data(),
                              .i_bias = i_bias.data(),
                              .lambda = lambda.data(),
                              .position = position.data(),
                              .start = start.data(),
                              .h = h.data()};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { fused::rg_lru_step(call, p); }, {&h});
}

}  // namespace
}  // namespace cortado::fused_threads_test
