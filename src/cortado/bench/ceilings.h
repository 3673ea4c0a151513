// What this machine can do at most, measured: what a kernel's speed is held against.
#pragma once

#include <string>

#include "cortado/base/json.h"

namespace cortado {

// With torch's current number of threads; the best of several tries each. All float32.
struct Ceilings {
  double fma_flops = 0;     // a second, of multiply-adds on registers
  double matmul_flops = 0;  // of the best matrix product that torch has
  std::string matmul;       // which that was: "MKL 2048", "oneDNN 1024"
  double read_bytes = 0;    // a second, of reading 256 MiB
  double stream_bytes = 0;  // of a + 3 b into a third buffer, 64 MiB each: 12 bytes an element
  double exps = 0;          // a second, of our own vectors' exp, in the first-level cache

  void raise_to(const Ceilings& other);  // the better of each
  Json to_json() const;
};

// Takes about half a second.
Ceilings measure_ceilings();

}  // namespace cortado
