// The cross entropy as a GPU computes it, on the host (cuda/emulate.h), against float64.
#define CORTADO_EMULATE
#include <gtest/gtest.h>

#include "cortado/nn/cross_entropy/kernel.cu"
#include "cortado/nn/cross_entropy/on_gpu.h"
#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/testing/gpu_kernels.h"
#include "cortado/testing/kernels.h"

namespace cortado::cross_entropy_gpu_test {
namespace {

using testing::alone, testing::expect_near;

void check(int64_t rows, int64_t classes, double size, gpu::Order order = {}) {
  at::manual_seed(4);
  cuda::EmulatedMachine machine({{"cross_entropy", cuda::kernel_of<entropy::GpuCrossEntropy>(
                                                       [](const auto& in) { entropy::cross_entropy(in); })}},
                                order);
  const Tensor logits = alone((at::randn({rows, classes}) * size).to(at::kBFloat16));
  logits.select(0, 0).narrow(0, 0, classes / 2).fill_(-INFINITY);
  const Tensor targets = alone(at::randint(classes / 2, classes, {rows}, at::kLong));
  const Tensor wide = logits.to(at::kDouble), log_p = at::log_softmax(wide, 1);
  const Tensor right = -log_p.gather(1, targets.unsqueeze(1)).squeeze(1);
  const Tensor kept = alone(logits.clone());
  expect_near(entropy::losses_on_gpu(kept, targets, false, machine), right, "losses", 1e-5);
  EXPECT_TRUE(at::equal(kept, logits));
  expect_near(entropy::losses_on_gpu(kept, targets, true, machine), right, "losses", 1e-5);
  const Tensor slope = log_p.exp().scatter_add(1, targets.unsqueeze(1), at::full({rows, 1}, -1.0, at::kDouble));
  expect_near(kept, slope, "gradient", 4e-3);
}

TEST(CrossEntropyOnGpu, IsTheDefinition) {
  check(3, 8, 1);
  check(2, 4104, 3);
  check(2, 13 * 4096 + 24, 1e3);
  for (const bool backwards : {false, true}) check(2, 520, 2, {.backwards = backwards, .warps_alone = !backwards});
}

TEST(CrossEntropyOnGpu, ATargetThatIsNoClassHasNoLoss) {
  cuda::EmulatedMachine machine({{"cross_entropy", cuda::kernel_of<entropy::GpuCrossEntropy>(
                                                       [](const auto& in) { entropy::cross_entropy(in); })}});
  const Tensor logits = alone(at::randn({2, 16}).to(at::kBFloat16)), targets = alone(at::tensor({16, 3}, at::kLong));
  const Tensor found = entropy::losses_on_gpu(logits, targets, true, machine);
  EXPECT_TRUE(at::equal(found.isnan().to(at::kLong), at::tensor({1, 0}, at::kLong)));
}

}  // namespace
}  // namespace cortado::cross_entropy_gpu_test
