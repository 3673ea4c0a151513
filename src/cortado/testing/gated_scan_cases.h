// Shared by the gated scan's tests: cases, their inputs, and the results and gradients of a case.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "cortado/primitives/common.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/testing/compare.h"

namespace cortado::gated_cases {

inline const std::vector<std::string> kGates = {"none", "head", "channel", "constant", "constant channel"};

// The options and sizes of a call.
struct Case {
  std::string gate = "channel";  // one of kGates
  std::string read = "key";
  int64_t tokens = 64;
  bool reverse = false, initial = true, bonus = false;
  int64_t batch = 2, q_heads = 2, k_heads = 2, v_heads = 2, g_heads = 2, keys = 5, values = 3;
  std::vector<int64_t> bounds = {};  // packed sequences if not empty
  double decay = 1;                  // factor on the size of the gates

  int64_t state_heads() const { return std::max({k_heads, v_heads, gate == "none" ? 1 : g_heads}); }
  std::string text() const {
    return concat(gate, " read=", read, " T=", tokens, reverse ? " reverse" : "", initial ? " initial" : "",
                  bonus ? " bonus" : "", bounds.empty() ? "" : " packed", " heads ", q_heads, k_heads, v_heads, g_heads,
                  " K=", keys, " V=", values, " decay ", decay);
  }
};

struct Inputs {
  std::vector<Tensor> tensors;  // q, k, v, g, bonus, initial state; undefined: not given
  Tensor bounds;
};

// Returns random inputs in float64, the same for equal cases.
inline Inputs random_inputs(const Case& c) {
  at::manual_seed(7);
  const auto normal = [](std::vector<int64_t> sizes) { return at::randn(sizes, at::kDouble); };
  Inputs in;
  in.tensors = {normal({c.batch, c.tokens, c.q_heads, c.read == "key" ? c.keys : c.values}),
                normal({c.batch, c.tokens, c.k_heads, c.keys}), normal({c.batch, c.tokens, c.v_heads, c.values})};
  Tensor g;
  if (c.gate == "head") g = normal({c.batch, c.tokens, c.g_heads});
  if (c.gate == "channel") g = normal({c.batch, c.tokens, c.g_heads, c.keys});
  if (c.gate == "constant") g = normal({c.g_heads});
  if (c.gate == "constant channel") g = normal({c.g_heads, c.keys});
  in.tensors.push_back(g.defined() ? g.abs() * -c.decay : g);
  in.tensors.push_back(c.bonus ? normal({std::max(c.q_heads, c.state_heads()), c.keys}) : Tensor());
  const int64_t rows = c.bounds.empty() ? c.batch : static_cast<int64_t>(c.bounds.size()) - 1;
  in.tensors.push_back(c.initial ? normal({rows, c.state_heads(), c.keys, c.values}) : Tensor());
  if (!c.bounds.empty()) in.bounds = at::tensor(c.bounds, at::kInt);
  return in;
}

inline Inputs converted(Inputs in, at::ScalarType type) {
  for (auto& x : in.tensors) {
    if (x.defined()) x = x.to(type);
  }
  return in;
}

// Returns o, the final state, and the gradients of all inputs for random weights on both outputs.
inline std::vector<Tensor> results(const Case& c, const Inputs& in, bool reference) {
  std::vector<Tensor> leaves, wanted;
  for (const auto& x : in.tensors) {
    leaves.push_back(x.defined() ? x.detach().clone().requires_grad_() : x);
    if (x.defined()) wanted.push_back(leaves.back());
  }
  const auto given = [](const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; };
  const auto [o, state] = (reference ? gated_scan_reference : gated_scan)(
      leaves[0], leaves[1], leaves[2], given(leaves[3]), c.read, std::nullopt, given(leaves[4]), given(leaves[5]),
      given(in.bounds), c.reverse);
  at::manual_seed(11);
  const Tensor weight_o = at::randn(o.sizes(), at::kDouble).to(o.scalar_type());
  const Tensor weight_state = at::randn(state.sizes(), at::kDouble).to(state.scalar_type());
  std::vector<Tensor> all{o.detach(), state.detach()};
  std::vector<Tensor> outputs{o}, weights{weight_o};
  if (state.requires_grad()) {  // without tokens and an initial state it has no gradient
    outputs.push_back(state);
    weights.push_back(weight_state);
  }
  const auto grads = torch::autograd::grad(outputs, wanted, weights, {}, false, true);
  for (size_t i = 0; i < grads.size(); ++i) {
    all.push_back(grads[i].defined() ? grads[i] : at::zeros_like(wanted[i]));
  }
  return all;
}

// Returns the names of the tensors that results() gives.
inline std::vector<std::string> names(const Inputs& in) {
  std::vector<std::string> list{"o", "final_state"};
  const char* all[] = {"dq", "dk", "dv", "dg", "dbonus", "dinitial"};
  for (size_t i = 0; i < in.tensors.size(); ++i) {
    if (in.tensors[i].defined()) list.push_back(all[i]);
  }
  return list;
}

// Expects relative errors below `tolerance`. `what` describes the case in messages.
inline void expect_equal(const std::vector<Tensor>& got, const std::vector<Tensor>& right,
                         const std::vector<std::string>& name, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), right.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].sizes(), right[i].sizes()) << name[i] << " " << what;
    EXPECT_LT(testing::relative_error(got[i], right[i]), tolerance) << name[i] << " " << what;
  }
}

}  // namespace cortado::gated_cases
