// What the tests of kernels need: every instruction set, awkward memory, poisoned results.
#pragma once

#include <ATen/Context.h>

#include "cortado/base/isa.h"

namespace cortado::testing {

using at::Tensor;

// What torch leaves uninitialised is NaN while one lives: a result that is not written shows.
class Poisoned {
 public:
  Poisoned() { at::globalContext().setDeterministicAlgorithms(true, true); }
  ~Poisoned() { at::globalContext().setDeterministicAlgorithms(false, false); }
};

// Back to the best instruction set at the end of a test.
class AnyIsa {
 public:
  ~AnyIsa() { select_isa(""); }
};

// The same numbers, lying awkwardly: misaligned, with gaps between rows, heads before time, or with gaps between
// elements.
inline Tensor awkward(const Tensor& x, int64_t how) {
  if (!x.defined() || x.dim() < 3) return x;
  std::vector<int64_t> sizes = x.sizes().vec();
  Tensor y;
  if (how == 0) {
    sizes.back() += 3;
    y = at::empty(sizes, x.options()).narrow(-1, 1, x.size(-1));
  } else if (how == 1) {
    std::swap(sizes[1], sizes[2]);
    y = at::empty(sizes, x.options()).transpose(1, 2);
  } else {
    sizes.back() *= 2;
    y = at::empty(sizes, x.options()).slice(-1, 0, sizes.back(), 2);
  }
  return y.copy_(x);
}

}  // namespace cortado::testing
