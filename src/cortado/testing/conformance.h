// Test fixture: a mixer of every mechanism, with the settings of each of its examples.
#pragma once

#include <gtest/gtest.h>

#include "cortado/mechanisms/registry.h"
#include "cortado/nn/weights.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/subjects.h"

namespace cortado::testing {

// Every mixer of the suite has this width and number of heads.
inline constexpr int64_t kWidth = 24, kHeads = 4;

// Returns the mixer's parameters, then x.
inline std::vector<Tensor> leaves(Mixer& mixer, const Tensor& x) {
  std::vector<Tensor> all = mixer.parameters();
  all.push_back(x);
  return all;
}

class Conformance : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override { at::manual_seed(20); }

  std::shared_ptr<Mixer> make(at::ScalarType type = at::kDouble) const {
    Json settings = parse_json(GetParam().settings, "example");
    settings["mixer"] = GetParam().mechanism->name;
    MixerContext context;
    context.dim = kWidth;
    context.heads = kHeads;
    context.layer = 1;
    context.layers = 3;
    context.causal = GetParam().causal;
    auto mixer = make_mixer(settings, context, "example");
    for (auto& parameter : mixer->parameters()) {  // biases and the like start at 0, which would hide errors in them
      at::NoGradGuard no_grad;
      parameter.add_(at::randn_like(parameter) * 0.1);
    }
    mixer->to(type);
    return mixer;
  }

  static Tensor inputs(int64_t batch, int64_t tokens, at::ScalarType type = at::kDouble) {
    return at::randn({batch, tokens, kWidth}, type).requires_grad_(true);
  }
  static SequenceState fresh(Mixer& mixer, int64_t rows, const Tensor& x) {
    return mixer.zero_state(rows, x.options().requires_grad(false));
  }
};

// Copies all weights of `from` to `to`, which has the same structure.
inline void copy_weights(Mixer& to, const Mixer& from) {
  at::NoGradGuard no_grad;
  for (auto& weight : named_weights(to)) weight.value().copy_(named_weights(from)[weight.key()]);
}

// Compares two computations of y from x: outputs and every gradient.
inline void expect_same_with_gradients(Mixer& mixer, const Tensor& x, const Tensor& actual, const Tensor& expected,
                                       double tolerance) {
  EXPECT_CLOSE(actual, expected, tolerance);
  const auto weights = weights_like({expected});
  const auto of = leaves(mixer, x);
  const auto got = gradients({actual}, weights, of), wanted = gradients({expected}, weights, of);
  expect_gradients_close(got, wanted, tolerance, mixer.named_parameters().keys());
}

}  // namespace cortado::testing
