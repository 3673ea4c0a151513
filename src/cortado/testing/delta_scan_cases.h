// Shared by the delta scan's tests: cases, their inputs, and the results and gradients of a case.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/primitives/common.h"
#include "cortado/primitives/delta_scan/op.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/kernels.h"

namespace cortado::delta_cases {

inline const std::vector<std::string> kGates = {"none", "head", "channel", "constant", "constant channel"};
inline const std::vector<std::string> kNames = {"o", "final_state", "dq", "dk", "dv", "dbeta", "dg", "dinitial"};

// The options and sizes of a call.
struct Case {
  std::string gate = "channel";  // one of kGates
  int64_t tokens = 64;
  bool initial = true;
  int64_t batch = 2, q_heads = 2, k_heads = 2, v_heads = 2, beta_heads = 2, g_heads = 2, keys = 5, values = 3;
  std::vector<int64_t> bounds = {};  // packed sequences if not empty
  double decay = 1;                  // factor on the size of the gates

  int64_t state_heads() const { return std::max({k_heads, v_heads, beta_heads, gate == "none" ? 1 : g_heads}); }
  std::string text() const {
    return concat(gate, " T=", tokens, initial ? " initial" : "", bounds.empty() ? "" : " packed", " heads ", q_heads,
                  k_heads, v_heads, beta_heads, g_heads, " K=", keys, " V=", values, " decay ", decay);
  }
};

struct Inputs {
  std::vector<Tensor> tensors;  // q, k, v, beta, g, initial state; undefined: not given
  Tensor bounds;
};

// Returns random inputs in float64, the same for equal cases.
inline Inputs random_inputs(const Case& c) {
  at::manual_seed(7);
  const auto normal = [](std::vector<int64_t> sizes) { return at::randn(sizes, at::kDouble); };
  const Tensor k = normal({c.batch, c.tokens, c.k_heads, c.keys});
  Tensor g;
  if (c.gate == "head") g = normal({c.batch, c.tokens, c.g_heads});
  if (c.gate == "channel") g = normal({c.batch, c.tokens, c.g_heads, c.keys});
  if (c.gate == "constant") g = normal({c.g_heads});
  if (c.gate == "constant channel") g = normal({c.g_heads, c.keys});
  const int64_t rows = c.bounds.empty() ? c.batch : static_cast<int64_t>(c.bounds.size()) - 1;
  Inputs in;
  in.tensors = {normal({c.batch, c.tokens, c.q_heads, c.keys}),
                k / at::linalg_vector_norm(k, 2, at::IntArrayRef{-1}, true),
                normal({c.batch, c.tokens, c.v_heads, c.values}),
                at::rand({c.batch, c.tokens, c.beta_heads}, at::kDouble) * 2,  // up to 2: reflections
                g.defined() ? g.abs() * -c.decay : g,
                c.initial ? normal({rows, c.state_heads(), c.keys, c.values}) : Tensor()};
  if (!c.bounds.empty()) in.bounds = at::tensor(c.bounds, at::kInt);
  return in;
}

inline Inputs converted(Inputs in, at::ScalarType type) {
  for (auto& x : in.tensors) {
    if (x.defined()) x = x.to(type);
  }
  return in;
}

// Returns tensors in the order of kNames: outputs, then gradients for random weights on both outputs; undefined for
// inputs that were not given. With a `layout` (see testing::awkward), inputs and the output's gradient have that memory
// layout.
inline std::vector<Tensor> results(const Inputs& in, bool reference, int64_t layout = -1) {
  const auto laid = [layout](const Tensor& x) { return layout < 0 ? x : testing::awkward(x, layout); };
  std::vector<Tensor> leaves, wanted;
  for (const auto& x : in.tensors) {
    leaves.push_back(x.defined() ? laid(x.detach().clone()).requires_grad_() : x);
    if (x.defined()) wanted.push_back(leaves.back());
  }
  const auto given = [](const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; };
  const auto [o, state] = (reference ? delta_scan_reference : delta_scan)(
      leaves[0], leaves[1], leaves[2], leaves[3], given(leaves[4]), std::nullopt, given(leaves[5]), given(in.bounds));
  at::manual_seed(11);
  const Tensor weight_o = at::randn(o.sizes(), at::kDouble).to(o.scalar_type());
  const Tensor weight_state = at::randn(state.sizes(), at::kDouble).to(state.scalar_type());
  const auto grads = testing::gradients({o, state}, {laid(weight_o), weight_state}, wanted);
  std::vector<Tensor> all{o.detach(), state.detach()};
  size_t next = 0;
  for (const auto& x : in.tensors) all.push_back(x.defined() ? grads[next++] : Tensor());
  return all;
}

// Expects relative errors below `tolerance`. `what` describes the case in messages.
inline void expect_same(const std::vector<Tensor>& got, const std::vector<Tensor>& right, double tolerance,
                        const std::string& what) {
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), right[i].defined());
    if (!got[i].defined()) continue;
    ASSERT_EQ(got[i].sizes(), right[i].sizes()) << kNames[i] << " " << what;
    EXPECT_LT(testing::relative_error(got[i], right[i]), tolerance) << kNames[i] << " " << what;
  }
}

}  // namespace cortado::delta_cases
