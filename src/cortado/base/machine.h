// The computer that this runs on, as Linux describes it.
#pragma once

#include <cstdint>
#include <string>

namespace cortado {

// What can't be found out is 0 or "unknown".
struct Machine {
  std::string cpu;                                // "AMD EPYC 9B14"
  int64_t cores = 0;                              // physical ones, in all
  int64_t threads = 0;                            // logical processors that this process may use
  int64_t memory = 0;                             // bytes; what the control group allows, where that is less
  int64_t available = 0;                          // bytes free for new programs
  int64_t caches[4] = {};                         // bytes of the data (or common) cache of level 1, 2, 3; [0] is unused
  bool cpu_knows(const std::string& flag) const;  // a word of /proc/cpuinfo's flags: "avx512_bf16"

  std::string flags;
};

Machine this_machine();

}  // namespace cortado
