// Measures operators, interleaved and against this machine's ceilings, after checking that they are right.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/bench/operators.h"

namespace cortado {

struct OperatorRequest {
  std::vector<const OperatorCase*> cases;
  std::vector<int64_t> tokens = {256, 1024, 4096, 16384, 65536};
  int64_t heads = 4, size = 64;
  std::vector<int64_t> threads;  // each number of threads, in turns; empty: torch's own
  int64_t rounds = 5;
  at::ScalarType dtype = at::kFloat;
  bool progress = true;
  std::function<bool()> stop;
};

// What is counted (B 1, H heads, K = V = size):
//   flops, forward          as the case says: 4 K V a token and head for a gated scan
//   flops, with backward    3.5 times that: two products or passes over the state forward, five backward
//   bytes, forward          inputs and output
//   bytes, with backward    3 inputs + 2 outputs: read again, and the gradients of both
//   bytes, step             the same, and the state read and written
// Each case is checked first, on inputs of the same kind; one that is wrong is a Failure and nothing is printed of it.
// {"ceilings": one for each number of threads, the best of before and after, "rows": one a case, pass, length and number
// of threads, as far as it came}.
Json measure_operators(const OperatorRequest& request);

}  // namespace cortado
