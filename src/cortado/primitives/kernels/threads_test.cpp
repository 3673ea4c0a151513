// The primitives' kernels give the same bits on any number of threads. Without torch; also run by `make tsan`.
#include "cortado/testing/threads.h"

#include "cortado/primitives/delta_scan/kernel.h"
#include "cortado/primitives/dplr_scan/kernel.h"
#include "cortado/primitives/elementwise_scan/kernel.h"
#include "cortado/primitives/gated_scan/kernel.h"
#include "cortado/primitives/latte_scan/kernel.h"
#include "cortado/primitives/short_conv/kernel.h"
#include "cortado/primitives/time_softmax/kernel.h"
#include "cortado/primitives/window_attention/kernel.h"

namespace cortado::kernels_threads_test {
namespace {

using kernels::Parallel;
using testing::expect_same_on_any_number_of_threads;
using testing::Floats;
using testing::random_floats;
using testing::timed;

// Three segments of time, the last of one tile and a bit.
constexpr int64_t kBatch = 2, kTime = 275, kHeads = 3, kKeys = 33, kValues = 40;

struct Inputs {
  Floats k = random_floats(kBatch * kTime * kHeads * kKeys), q = random_floats(kBatch * kTime * kHeads * kKeys);
  Floats v = random_floats(kBatch * kTime * kHeads * kValues), w = random_floats(kBatch * kTime * kHeads * kValues);
  Floats g = random_floats(kBatch * kTime * kHeads * kKeys, -0.5f, 0),
         state = random_floats(kBatch * kHeads * kKeys * kValues);

  kernels::Timed key(Floats& x) const { return timed(x, kTime, kHeads, kKeys); }
  kernels::Timed value(Floats& x) const { return timed(x, kTime, kHeads, kValues); }
};

// Enough streams for all threads, fewer than threads, and one, whose state is cut into several blocks.
struct Streams {
  int64_t batch, heads;

  Floats of(int64_t width) const { return Floats(static_cast<size_t>(batch * kTime * heads * width)); }
  Floats states() const { return Floats(static_cast<size_t>(batch * heads * kKeys * kValues)); }
  kernels::Timed key(Floats& x) const { return timed(x, kTime, heads, kKeys); }
  kernels::Timed value(Floats& x) const { return timed(x, kTime, heads, kValues); }
};
constexpr Streams kStreams[] = {{kBatch, kHeads}, {1, kHeads}, {1, 1}};

gated::ScanKernel gated_call(Inputs& in, const Streams& streams) {
  gated::ScanKernel call{
      .rows = streams.batch, .tokens = kTime, .heads = streams.heads, .keys = kKeys, .values = kValues};
  call.y = in.key(in.q);
  call.x = in.key(in.k);
  call.v = in.value(in.v);
  call.g = in.key(in.g);
  call.gate_per_channel = true;
  call.initial = {in.state.data(), kHeads, 1};
  return call;
}

// Read along the keys, and along the values.
TEST(KernelThreads, GatedScanForward) {
  for (const Streams& streams : kStreams) {
    Inputs in;
    Floats o = streams.of(kValues), dy = streams.of(kKeys), last = streams.states();
    auto call = gated_call(in, streams);
    call.dw = streams.value(o);
    call.final_state = {last.data(), streams.heads, 1};
    expect_same_on_any_number_of_threads([&](const Parallel& p) { gated::run_scan(call, p); }, {&o, &last});
    call.dw = {};
    call.w = in.value(in.w);
    call.dy = streams.key(dy);
    expect_same_on_any_number_of_threads([&](const Parallel& p) { gated::run_scan(call, p); }, {&dy, &last});
  }
}

TEST(KernelThreads, GatedScanBackward) {
  for (const Streams& streams : kStreams) {
    Inputs in;
    Floats dy = streams.of(kKeys), dx = dy, dv = streams.of(kValues), dg = dy, dstate = streams.states();
    auto call = gated_call(in, streams);
    call.w = in.value(in.w);
    call.dy = streams.key(dy);
    call.dx = streams.key(dx);
    call.dv = streams.value(dv);
    call.dg = streams.key(dg);
    call.final_grad = {in.state.data(), kHeads, 1};
    call.initial_grad = {dstate.data(), streams.heads, 1};
    expect_same_on_any_number_of_threads([&](const Parallel& p) { gated::run_scan(call, p); },
                                         {&dy, &dx, &dv, &dg, &dstate});
  }
}

TEST(KernelThreads, DeltaScan) {
  for (const Streams& streams : kStreams) {
    Inputs in;
    for (float& k : in.k) k *= 0.2f;  // of length about 1
    Floats beta = random_floats(kBatch * kTime * kHeads, 0, 1), o = streams.of(kValues), last = streams.states();
    delta::ScanKernel call;
    static_cast<gated::ScanKernel&>(call) = gated_call(in, streams);
    call.beta = timed(beta, kTime, kHeads, 1);
    call.dw = streams.value(o);
    call.final_state = {last.data(), streams.heads, 1};
    expect_same_on_any_number_of_threads([&](const Parallel& p) { delta::run_scan(call, p); }, {&o, &last});

    Floats dy = streams.of(kKeys), dx = dy, dv = streams.of(kValues), dg = dy, dbeta = streams.of(1);
    Floats dstate = streams.states();
    call.dw = {};
    call.final_state = {};
    call.w = in.value(in.w);
    call.dy = streams.key(dy);
    call.dx = streams.key(dx);
    call.dv = streams.value(dv);
    call.dg = streams.key(dg);
    call.dbeta = timed(dbeta, kTime, streams.heads, 1);
    call.final_grad = {in.state.data(), kHeads, 1};
    call.initial_grad = {dstate.data(), streams.heads, 1};
    expect_same_on_any_number_of_threads([&](const Parallel& p) { delta::run_scan(call, p); },
                                         {&dy, &dx, &dv, &dg, &dbeta, &dstate});
  }
}

TEST(KernelThreads, DplrScan) {
  for (const Streams& streams : kStreams) {
    Inputs in;
    const auto keys = static_cast<size_t>(kBatch * kTime * kHeads * kKeys);
    Floats a = random_floats(keys, -0.1f, 0.1f), b = random_floats(keys, -0.1f, 0.1f);
    Floats o = streams.of(kValues), last = streams.states();
    dplr::ScanKernel call{.rows = streams.batch,
                          .tokens = kTime,
                          .heads = streams.heads,
                          .keys = kKeys,
                          .values = kValues,
                          .bounds = nullptr,
                          .factor = 0.5f,
                          .q = in.q.data(),
                          .k = in.k.data(),
                          .v = in.v.data(),
                          .a = a.data(),
                          .b = b.data(),
                          .g = in.g.data(),
                          .start = in.state.data(),
                          .o = o.data(),
                          .last = last.data()};
    expect_same_on_any_number_of_threads([&](const Parallel& p) { dplr::run_scan(call, p); }, {&o, &last});

    Floats dq = streams.of(kKeys), dk = dq, da = dq, db = dq, dg = dq, dv = streams.of(kValues);
    Floats dstart = streams.states();
    call.grad_o = in.w.data();
    call.grad_last = in.state.data();
    call.dq = dq.data();
    call.dk = dk.data();
    call.dv = dv.data();
    call.da = da.data();
    call.db = db.data();
    call.dg = dg.data();
    call.dstart = dstart.data();
    expect_same_on_any_number_of_threads([&](const Parallel& p) { dplr::run_gradient(call, p); },
                                         {&dq, &dk, &dv, &da, &db, &dg, &dstart});
  }
}

// One token.
TEST(KernelThreads, GatedAndDeltaSteps) {
  Inputs in;
  Floats beta = random_floats(kBatch * kTime * kHeads, 0, 1);
  Floats o(kBatch * kHeads * kValues), last(in.state.size());
  delta::ScanKernel call;
  static_cast<gated::ScanKernel&>(call) = gated_call(in, kStreams[0]);
  call.tokens = 1;
  call.beta = timed(beta, kTime, kHeads, 1);
  call.dw = timed(o, 1, kHeads, kValues);
  call.final_state = {last.data(), kHeads, 1};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { gated::run_step(call, p); }, {&o, &last});
  expect_same_on_any_number_of_threads([&](const Parallel& p) { delta::run_step(call, p); }, {&o, &last});
}

// If logits rise by more than a tile allows, it is halved.
void check_latte(const Streams& streams, float steepness, bool softmax) {
  Inputs in;
  for (float& theta : in.k) theta *= steepness;
  const auto latents = [&] { return Floats(static_cast<size_t>(streams.batch * streams.heads * kKeys)); };
  Floats o = streams.of(kValues), last = streams.states(), normalizer = latents(), maximum = latents();
  Floats before = random_floats(kBatch * kHeads * kKeys, 1, 2), top = random_floats(kBatch * kHeads * kKeys);
  latent::LatteKernel call{
      .rows = streams.batch, .tokens = kTime, .heads = streams.heads, .latents = kKeys, .values = kValues};
  call.softmax = softmax;
  call.query = in.key(in.q);
  call.theta = in.key(in.k);
  call.v = in.value(in.v);
  call.o = streams.value(o);
  call.state = {in.state.data(), kHeads, 1};
  call.normalizer = {before.data(), kHeads, 1};
  call.maximum = {top.data(), kHeads, 1};
  call.last_state = {last.data(), streams.heads, 1};
  call.last_normalizer = {normalizer.data(), streams.heads, 1};
  call.last_maximum = {maximum.data(), streams.heads, 1};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { latent::run_latte(call, p); },
                                       {&o, &last, &normalizer, &maximum});

  Floats dq = streams.of(kKeys), dk = dq, dv = streams.of(kValues), dstate = streams.states(), dnormalizer = latents();
  const latent::LatteGradients gradients{.o = in.value(in.w),
                                         .state = {in.state.data(), kHeads, 1},
                                         .normalizer = {before.data(), kHeads, 1},
                                         .query = streams.key(dq),
                                         .theta = streams.key(dk),
                                         .v = streams.value(dv),
                                         .initial_state = {dstate.data(), streams.heads, 1},
                                         .initial_normalizer = {dnormalizer.data(), streams.heads, 1}};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { latent::run_latte_backward(call, gradients, p); },
                                       {&dq, &dk, &dv, &dstate, &dnormalizer});
}

TEST(KernelThreads, LatteScan) {
  for (const Streams& streams : kStreams) {
    for (const float steepness : {1.0f, 40.0f}) {
      for (const bool softmax : {true, false}) check_latte(streams, steepness, softmax);
    }
  }
}

TEST(KernelThreads, TimeSoftmax) {
  constexpr int64_t kChannels = 200;
  const int64_t size = kBatch * kTime * kChannels;
  Floats theta = random_floats(size), keys(size), gate(size), maximum(size), normalizer(size);
  Floats last_maximum(kBatch * kChannels), last_normalizer(kBatch * kChannels);
  const auto channels = [](Floats& x) { return softmax::Channels{x.data(), kTime * kChannels, kChannels}; };
  softmax::SoftmaxKernel call{.rows = kBatch, .tokens = kTime, .channels = kChannels};
  call.theta = channels(theta);
  call.keys = channels(keys);
  call.gate = channels(gate);
  call.maximum = channels(maximum);
  call.normalizer = channels(normalizer);
  call.last_maximum = last_maximum.data();
  call.last_normalizer = last_normalizer.data();
  expect_same_on_any_number_of_threads([&](const Parallel& p) { softmax::run_softmax(call, p); },
                                       {&keys, &maximum, &normalizer, &last_maximum, &last_normalizer});
}

TEST(KernelThreads, ShortConvolution) {
  constexpr int64_t kChannels = 70, kTaps = 4;
  const int64_t size = kBatch * kTime * kChannels;
  Floats x = random_floats(size), weight = random_floats(kTaps * kChannels), y(size), dy = random_floats(size),
         dx(size);
  std::vector<convolution::Block> blocks;
  for (int64_t row = 0; row < kBatch; ++row) {
    for (int64_t first = 0; first < kTime; first += convolution::kBlockTokens) {
      blocks.push_back({row, row, 0, kTime, first, std::min(convolution::kBlockTokens, kTime - first)});
    }
  }
  convolution::ConvKernel call{.channels = kChannels,
                               .taps = kTaps,
                               .silu = true,
                               .blocks = blocks.data(),
                               .count = static_cast<int64_t>(blocks.size()),
                               .x = timed(x, kTime, 1, kChannels),
                               .weight = weight.data(),
                               .y = timed(y, kTime, 1, kChannels)};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { convolution::run_forward(call, p); }, {&y});
  Floats sums(blocks.size() * (kTaps + 1) * kChannels), dweight((kTaps + 1) * kChannels);
  call.grad_y = timed(dy, kTime, 1, kChannels);
  call.grad_x = timed(dx, kTime, 1, kChannels);
  call.sums = sums.data();
  call.grad_weight = dweight.data();
  expect_same_on_any_number_of_threads([&](const Parallel& p) { convolution::run_backward(call, p); }, {&dx, &dweight});
}

// The outputs of window attention for this many queries per row.
struct Attended {
  int64_t queries;
  Floats o, maximum, sum, lse;
  explicit Attended(int64_t count)
      : queries(count),
        o(kBatch * count * kHeads * kValues),
        maximum(kBatch * count * kHeads),
        sum(maximum.size()),
        lse(maximum.size()) {}
  std::vector<Floats*> all() { return {&o, &maximum, &sum, &lse}; }

  // q, k and v contiguous; query t sees keys [begin[t], end[t]).
  window::AttentionKernel call(Floats& q, Floats& k, Floats& v, int64_t keys, const std::vector<int64_t>& begin,
                               const std::vector<int64_t>& end) {
    window::AttentionKernel attention{.batch = kBatch,
                                      .queries = queries,
                                      .keys = keys,
                                      .heads = kHeads,
                                      .groups = kHeads,
                                      .key_size = kKeys,
                                      .value_size = kValues,
                                      .q = timed(q, queries, kHeads, kKeys),
                                      .k = timed(k, keys, kHeads, kKeys),
                                      .v = timed(v, keys, kHeads, kValues),
                                      .begin = begin.data(),
                                      .end = end.data(),
                                      .o = timed(o, queries, kHeads, kValues)};
    attention.row_max = maximum.data();
    attention.denominator = sum.data();
    attention.lse = lse.data();
    return attention;
  }
};

TEST(KernelThreads, WindowAttention) {
  Inputs in;
  Attended out(kTime);
  Floats dq(in.q.size()), dk(in.k.size()), dv(in.v.size());
  std::vector<int64_t> begin(kTime), end(kTime);
  for (int64_t t = 0; t < kTime; ++t) {
    begin[t] = std::max<int64_t>(0, t - 20);
    end[t] = t + 1;
  }
  const window::AttentionKernel call = out.call(in.q, in.k, in.v, kTime, begin, end);
  expect_same_on_any_number_of_threads([&](const Parallel& p) { window::run_forward(call, p); }, out.all());
  const window::AttentionGradients gradients{in.value(in.w), nullptr, nullptr, in.key(dq), in.key(dk), in.value(dv)};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { window::run_backward(call, gradients, p); },
                                       {&dq, &dk, &dv});
}

// So few groups that the gradients' tasks are parts of one: three of the queries, the last of them short, or two.
TEST(KernelThreads, WindowAttentionGradientsInParts) {
  struct Case {
    int64_t queries, heads, window, past, ahead;  // ahead: visible keys after the query's own
  };
  for (const auto& [queries, heads, window, past, ahead] :
       {Case{600, 1, 20, 0, 0}, Case{600, 2, 300, 83, 0}, Case{512, 1, 1000, 83, 0}, Case{600, 1, 40, 0, 30},
        Case{600, 2, 1000, 83, 1000}}) {
    const int64_t keys = queries + past;
    Floats q = random_floats(queries * heads * kKeys), k = random_floats(keys * kKeys);
    Floats v = random_floats(keys * kValues), w = random_floats(queries * heads * kValues);
    std::vector<int64_t> begin, end;
    for (int64_t t = past; t < keys; ++t) {
      begin.push_back(std::max<int64_t>(0, t - window));
      end.push_back(std::min(keys, t + 1 + ahead));
    }
    Attended out(queries);
    window::AttentionKernel call = out.call(q, k, v, keys, begin, end);
    call.batch = call.groups = 1;
    call.heads = heads;
    call.q = timed(q, queries, heads, kKeys);
    call.k = timed(k, keys, 1, kKeys);
    call.v = timed(v, keys, 1, kValues);
    call.o = timed(out.o, queries, heads, kValues);
    window::run_forward(call, testing::std_threads<1>());
    Floats dq(q.size()), dk(k.size()), dv(v.size());
    const window::AttentionGradients gradients{timed(w, queries, heads, kValues),
                                               nullptr,
                                               nullptr,
                                               timed(dq, queries, heads, kKeys),
                                               timed(dk, keys, 1, kKeys),
                                               timed(dv, keys, 1, kValues)};
    expect_same_on_any_number_of_threads([&](const Parallel& p) { window::run_backward(call, gradients, p); },
                                         {&dq, &dk, &dv});
  }
}

// A few queries against keys in parts: as many as two parts and a ragged third.
TEST(KernelThreads, WindowAttentionOfFewQueries) {
  constexpr int64_t kQueries = 3, kLong = 2 * window::kFewPart + 37;
  Floats q = random_floats(kBatch * kQueries * kHeads * kKeys);
  Floats k = random_floats(kBatch * kLong * kHeads * kKeys), v = random_floats(kBatch * kLong * kHeads * kValues);
  const std::vector<int64_t> begin{0, 5, window::kFewPart + 1}, end{kLong - 2, kLong - 1, kLong};
  Attended few(kQueries), blocked(kQueries);
  window::run_forward(blocked.call(q, k, v, kLong, begin, end), testing::std_threads<1>());
  const window::AttentionKernel call = few.call(q, k, v, kLong, begin, end);
  expect_same_on_any_number_of_threads([&](const Parallel& p) { window::run_few(call, p); }, few.all());
  for (size_t i = 0; i < few.o.size(); ++i) EXPECT_NEAR(few.o[i], blocked.o[i], 1e-5);
}

void check_elementwise(int64_t batch, int64_t time, int64_t channels, bool reverse) {
  const int64_t size = batch * time * channels;
  Floats log_a = random_floats(size, -1, 0), b = random_floats(size), h(size), dlog_a(size), db(size);
  Floats initial = random_floats(batch * channels), last(initial.size()), dinitial(initial.size());
  const auto laid = [&](Floats& x) { return elementwise::Channels{x.data(), time * channels, channels}; };
  elementwise::ScanKernel call{.rows = batch,
                               .tokens = time,
                               .channels = channels,
                               .reverse = reverse,
                               .log_a = laid(log_a),
                               .b = laid(b),
                               .h = laid(h),
                               .initial = initial.data(),
                               .final_state = last.data()};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { elementwise::run_forward(call, p); }, {&h, &last});
  call.grad_h = laid(b);
  call.grad_log_a = laid(dlog_a);
  call.grad_b = laid(db);
  call.grad_final = last.data();
  call.grad_initial = dinitial.data();
  expect_same_on_any_number_of_threads([&](const Parallel& p) { elementwise::run_backward(call, p); },
                                       {&dlog_a, &db, &dinitial});
}

TEST(KernelThreads, ElementwiseScan) { check_elementwise(kBatch, kTime, 200, false); }

TEST(KernelThreads, ElementwiseScanOfFewChannels) {
  for (const int64_t channels : {40, 100}) {  // one strip, or two in one task when time is split
    for (const bool reverse : {false, true}) check_elementwise(1, 1999, channels, reverse);
  }
}

}  // namespace
}  // namespace cortado::kernels_threads_test
