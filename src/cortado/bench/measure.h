// Measures operators, interleaved and against this machine's ceilings, after checking that they are right.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/bench/ceilings.h"
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

enum class Pass { kForward, kBoth, kStep };
const char* pass_name(Pass pass);  // "forward", "forward+backward", "step"

struct OperatorRow {
  const OperatorCase* of = nullptr;
  Pass pass = Pass::kForward;
  int64_t tokens = 0;  // of a call
  int64_t depth = 0;   // before the call: of steps, whose cost depends on it in attention to all keys alone
  int64_t threads = 0;
  double seconds = 0;  // of a call, the median of the rounds
  double flops = 0;    // of a call
  double bytes = 0;    // of a call: every input and output once (with backward: see operators_measured)
  double exps = 0;     // of a call; 0 with backward, where what is computed again is the kernel's own choice

  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
};

struct OperatorResult {
  std::vector<std::pair<int64_t, Ceilings>> ceilings;  // by number of threads; the best of before and after
  std::vector<OperatorRow> rows;
  bool done = true;  // false: stopped
};

// What is counted (B 1, H heads, K = V = size):
//   flops, forward          as the case says: 4 K V a token and head for a gated scan
//   flops, with backward    3.5 times that: two products or passes over the state forward, five backward
//   bytes, forward          inputs and output
//   bytes, with backward    3 inputs + 2 outputs: read again, and the gradients of both
//   bytes, step             the same, and the state read and written
// Each case is checked first, on inputs of the same kind; one that is wrong is a Failure and nothing is printed of it.
OperatorResult measure_operators(const OperatorRequest& request);

const Ceilings& ceilings_of(const OperatorResult& result, int64_t threads);
Json operator_json(const OperatorResult& result);

}  // namespace cortado
