// The GPU's kernels, run block by block on the host (cuda/emulate.h) by the code that launches them on a GPU, against the
// definition in float64: outputs and every gradient.
#define CORTADO_EMULATE
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/primitives/common.h"
#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/primitives/gated_scan/kernel.cu"
#include "cortado/primitives/gated_scan/kernel_channels.cu"
#include "cortado/primitives/gated_scan/on_gpu.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/gated_scan/scan.h"
#include "cortado/testing/gpu_kernels.h"
#include "cortado/testing/kernels.h"

namespace cortado::gated_scan_kernel_gpu_test {
namespace {

using testing::alone, testing::first_copy, testing::to_first_copy;
using namespace gated;

struct Case {
  int64_t keys = 64, values = 64, batch = 1, tokens = 150, heads = 2, state_heads = 2;
  bool reverse = false, gates = true, cuts = false, read_values = false;
  bool channels = false, steep = false, slots = false, wide = false;
  std::vector<int64_t> bounds = {};
  int64_t parts = 1;  // parts of time
  gpu::Order order = {};
};

template <int kKeys, bool kReverse, bool kOnKeys, bool kReads>
void walk_channels(const GpuScan& scan) {
  ChannelScan<kKeys, kReverse, kOnKeys, kReads>(scan).run();
}
template <int kKeys, bool kReverse, Task kTask>
void walk(const GpuScan& scan) {
  Scan<kKeys, kReverse, kTask>(scan).run();
}

template <int kKeys>
void add_walks(cuda::EmulatedMachine::Kernels& to) {
  const std::string variant = kKeys == 64 ? " KEYS=64" : " KEYS=128";
  const auto add = [&](const char* name, void (*body)(const GpuScan&)) {
    to[name + variant] = cuda::kernel_of<GpuScan>(body);
  };
  add("gated_scan", walk<kKeys, false, Task::kRead>);
  add("gated_scan_reverse", walk<kKeys, true, Task::kRead>);
  add("gated_scan_dot", walk<kKeys, false, Task::kDot>);
  add("gated_scan_dot_reverse", walk<kKeys, true, Task::kDot>);
  add("gated_scan_states", walk<kKeys, false, Task::kStates>);
  add("gated_scan_states_reverse", walk<kKeys, true, Task::kStates>);
  add("on_keys", walk_channels<kKeys, false, true, true>);
  add("on_keys_reverse", walk_channels<kKeys, true, true, true>);
  add("on_values", walk_channels<kKeys, false, false, true>);
  add("on_values_reverse", walk_channels<kKeys, true, false, true>);
  add("on_keys_states", walk_channels<kKeys, false, true, false>);
  add("on_keys_states_reverse", walk_channels<kKeys, true, true, false>);
  add("on_values_states", walk_channels<kKeys, false, false, false>);
  add("on_values_states_reverse", walk_channels<kKeys, true, false, false>);
  for (const char* name : {"gated_scan_join", "join"}) to[name + variant] = cuda::kernel_of<GpuJoin>(&join_parts);
  to["gated_scan_gate_gradient" + variant] = cuda::kernel_of<GpuGateGradient>(&add_up_gate_gradient);
  to["channel_gradient" + variant] = cuda::kernel_of<GpuChannelGradient>(&add_up_channel_gradient);
}

cuda::EmulatedMachine emulated(gpu::Order order) {
  cuda::EmulatedMachine::Kernels kernels;
  add_walks<64>(kernels);
  add_walks<128>(kernels);
  return cuda::EmulatedMachine(kernels, order);
}

void expect_near(const Tensor& found, const Tensor& right, const char* what, double most = 6e-3) {
  testing::expect_near(found, right, what, most);
}

Tensor gates_of(const Case& c) {
  if (!c.gates) return {};
  std::vector<int64_t> sizes{c.batch, c.tokens, c.state_heads};
  if (c.channels) sizes.push_back(c.keys);
  Tensor g = at::rand(sizes).log() * (c.steep ? 6 : 0.3);
  if (c.slots) g = at::where(at::rand_like(g).lt(0.05), -20.8, at::rand_like(g) * 0.05);
  if (c.cuts) g.masked_fill_(at::rand_like(g).lt(0.05), -INFINITY);
  return alone(g);
}

void check(const Case& c) {
  at::manual_seed(3);
  const auto rows = c.bounds.empty() ? c.batch : int64_t(c.bounds.size()) - 1;
  const auto numbers = [&](int64_t heads, int64_t width) {
    return alone(at::randn({c.batch, c.tokens, heads, width}).to(at::kBFloat16));
  };
  const int64_t asked = c.read_values ? c.values : c.keys, told = c.read_values ? c.keys : c.values;
  const Tensor q = numbers(c.heads, asked), k = numbers(c.state_heads, c.keys), v = numbers(c.state_heads, c.values);
  const Tensor g = gates_of(c);
  const Tensor initial = alone(at::randn({rows, c.state_heads, c.keys, c.values}));
  const double scale = 0.125;
  std::vector<Tensor> leaves;
  for (const Tensor& x : {q, k, v, initial}) leaves.push_back(x.to(at::kDouble).requires_grad_());
  const OptionalTensor bounds = c.bounds.empty() ? OptionalTensor() : OptionalTensor(at::tensor(c.bounds, at::kLong));
  OptionalTensor gates;
  if (c.gates) leaves.push_back(*(gates = g.to(at::kDouble).requires_grad_()));
  const auto [o, last] = gated_scan_reference(leaves[0], leaves[1], leaves[2], gates, c.read_values ? "value" : "key",
                                              scale, {}, leaves[3], bounds, c.reverse);
  auto machine = emulated(c.order);
  FormInputs in;
  in.x = k;
  in.v = v;
  in.g = g;
  in.initial = expand_heads(initial, c.heads, 1);
  (c.read_values ? in.w : in.y) = q;
  FormOptions options{.heads = c.heads, .type = at::kFloat};
  options.reverse = c.reverse;
  options.wide_read = c.wide;
  (c.read_values ? options.want_y : options.want_w) = true;
  const auto* packed = c.bounds.empty() ? nullptr : &c.bounds;
  const FormOutputs read = evaluate_on_gpu(in, options, scale, packed, machine, c.parts);
  expect_near(c.read_values ? read.y : read.w, o, "o");
  EXPECT_EQ((c.read_values ? read.y : read.w).scalar_type(), c.wide ? at::kFloat : at::kBFloat16);
  expect_near(first_copy(read.final_state, c.state_heads), last, "last state");

  const Tensor grad_o = numbers(c.heads, told), grad_last = at::randn(last.sizes());
  const auto right = torch::autograd::grad({o, last}, leaves, {grad_o.to(at::kDouble), grad_last.to(at::kDouble)});
  (c.read_values ? in.y : in.w) = grad_o;
  in.final_grad = to_first_copy(grad_last, c.heads);
  options.want_y = !c.read_values;
  options.want_w = c.read_values;
  options.want_rest = true;
  options.want_gate = c.gates;
  const FormOutputs out = evaluate_on_gpu(in, options, scale, packed, machine, c.parts);
  const auto summed = [&](const Tensor& x, int64_t at) {
    return x.to(at::kFloat).unflatten(at, {c.state_heads, -1}).sum(at + 1);
  };
  expect_near(c.read_values ? out.w : out.y, right[0], "dq");
  expect_near(summed(out.x, 2), right[1], "dk");
  expect_near(summed(out.v, 2), right[2], "dv");
  expect_near(summed(out.initial, 1), right[3], "dS_0");
  // <dS, S> is many times larger than what one gate has of it, and S has the rounding of 16-bit products; where gates are
  // steep, so is the product of a token with itself, which is in q dq and in k dk, each with its rounding.
  if (!c.gates) return;
  expect_near(summed(out.g, 2), right[4], "dg", c.steep ? 0.2 : 3.5e-2);
  EXPECT_EQ(summed(out.g, 2).masked_select(g.eq(-INFINITY)).count_nonzero().item<int64_t>(), 0) << "of cut gates";
}

TEST(GatedScanOnGpu, EveryOrderOfThreadsAndCopies) {
  for (const bool backwards : {false, true}) {
    for (const bool alone : {false, true}) {
      for (const bool late : {false, true}) {
        const gpu::Order order{backwards, alone, late};
        check({.tokens = 200, .heads = 1, .state_heads = 1, .order = order});
        check({.keys = 128, .tokens = 130, .heads = 1, .state_heads = 1, .parts = 2, .order = order});
      }
    }
  }
}

TEST(GatedScanOnGpu, EveryLength) {
  for (const int64_t tokens : {1, 2, 63, 64, 65, 128, 333}) check({.tokens = tokens, .heads = 1, .state_heads = 1});
}

TEST(GatedScanOnGpu, HeadsRowsAndWidths) {
  check({.batch = 2, .heads = 4, .state_heads = 2});
  check({.keys = 16, .values = 32, .batch = 2, .tokens = 70});
  check({.keys = 72, .values = 96, .tokens = 70});
  check({.keys = 128, .values = 64});
  check({.keys = 33, .values = 65, .tokens = 70});
  check({.keys = 5, .values = 7, .tokens = 70, .read_values = true, .channels = true});
  check({.keys = 128, .values = 128, .tokens = 130, .heads = 1, .state_heads = 1});
}

TEST(GatedScanOnGpu, ReadInFloat32) {
  check({.values = 96, .wide = true});
  check({.keys = 72, .values = 128, .tokens = 70, .reverse = true, .read_values = true, .wide = true});
  check({.keys = 64,
         .tokens = 300,
         .heads = 1,
         .state_heads = 1,
         .read_values = true,
         .channels = true,
         .wide = true,
         .parts = 2});
}

TEST(GatedScanOnGpu, ReadAlongTheValues) {
  check({.values = 128, .heads = 1, .state_heads = 1, .read_values = true});
  check({.values = 32, .reverse = true, .read_values = true});
}

TEST(GatedScanOnGpu, GatesThatAreMissingOrCut) {
  check({.gates = false});
  check({.cuts = true});
  check({.reverse = true, .cuts = true});
}

TEST(GatedScanOnGpu, PartsOfTime) {
  check({.tokens = 500, .heads = 1, .state_heads = 1, .parts = 3});
  check({.batch = 2, .tokens = 200, .reverse = true, .cuts = true, .parts = 3});
  check({.keys = 128, .values = 128, .tokens = 130, .gates = false, .parts = 2});
  check({.tokens = 300, .cuts = true, .bounds = {0, 3, 3, 190, 300}, .parts = 4});
  check({.tokens = 1100, .heads = 1, .state_heads = 1, .parts = 0});  // parts: as many as fill the machine
}

TEST(GatedScanOnGpu, AGateForEachChannel) {
  check({.heads = 1, .state_heads = 1, .channels = true});
  check({.keys = 32, .values = 96, .batch = 2, .tokens = 333, .heads = 4, .channels = true});
  check({.keys = 128, .values = 128, .tokens = 200, .reverse = true, .channels = true});
  check({.values = 128, .read_values = true, .channels = true});
  check({.keys = 128, .reverse = true, .read_values = true, .channels = true});
}

TEST(GatedScanOnGpu, ChannelsWhoseGatesAreSteepOrCut) {
  check({.heads = 1, .state_heads = 1, .channels = true, .steep = true});
  check({.cuts = true, .channels = true});
  check({.keys = 128, .reverse = true, .cuts = true, .read_values = true, .channels = true});
}

// As Blurry Window Attention's slots have them: above 0, and what is left of a slot that is overwritten.
TEST(GatedScanOnGpu, ChannelsWhoseGatesRise) {
  check({.tokens = 200, .channels = true, .slots = true});
  check({.tokens = 200, .read_values = true, .channels = true, .slots = true, .wide = true});
}

TEST(GatedScanOnGpu, ChannelsInPartsAndPacked) {
  check({.tokens = 500, .heads = 1, .state_heads = 1, .channels = true, .parts = 3});
  check({.values = 128, .tokens = 200, .reverse = true, .cuts = true, .channels = true, .parts = 2});
  check({.tokens = 300, .cuts = true, .channels = true, .bounds = {0, 3, 3, 190, 300}, .parts = 4});
  check({.tokens = 600, .heads = 1, .state_heads = 1, .channels = true, .bounds = {0, 257, 600}});
}

TEST(GatedScanOnGpu, EveryOrderOfThreadsAndCopiesWithChannels) {
  for (const bool backwards : {false, true}) {
    for (const bool alone : {false, true}) {
      for (const bool late : {false, true}) {
        check({.tokens = 140, .heads = 1, .state_heads = 1, .channels = true, .order = {backwards, alone, late}});
      }
    }
  }
}

TEST(GatedScanOnGpu, Packed) {
  check({.tokens = 200, .bounds = {0, 3, 3, 130, 200}});
  check({.tokens = 200, .reverse = true, .bounds = {0, 65, 200}});
  check({.tokens = 700, .heads = 1, .state_heads = 1, .bounds = {0, 257, 700}});
}

// Packed and separate sequences give the same bits, although one sequence is split over time.
TEST(GatedScanOnGpu, PackedIsSeparate) {
  at::manual_seed(8);
  const std::vector<int64_t> bounds = {0, 70, 1200};
  const auto numbers = [&] { return at::randn({1, bounds.back(), 1, 64}).to(at::kBFloat16); };
  FormInputs in;
  in.y = numbers();
  in.x = numbers();
  in.v = numbers();
  in.g = at::rand({1, bounds.back(), 1}).log() * 0.1;
  FormOptions options{.heads = 1, .type = at::kFloat};
  options.want_w = true;
  auto machine = emulated({});
  const FormOutputs together = evaluate_on_gpu(in, options, 1, &bounds, machine);
  for (size_t i = 1; i < bounds.size(); ++i) {
    FormInputs alone = in;
    for (Tensor* x : {&alone.y, &alone.x, &alone.v, &alone.g}) *x = x->slice(1, bounds[i - 1], bounds[i]);
    const FormOutputs one = evaluate_on_gpu(alone, options, 1, nullptr, machine);
    EXPECT_TRUE(at::equal(together.w.slice(1, bounds[i - 1], bounds[i]), one.w));
    EXPECT_TRUE(at::equal(together.final_state.slice(0, int64_t(i) - 1, int64_t(i)), one.final_state));
  }
}

}  // namespace
}  // namespace cortado::gated_scan_kernel_gpu_test
