// The runtime without a GPU: what it reports without a driver; and, with the fake driver of
// tests/tools/test_cuda_runtime.py, which logs its calls, how kernels are compiled, cached, loaded and launched.
#include "cortado/primitives/cuda/runtime.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "cortado/base/error.h"

namespace cortado::cuda_runtime_test {
namespace {

bool pretended() { return std::getenv("CORTADO_PRETENDED_CUDA") != nullptr; }

TEST(CudaRuntime, SaysWhyThereIsNoGpu) {
  if (cuda::usable(0)) GTEST_SKIP() << "there is one";
  EXPECT_NE(cuda::why_not(0), "");
  EXPECT_THROW(cuda::machine(0), Failure);
  EXPECT_THROW(cuda::describe(0), Failure);
}

TEST(CudaRuntime, HasEveryKernelFile) {
  ASSERT_GE(cuda::sources().size(), 4u);
  for (const auto& source : cuda::sources()) EXPECT_NE(std::string(source.text).find("__global__"), std::string::npos);
}

TEST(CudaRuntime, SaysWhatDoesNotCompile) {
  EXPECT_THROW(cuda::compile("no_such/kernel", "", "sm_90a"), Failure);
  if (!pretended()) return;
  try {
    cuda::compile("gated_scan/kernel", "KEYS=no_number", "sm_90a");
    FAIL();
  } catch (const Failure& failure) {
    const std::string text = failure.what();
    EXPECT_NE(text.find("[cuda] gated_scan/kernel for sm_90a: "), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

TEST(CudaRuntime, ChoosesTheArchitecture) {
  if (!std::getenv("CORTADO_PRETENDED_CAPABILITY")) GTEST_SKIP() << "tests/tools/test_cuda_runtime.py runs this";
  std::cout << "chosen: " << (cuda::usable(0) ? cuda::describe(0).architecture : cuda::why_not(0)) << std::endl;
}

// Two launches of one kernel, one of another of the same file.
TEST(CudaRuntime, CompilesKeepsAndLaunches) {
  if (!pretended()) GTEST_SKIP() << "tests/tools/test_cuda_runtime.py runs this";
  cuda::Machine& machine = cuda::machine(0);
  EXPECT_EQ(machine.multiprocessors(), 132);
  EXPECT_EQ(machine.shared_bytes(), 232448);
  EXPECT_EQ(cuda::describe(0).name, "Pretended GPU");
  EXPECT_EQ(cuda::describe(0).architecture, "sm_90a");
  EXPECT_FALSE(cuda::capturing(0));
  EXPECT_TRUE(cuda::capturing(0));
  struct {
    int number = 7;
    float other = 0.5f;
  } argument;
  machine.launch({"time_softmax/kernel", "", "time_softmax_join", 128}, {3, 2, 1}, &argument);
  argument.number = 8;
  machine.launch({"time_softmax/kernel", "", "time_softmax_join", 128}, {4, 5, 6}, &argument);
  machine.launch({"time_softmax/kernel", "", "time_softmax_apply", 64, 100000}, {1}, &argument);
  const auto counted = cuda::statistics();
  EXPECT_EQ(counted.launched, 3);
  EXPECT_EQ(counted.compiled + counted.from_disk, 1);
  std::cout << "compiled " << counted.compiled << " from disk " << counted.from_disk << std::endl;
  EXPECT_THROW(machine.launch({"time_softmax/kernel", "", "no_such_kernel", 128}, {1}, &argument), Failure);
}

}  // namespace
}  // namespace cortado::cuda_runtime_test
