// A description of the computer, as Linux gives it.
#pragma once

#include <cstdint>
#include <string>

namespace cortado {

// Unknown values are 0 or "unknown".
struct Machine {
  std::string cpu;                                // "AMD EPYC 9B14"
  int64_t cores = 0;                              // physical cores of the machine
  int64_t threads = 0;                            // logical processors that this process may use
  int64_t memory = 0;                             // bytes; the control group's limit if that is smaller
  int64_t available = 0;                          // bytes free for new programs
  int64_t caches[4] = {};                         // bytes of the data or unified cache of levels 1, 2, 3; [0] is unused
  bool cpu_knows(const std::string& flag) const;  // whether /proc/cpuinfo's flags contain a word such as "avx512_bf16"

  std::string flags;
};

// Reads the description from /proc, /sys and the control group.
Machine this_machine();

}  // namespace cortado
