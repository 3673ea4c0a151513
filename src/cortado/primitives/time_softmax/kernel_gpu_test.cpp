// The GPU's kernel of the softmax over time, on the host (cuda/emulate.h), against the definition in float64.
#define CORTADO_EMULATE
#include <gtest/gtest.h>

#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/primitives/time_softmax/kernel.cu"
#include "cortado/primitives/time_softmax/on_gpu.h"
#include "cortado/primitives/time_softmax/op.h"
#include "cortado/testing/kernels.h"

namespace cortado::time_softmax_kernel_gpu_test {
namespace {

using softmax::GpuSoftmax, softmax::SoftmaxOp;
using testing::alone;

struct Case {
  int64_t batch = 2, tokens = 70, parts = 1;
  double size = 2;
  bool begun = true, empty = false;  // from a state; the first tokens see nothing
  std::vector<int64_t> bounds = {};
};

void check(const Case& c) {
  at::manual_seed(6);
  const auto rows = c.bounds.empty() ? c.batch : int64_t(c.bounds.size()) - 1;
  const Tensor theta = alone(at::randn({c.batch, c.tokens, 3, 50}) * c.size);
  if (c.empty) theta.narrow(1, 0, c.tokens / 2).fill_(-INFINITY);
  const auto state = [&](const Tensor& x) { return c.begun ? OptionalTensor(x) : std::nullopt; };
  const OptionalTensor normalizer = state(at::rand({rows, 3, 50}) + 1), maximum = state(at::randn({rows, 3, 50}));
  const OptionalTensor cu = c.bounds.empty() ? OptionalTensor() : OptionalTensor(at::tensor(c.bounds, at::kLong));
  const auto wide = [](const OptionalTensor& x) { return x ? OptionalTensor(x->to(at::kDouble)) : x; };
  const TimeSoftmax right = time_softmax_reference(theta.to(at::kDouble), wide(normalizer), wide(maximum), cu);
  const auto of = [](auto body) {
    return cuda::kernel_of<GpuSoftmax>([body](const GpuSoftmax& in) { body(SoftmaxOp{in}, in.times); });
  };
  using timewise::GpuTimes;
  cuda::EmulatedMachine machine({
      {"time_softmax_summarize",
       of([](const SoftmaxOp& op, const GpuTimes& times) { timewise::summarize(op, times); })},
      {"time_softmax_join", of([](const SoftmaxOp& op, const GpuTimes& times) { timewise::join(op, times); })},
      {"time_softmax_apply", of([](const SoftmaxOp& op, const GpuTimes& times) { timewise::apply(op, times); })},
  });
  const TimeSoftmax found = softmax::on_gpu(theta, normalizer.value_or(Tensor()), maximum.value_or(Tensor()),
                                            Bounds("test", cu, c.tokens), machine, c.parts);
  const auto near = [](const Tensor& x, const Tensor& y, const char* what) {
    ASSERT_EQ(x.sizes(), y.sizes()) << what;
    EXPECT_TRUE(at::allclose(x.to(at::kDouble), y, 2e-5, 2e-5)) << what;
  };
  near(found.keys, right.keys, "keys");
  near(found.gate, right.gate, "gate");
  near(found.maximum, right.maximum, "maximum");
  near(found.normalizer, right.normalizer, "normalizer");
  near(found.last_normalizer, right.last_normalizer, "last normalizer");
  near(found.last_maximum, right.last_maximum, "last maximum");
}

TEST(TimeSoftmaxOnGpu, IsTheDefinition) {
  check({});
  check({.tokens = 1, .begun = false});
  check({.size = 1e4});
  check({.begun = false, .empty = true});
}

TEST(TimeSoftmaxOnGpu, PartsAndPacked) {
  check({.parts = 3});
  check({.parts = 5, .begun = false, .empty = true});
  check({.batch = 1, .parts = 3, .bounds = {0, 4, 4, 70}});
  check({.tokens = 300, .parts = 0});
}

}  // namespace
}  // namespace cortado::time_softmax_kernel_gpu_test
