// The GPU's kernels, run block by block on the host (cuda/emulate.h) by the code that launches them on a GPU, against the
// definition in float64: outputs and every gradient.
#define CORTADO_EMULATE
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/primitives/common.h"
#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/primitives/delta_scan/kernel.cu"
#include "cortado/primitives/delta_scan/op.h"
#include "cortado/primitives/gated_scan/channels_gpu-inl.h"
#include "cortado/primitives/gated_scan/on_gpu.h"
#include "cortado/primitives/gated_scan/parts_gpu-inl.h"
#include "cortado/testing/gpu_kernels.h"
#include "cortado/testing/kernels.h"

namespace cortado::delta_scan_kernel_gpu_test {
namespace {

using namespace delta;
using gated::GpuScan, gated::Task;
using testing::alone, testing::expect_near, testing::first_copy, testing::to_first_copy;

struct Case {
  int64_t keys = 64, values = 64, batch = 1, tokens = 150, heads = 2, state_heads = 2;
  bool gates = true, channels = false, cuts = false, states = true;
  double steepness = 0.1;
  std::vector<int64_t> bounds = {};
  double most_beta = 1;
  int64_t parts = 1;  // parts of time
  gpu::Order order = {};
};

template <int kKeys, bool kReverse, Task kTask>
void walk(const GpuScan& scan) {
  gated::Scan<kKeys, kReverse, kTask>(scan).run();
}

template <int kKeys, bool kReverse, bool kOnKeys, bool kReads>
void channel_walk(const GpuScan& scan) {
  gated::ChannelScan<kKeys, kReverse, kOnKeys, kReads>(scan).run();
}

template <int kKeys>
void add_channels(cuda::EmulatedMachine::Kernels& to) {
  const std::string variant = kKeys == 64 ? " KEYS=64" : " KEYS=128";
  using In = GpuDelta;
  to["delta_inverse_channels" + variant] =
      cuda::kernel_of<GpuInverse>([](const auto& in) { Inverse<kKeys, true>(in).run(); });
  to["delta_channels" + variant] = cuda::kernel_of<In>([](const In& in) { ChannelDelta<kKeys, false>(in).run(); });
  to["delta_channels_gradient" + variant] =
      cuda::kernel_of<In>([](const In& in) { ChannelDelta<kKeys, true>(in).run(); });
  to["on_keys" + variant] = cuda::kernel_of<GpuScan>(&channel_walk<kKeys, false, true, true>);
  to["on_keys_reverse" + variant] = cuda::kernel_of<GpuScan>(&channel_walk<kKeys, true, true, true>);
  to["on_values" + variant] = cuda::kernel_of<GpuScan>(&channel_walk<kKeys, false, false, true>);
  to["on_values_reverse" + variant] = cuda::kernel_of<GpuScan>(&channel_walk<kKeys, true, false, true>);
  to["on_keys_states" + variant] = cuda::kernel_of<GpuScan>(&channel_walk<kKeys, false, true, false>);
  to["on_keys_states_reverse" + variant] = cuda::kernel_of<GpuScan>(&channel_walk<kKeys, true, true, false>);
  to["on_values_states" + variant] = cuda::kernel_of<GpuScan>(&channel_walk<kKeys, false, false, false>);
  to["on_values_states_reverse" + variant] = cuda::kernel_of<GpuScan>(&channel_walk<kKeys, true, false, false>);
  to["join" + variant] = cuda::kernel_of<gated::GpuJoin>(&gated::join_parts);
  to["channel_gradient" + variant] = cuda::kernel_of<gated::GpuChannelGradient>(&gated::add_up_channel_gradient);
}

template <int kKeys>
void add(cuda::EmulatedMachine::Kernels& to) {
  const std::string variant = kKeys == 64 ? " KEYS=64" : " KEYS=128";
  using In = GpuDelta;
  to["gated_scan_states" + variant] = cuda::kernel_of<GpuScan>(&walk<kKeys, false, Task::kStates>);
  to["gated_scan_states_reverse" + variant] = cuda::kernel_of<GpuScan>(&walk<kKeys, true, Task::kStates>);
  to["gated_scan_join" + variant] = cuda::kernel_of<gated::GpuJoin>(&gated::join_parts);
  to["delta_join" + variant] = cuda::kernel_of<GpuDeltaJoin>(&delta::join_parts<kKeys>);
  to["gated_scan" + variant] = cuda::kernel_of<GpuScan>(&walk<kKeys, false, Task::kRead>);
  to["gated_scan_reverse" + variant] = cuda::kernel_of<GpuScan>(&walk<kKeys, true, Task::kRead>);
  to["gated_scan_gate_gradient" + variant] = cuda::kernel_of<gated::GpuGateGradient>(&gated::add_up_gate_gradient);
  to["delta_inverse" + variant] = cuda::kernel_of<GpuInverse>([](const auto& in) { Inverse<kKeys, false>(in).run(); });
  to["delta_store" + variant] = cuda::kernel_of<GpuStored>(&delta::store);
  to["delta_rest" + variant] = cuda::kernel_of<GpuRest>(&delta::rest);
  to["delta_scan" + variant] = cuda::kernel_of<In>([](const In& in) { DeltaScan<kKeys, Task::kRead>(in).run(); });
  to["delta_scan_dot" + variant] = cuda::kernel_of<In>([](const In& in) { DeltaScan<kKeys, Task::kDot>(in).run(); });
  to["delta_gradient" + variant] =
      cuda::kernel_of<In>([](const In& in) { DeltaGradient<kKeys, Task::kRead>(in).run(); });
  to["delta_gradient_dot" + variant] =
      cuda::kernel_of<In>([](const In& in) { DeltaGradient<kKeys, Task::kDot>(in).run(); });
}

Tensor gates_of(const Case& c) {
  if (!c.gates) return {};
  std::vector<int64_t> sizes = {c.batch, c.tokens, c.state_heads};
  if (c.channels) sizes.push_back(c.keys);
  const Tensor g = at::rand(sizes).log() * c.steepness;
  if (c.cuts) g.masked_fill_(at::rand_like(g).lt(0.05), -INFINITY);
  return alone(g);
}

void check(const Case& c) {
  at::manual_seed(3);
  const auto rows = c.bounds.empty() ? c.batch : int64_t(c.bounds.size()) - 1;
  const auto numbers = [&](int64_t heads, int64_t width) { return at::randn({c.batch, c.tokens, heads, width}); };
  const auto narrow = [](const Tensor& x) { return alone(x.to(at::kBFloat16)); };
  const Tensor q = narrow(numbers(c.heads, c.keys)), v = narrow(numbers(c.state_heads, c.values));
  const Tensor raw = numbers(c.state_heads, c.keys), k = narrow(raw / raw.norm(2, -1, true));
  const Tensor beta = alone(at::rand({c.batch, c.tokens, c.state_heads}) * c.most_beta);
  const Tensor g = gates_of(c);
  const Tensor initial = alone(at::randn({rows, c.state_heads, c.keys, c.values}));
  const double scale = 0.125;
  std::vector<Tensor> leaves;
  for (const Tensor& x : {q, k, v, beta}) leaves.push_back(x.to(at::kDouble).requires_grad_());
  const OptionalTensor bounds = c.bounds.empty() ? OptionalTensor() : OptionalTensor(at::tensor(c.bounds, at::kLong));
  OptionalTensor gates, start;
  if (c.states) leaves.push_back(*(start = initial.to(at::kDouble).requires_grad_()));
  if (c.gates) leaves.push_back(*(gates = g.to(at::kDouble).requires_grad_()));
  const auto [o, last] = delta_scan_reference(leaves[0], leaves[1], leaves[2], leaves[3], gates, scale, start, bounds);
  cuda::EmulatedMachine::Kernels kernels;
  add<64>(kernels);
  add<128>(kernels);
  add_channels<64>(kernels);
  add_channels<128>(kernels);
  cuda::EmulatedMachine machine(kernels, c.order);
  gated::FormInputs in;
  in.y = q;
  in.x = k;
  in.v = v;
  in.g = g;
  in.beta = beta;
  if (c.states) in.initial = expand_heads(initial, c.heads, 1);
  gated::FormOptions options{.heads = c.heads, .type = at::kFloat};
  options.want_w = true;
  const auto* packed = c.bounds.empty() ? nullptr : &c.bounds;
  const auto read = gated::evaluate_on_gpu(in, options, scale, packed, machine, c.parts);
  expect_near(read.w, o, "o", 8e-3);
  expect_near(first_copy(read.final_state, c.state_heads), last, "last state", 8e-3);

  const Tensor grad_o = narrow(numbers(c.heads, c.values)), grad_last = at::randn(last.sizes());
  const auto right = torch::autograd::grad({o, last}, leaves, {grad_o.to(at::kDouble), grad_last.to(at::kDouble)});
  in.w = grad_o;
  in.final_grad = to_first_copy(grad_last, c.heads);
  options.want_w = false;
  options.want_y = options.want_rest = true;
  options.want_gate = c.gates;
  const auto out = gated::evaluate_on_gpu(in, options, scale, packed, machine, c.parts);
  const auto summed = [&](const Tensor& x, int64_t at) {
    return x.to(at::kFloat).unflatten(at, {c.state_heads, -1}).sum(at + 1);
  };
  expect_near(out.y, right[0], "dq", 1e-2);
  expect_near(summed(out.x, 2), right[1], "dk", 1e-2);
  expect_near(summed(out.v, 2), right[2], "dv", 1e-2);
  expect_near(summed(out.beta, 2), right[3], "dbeta", 1e-2);
  if (c.states) expect_near(summed(out.initial, 1), right[4], "dS_0", 1e-2);
  // If almost nothing of a state survives one token, the gradient is a sum that nearly vanishes.
  if (c.gates) expect_near(summed(out.g, 2), right.back(), "dg", c.steepness > 1 ? 0.1 : 4e-2);
}

TEST(DeltaScanOnGpu, EveryLength) {
  for (const int64_t tokens : {1, 2, 63, 64, 65, 128, 333}) check({.tokens = tokens, .heads = 1, .state_heads = 1});
}

TEST(DeltaScanOnGpu, HeadsRowsAndWidths) {
  check({.batch = 2, .heads = 4, .state_heads = 2});
  check({.keys = 16, .values = 32, .batch = 2, .tokens = 70});
  check({.keys = 72, .values = 96, .tokens = 70});
  check({.keys = 31, .values = 65, .tokens = 70});
  check({.keys = 128, .values = 128, .tokens = 130, .heads = 1, .state_heads = 1});
}

TEST(DeltaScanOnGpu, GatesThatAreMissingOrCut) {
  check({.gates = false});
  check({.gates = false, .states = false, .most_beta = 2});
  check({.cuts = true});
}

// dbeta is wanted where beta is 0.
TEST(DeltaScanOnGpu, BetasOfZero) { check({.tokens = 70, .most_beta = 0}); }

TEST(DeltaScanOnGpu, Packed) {
  check({.tokens = 200, .bounds = {0, 3, 3, 130, 200}});
  check({.tokens = 700, .heads = 1, .state_heads = 1, .bounds = {0, 257, 700}});
}

TEST(DeltaScanOnGpu, PartsOfTime) {
  check({.tokens = 330, .heads = 1, .state_heads = 1, .parts = 3});
  check({.keys = 72, .values = 96, .batch = 2, .tokens = 330, .cuts = true, .parts = 2});
  check({.keys = 128, .values = 32, .tokens = 140, .gates = false, .states = false, .most_beta = 2, .parts = 4});
  check({.tokens = 300, .bounds = {0, 3, 3, 190, 300}, .parts = 3});
  check({.tokens = 1100, .heads = 1, .state_heads = 1, .parts = 0});  // parts: as many as fill the machine
}

TEST(DeltaScanOnGpu, AGateForEachChannel) {
  for (const int64_t tokens : {1, 3, 17, 63, 64, 65, 333}) {
    check({.tokens = tokens, .heads = 1, .state_heads = 1, .channels = true});
  }
  check({.batch = 2, .tokens = 70, .heads = 4, .state_heads = 2, .channels = true});
  check({.keys = 16, .values = 32, .batch = 2, .tokens = 70, .channels = true});
  check({.keys = 72, .values = 96, .tokens = 70, .channels = true, .states = false, .most_beta = 2});
  check({.keys = 31, .values = 65, .tokens = 70, .channels = true});
  check({.keys = 128, .values = 128, .tokens = 130, .heads = 1, .state_heads = 1, .channels = true});
}

// Blocks of 16 tokens that leave too little of the state for an inverse decay, or nothing.
TEST(DeltaScanOnGpu, SteepGatesOfChannels) {
  check({.tokens = 130, .channels = true, .steepness = 3});
  check({.tokens = 130, .channels = true, .cuts = true});
  check({.keys = 96, .values = 32, .tokens = 70, .channels = true, .cuts = true, .steepness = 2});
}

TEST(DeltaScanOnGpu, PackedWithAGateForEachChannel) {
  check({.tokens = 200, .channels = true, .bounds = {0, 3, 3, 130, 200}});
  check({.tokens = 700, .heads = 1, .state_heads = 1, .channels = true, .bounds = {0, 257, 700}});
}

TEST(DeltaScanOnGpu, PartsOfTimeWithAGateForEachChannel) {
  check({.tokens = 330, .heads = 1, .state_heads = 1, .channels = true, .parts = 3});
  check({.keys = 72, .values = 96, .batch = 2, .tokens = 330, .channels = true, .cuts = true, .parts = 2});
  check({.tokens = 300, .channels = true, .bounds = {0, 3, 3, 190, 300}, .parts = 3});
}

TEST(DeltaScanOnGpu, EveryOrderOfThreadsAndCopies) {
  for (const bool backwards : {false, true}) {
    for (const bool alone : {false, true}) {
      for (const bool late : {false, true}) {
        const gpu::Order order = {backwards, alone, late};
        check({.tokens = 200, .heads = 1, .state_heads = 1, .parts = 2, .order = order});
        check({.tokens = 130, .heads = 1, .state_heads = 1, .channels = true, .parts = 2, .order = order});
      }
    }
  }
}

}  // namespace
}  // namespace cortado::delta_scan_kernel_gpu_test
