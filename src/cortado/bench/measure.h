// Measures operators, in turns and relative to this machine's ceilings, after checking their results.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/bench/operators.h"

namespace cortado {

// What to measure: every case at every length and number of threads.
struct OperatorRequest {
  std::vector<const OperatorCase*> cases;
  std::vector<int64_t> tokens = {256, 1024, 4096, 16384, 65536};
  int64_t heads = 4, size = 64;
  std::vector<int64_t> threads;  // numbers of threads to measure, in turns; empty: torch's current number
  int64_t rounds = 5;
  at::ScalarType dtype = at::kFloat;
  bool progress = true;
  std::function<bool()> stop;
};

// What is counted (B 1, H heads, K = V = size):
//    flops, forward          stated by the case: 4 K V per token and head for a gated scan
//    flops, with backward    3.5 times that: two products or passes over the state in forward, five in backward
//    bytes, forward          inputs and output
//    bytes, with backward    3 inputs + 2 outputs: they are read again, and their gradients are written and read
//    bytes, step             as forward, plus the state read and written
// Each case is checked first on inputs of the measured kind. Throws Failure, and measures nothing, if one is wrong.
// Returns {"ceilings": one per number of threads, the better of before and after, "rows": one per case, pass, length
// and number of threads}. If stopped, the rows measured so far.
Json measure_operators(const OperatorRequest& request);

}  // namespace cortado
