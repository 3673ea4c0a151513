// Runs the GPU's checks on the CPU with its own bfloat16, to show that they can pass.
#include "cortado/bench/model_check.h"

#include <gtest/gtest.h>

#include "cortado/compare/compare.h"

namespace cortado {
namespace {

TEST(ModelCheck, BFloat16IsAsFarOffAsOnTheCpu) {
  for (const std::string& mixer : comparable_mixers()) {
    for (const auto check : {check_tokens, check_training_step}) {
      at::manual_seed(2);
      const OperatorCheck result = check(mixer, at::kCPU);
      EXPECT_TRUE(result.passed()) << mixer << " " << result.error;
      EXPECT_GT(result.error, 1e-3) << mixer;  // the types do differ
      EXPECT_LT(result.error, 0.12) << mixer;  // but by no more than rounding
    }
  }
}

TEST(OperatorCheck, BFloat16IsNearTheDefinition) {
  for (const OperatorCase& which : operator_cases()) {
    at::manual_seed(2);
    const OperatorCheck check = check_operator(which, {.tokens = 150, .heads = 2, .size = 64}, at::kBFloat16);
    EXPECT_TRUE(check.passed()) << which.name << " " << check.error;
  }
}

}  // namespace
}  // namespace cortado
