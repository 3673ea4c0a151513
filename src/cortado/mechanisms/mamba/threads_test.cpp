// The selective scan gives the same bits on any number of threads. Built without torch; `make tsan` runs it too.
#include "cortado/testing/threads.h"

#include "cortado/mechanisms/mamba/kernel.h"

namespace cortado::mamba_threads_test {
namespace {

using kernels::Parallel;
using testing::expect_same_on_any_number_of_threads;
using testing::Floats;
using testing::random_floats;

constexpr int64_t kBatch = 2, kTokens = 70, kWidth = 200, kStates = 5;

kernels::Channels channels(Floats& x, int64_t width) { return {x.data(), kTokens * width, width}; }

TEST(SelectiveScanThreads, ForwardAndBackward) {
  const int64_t rows = kBatch * kTokens, states = kBatch * kWidth * kStates;
  Floats x = random_floats(rows * kWidth), step = random_floats(rows * kWidth, 0.01f, 1),
         dy = random_floats(rows * kWidth);
  Floats a = random_floats(kWidth * kStates, -2, -0.1f), start = random_floats(states), dlast = random_floats(states);
  Floats b = random_floats(rows * kStates), c = random_floats(rows * kStates);
  Floats y(rows * kWidth), dx(rows * kWidth), dstep(rows * kWidth), last(states), da(states), dstart(states);
  Floats db(rows * kStates * mamba_kernel::parts(kWidth)), dc(db.size());
  const mamba_kernel::SelectiveScan call{.batch = kBatch,
                                         .tokens = kTokens,
                                         .channels = kWidth,
                                         .states = kStates,
                                         .x = channels(x, kWidth),
                                         .step = channels(step, kWidth),
                                         .a = a.data(),
                                         .b = channels(b, kStates),
                                         .c = channels(c, kStates),
                                         .start = start.data(),
                                         .y = channels(y, kWidth),
                                         .last = last.data(),
                                         .dy = channels(dy, kWidth),
                                         .dlast = dlast.data(),
                                         .dx = channels(dx, kWidth),
                                         .dstep = channels(dstep, kWidth),
                                         .da = da.data(),
                                         .dstart = dstart.data(),
                                         .db_parts = db.data(),
                                         .dc_parts = dc.data()};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { mamba_kernel::selective_scan(call, p); }, {&y, &last});
  expect_same_on_any_number_of_threads([&](const Parallel& p) { mamba_kernel::selective_scan_backward(call, p); },
                                       {&dx, &dstep, &da, &dstart, &db, &dc});
}

}  // namespace
}  // namespace cortado::mamba_threads_test
