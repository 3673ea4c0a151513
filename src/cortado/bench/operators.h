// What `cortado bench ops` measures and `cortado doctor` tries: every primitive and every mechanism that is an
// operator, with typical inputs, its definition to check against, and how much work it is.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

namespace cortado {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// One sequence (B 1) of H heads with K = V = L = M = size; D = H · size where there are no heads.
struct OperatorSizes {
  int64_t tokens = 4096, heads = 4, size = 64;
};

// Work of a forward pass, a token and all heads together.
struct Work {
  double flops = 0;  // of the recurrence or of the visible pairs; a multiplication and an addition count 2
  double exps = 0;   // exponentials
};

struct OperatorCase {
  std::string name = {};                                     // "gated_scan/head"
  std::string operation = {};                                // "gated_scan"
  std::string note = {};                                     // what it is, for the table's legend
  std::function<Tensors(const OperatorSizes&)> inputs = {};  // float32
  // The output first, then what the next call goes on from. Of whole sequences if nothing is `carried`, else of one
  // token after those that it stands for (at first: what the whole gave after its output).
  std::function<Tensors(const Tensors& in, const Tensors& carried)> call = {};
  bool steps = true;  // false: the operator takes whole sequences only
  // The definition's results, as many of a whole call's as it has.
  std::function<Tensors(const Tensors&)> reference = {};
  std::function<Work(const OperatorSizes&)> work = {};
  int64_t most_tokens = 0;  // more are not worth the wait; 0: no limit

  Tensors forward(const Tensors& in) const { return call(in, {}); }
};

const std::vector<OperatorCase>& operator_cases();

// Those named: by case ("gated_scan/head") or by operation ("gated_scan": all its cases); every case if none is named.
// InputError names the nearest.
std::vector<const OperatorCase*> find_operator_cases(const std::vector<std::string>& names);

// The largest error of outputs and gradients against the definition in float64, each over the largest value of its
// tensor (a gradient far below the largest of them, over a hundredth of that one's). Infinite where not finite.
struct OperatorCheck {
  double error = 0;
  double tolerance = 0;  // what `dtype` allows
  bool passed() const { return error <= tolerance; }
};
OperatorCheck check_operator(const OperatorCase& which, OperatorSizes sizes, at::ScalarType dtype);

// Copies of the inputs in `dtype`, as leaves of a graph if so wished.
Tensors typed_inputs(const Tensors& inputs, at::ScalarType dtype, bool differentiable);
// <o, grad_o> differentiated with respect to the inputs.
Tensors operator_gradients(const Tensor& o, const Tensor& grad_o, const Tensors& inputs);

}  // namespace cortado
