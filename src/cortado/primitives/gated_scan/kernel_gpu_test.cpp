// The GPU's kernel, run block by block on the host (cuda/emulate.h), against the definition in float64.
#define CORTADO_EMULATE
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/primitives/common.h"
#include "cortado/primitives/gated_scan/kernel.cu"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado::gated_scan_kernel_gpu_test {
namespace {

using namespace gated;

struct Case {
  int64_t keys = 64, values = 64, batch = 1, tokens = 150, heads = 2, state_heads = 2;
  bool reverse = false, gates = true, cuts = false;
  std::vector<int64_t> bounds = {};
  int64_t parts = 1;  // of time
  gpu::Order order = {};
};

GpuTimed timed(const Tensor& x) {
  return x.defined() ? GpuTimed{x.data_ptr(), x.stride(0), x.stride(1), x.stride(2), int(x.size(2))}
                     : GpuTimed{nullptr, 0, 0, 0, 1};
}

struct Run {
  Tensor o, last;
};

template <bool kOnlyStates>
void launch(const Case& c, const GpuScan& scan, int keys, int rows, bool reverse) {
  const gpu::Dim3 blocks{rows * scan.heads * scan.values / kGpuPiece, scan.parts};
  gpu::run(blocks, kGpuThreads, size_t(gpu_shared_bytes(keys)), c.order, [&] {
    if (keys == 64 && reverse) return Scan<64, true, kOnlyStates>(scan).run();
    if (keys == 64) return Scan<64, false, kOnlyStates>(scan).run();
    if (reverse) return Scan<128, true, kOnlyStates>(scan).run();
    Scan<128, false, kOnlyStates>(scan).run();
  });
}

// One call of the kernel, or with parts three. `reverse`: from behind; q, k, v bfloat16, states float32.
Run run(const Case& c, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& initial,
        bool reverse, int shift, double scale) {
  const auto rows = c.bounds.empty() ? c.batch : int64_t(c.bounds.size()) - 1;
  Run out{at::full({c.batch, c.tokens, c.heads, v.size(3)}, 7, v.options()),
          at::full({rows, c.heads, k.size(3), v.size(3)}, 7, at::kFloat)};
  GpuScan scan = {};
  scan.q = timed(q);
  scan.k = timed(k);
  scan.v = timed(v);
  scan.o = timed(out.o);
  scan.g = timed(g);
  scan.initial = initial.defined() ? initial.const_data_ptr<float>() : nullptr;
  scan.last = out.last.mutable_data_ptr<float>();
  scan.bounds = c.bounds.empty() ? nullptr : reinterpret_cast<const long long*>(c.bounds.data());
  scan.tokens = int(c.tokens);
  scan.heads = int(c.heads);
  scan.values = int(v.size(3));
  scan.shift = shift;
  scan.scale = float(scale);
  scan.parts = 1;
  scan.part_tokens = int(c.tokens);
  if (c.parts == 1) {
    launch<false>(c, scan, int(k.size(3)), int(rows), reverse);
    return out;
  }
  scan.parts = int(c.parts);
  scan.part_tokens = int((c.tokens + c.parts * kGpuChunk - 1) / (c.parts * kGpuChunk)) * kGpuChunk;
  const Tensor states = at::full({rows, c.parts, c.heads, k.size(3), v.size(3)}, 7, at::kFloat);
  const Tensor kept = at::full({rows, c.parts, c.heads}, 7, at::kFloat);
  const float* begun = std::exchange(scan.initial, nullptr);
  float* last = std::exchange(scan.last, states.mutable_data_ptr<float>());
  scan.kept = kept.mutable_data_ptr<float>();
  launch<true>(c, scan, int(k.size(3)), int(rows), reverse);
  const auto numbers = int(k.size(3) * v.size(3));
  const GpuJoin join{scan.last, scan.kept, begun, last, int(rows), scan.parts, scan.heads, numbers};
  gpu::run({(numbers + kGpuThreads - 1) / kGpuThreads, int(rows * c.heads)}, kGpuThreads, 0, c.order,
           [&] { join_parts(join); });
  scan.initial = std::exchange(scan.last, nullptr);
  launch<false>(c, scan, int(k.size(3)), int(rows), reverse);
  return out;
}

void expect_near(const Tensor& found, const Tensor& right, const char* what) {
  ASSERT_EQ(found.sizes(), right.sizes()) << what;
  const double error = (found.to(at::kDouble) - right).norm().item<double>() / (right.norm().item<double>() + 1e-30);
  EXPECT_LT(error, 6e-3) << what;
}

// Several heads that read one state each have a copy of it; the gradient of what comes out goes to the first.
Tensor copies(const Tensor& state, int64_t heads) { return state.repeat_interleave(heads / state.size(1), 1); }
Tensor first_copy(const Tensor& states, int64_t state_heads) {
  return states.unflatten(1, {state_heads, -1}).select(2, 0);
}
Tensor to_first_copy(const Tensor& gradient, int64_t heads) {
  const Tensor all = at::zeros({gradient.size(0), heads, gradient.size(2), gradient.size(3)});
  first_copy(all, gradient.size(1)).copy_(gradient);
  return all;
}
Tensor summed(const Tensor& x, int64_t state_heads) { return x.to(at::kFloat).unflatten(2, {state_heads, -1}).sum(3); }

void check(const Case& c) {
  at::manual_seed(3);
  const auto rows = c.bounds.empty() ? c.batch : int64_t(c.bounds.size()) - 1;
  const auto numbers = [&](int64_t heads, int64_t width) {
    return at::randn({c.batch, c.tokens, heads, width}).to(at::kBFloat16);
  };
  const Tensor q = numbers(c.heads, c.keys), k = numbers(c.state_heads, c.keys), v = numbers(c.state_heads, c.values);
  Tensor g;
  if (c.gates) g = at::rand({c.batch, c.tokens, c.state_heads}).log() * 0.3;
  if (c.cuts) g.masked_fill_(at::rand_like(g).lt(0.05), -INFINITY);
  const Tensor initial = at::randn({rows, c.state_heads, c.keys, c.values});
  const double scale = 0.125;
  std::vector<Tensor> leaves;
  for (const Tensor& x : {q, k, v, initial}) leaves.push_back(x.to(at::kDouble).requires_grad_());
  const OptionalTensor bounds = c.bounds.empty() ? OptionalTensor() : OptionalTensor(at::tensor(c.bounds, at::kLong));
  const OptionalTensor gates = c.gates ? OptionalTensor(g.to(at::kDouble)) : OptionalTensor();
  const auto [o, last] =
      gated_scan_reference(leaves[0], leaves[1], leaves[2], gates, "key", scale, {}, leaves[3], bounds, c.reverse);
  const Tensor begun = copies(initial, c.heads);
  const Run read = run(c, q, k, v, g, begun, c.reverse, 0, scale);
  expect_near(read.o, o, "o");
  expect_near(first_copy(read.last, c.state_heads), last, "last state");

  const Tensor grad_o = numbers(c.heads, c.values), grad_last = at::randn(last.sizes());
  const auto right = torch::autograd::grad({o, last}, leaves, {grad_o.to(at::kDouble), grad_last.to(at::kDouble)});
  const int next = c.reverse ? -1 : 1;
  const auto wide = [&](const Tensor& x) { return x.repeat_interleave(c.heads / c.state_heads, 2); };
  const Tensor behind = to_first_copy(grad_last, c.heads);
  const Tensor dv = run(c, wide(k), q * scale, grad_o, g, behind, !c.reverse, next, 1).o;
  expect_near(summed(dv, c.state_heads), right[2], "dv");
  if (c.values != 64 && c.values != 128) return;  // the state's other side are keys now
  const auto across = [](const Tensor& state) { return state.transpose(2, 3).contiguous(); };
  expect_near(run(c, grad_o, v, k, g, across(begun), c.reverse, 0, scale).o, right[0], "dq");
  const Tensor dk = run(c, wide(v), grad_o * scale, q, g, across(behind), !c.reverse, next, 1).o;
  expect_near(summed(dk, c.state_heads), right[1], "dk");
}

TEST(GatedScanOnGpu, EveryOrderOfThreadsAndCopies) {
  for (const bool backwards : {false, true}) {
    for (const bool alone : {false, true}) {
      for (const bool late : {false, true}) {
        const gpu::Order order{backwards, alone, late};
        check({.tokens = 200, .heads = 1, .state_heads = 1, .order = order});
        check({.tokens = 200, .heads = 1, .state_heads = 1, .parts = 2, .order = order});
      }
    }
  }
}

TEST(GatedScanOnGpu, EveryLength) {
  for (const int64_t tokens : {1, 2, 63, 64, 65, 128, 333}) check({.tokens = tokens, .heads = 1, .state_heads = 1});
}

TEST(GatedScanOnGpu, HeadsRowsAndValues) {
  check({.batch = 2, .heads = 4, .state_heads = 2});
  check({.values = 32, .batch = 2, .tokens = 70});
  check({.values = 96, .tokens = 70});
  check({.keys = 128, .values = 64});
  check({.keys = 128, .values = 128, .tokens = 130, .heads = 1, .state_heads = 1});
}

TEST(GatedScanOnGpu, GatesThatAreMissingOrCut) {
  check({.gates = false});
  check({.cuts = true});
  check({.reverse = true, .cuts = true});
}

TEST(GatedScanOnGpu, PartsOfTime) {
  check({.tokens = 500, .parts = 3});
  check({.batch = 2, .tokens = 200, .reverse = true, .cuts = true, .parts = 3});
  check({.keys = 128, .values = 128, .tokens = 130, .gates = false, .parts = 2});
  check({.tokens = 300, .cuts = true, .bounds = {0, 3, 3, 190, 300}, .parts = 4});
}

TEST(GatedScanOnGpu, Packed) {
  check({.tokens = 200, .bounds = {0, 3, 3, 130, 200}});
  check({.tokens = 200, .reverse = true, .bounds = {0, 65, 200}});
}

}  // namespace
}  // namespace cortado::gated_scan_kernel_gpu_test
