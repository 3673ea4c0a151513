// The memory that this process holds, from /proc (Linux).
#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace cortado {

// Resident set size in bytes; 0 where /proc is missing.
inline int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  if (!(statm >> total >> resident)) return 0;
  return resident * sysconf(_SC_PAGESIZE);
}

// The largest resident set size so far, in bytes; 0 where /proc is missing.
inline int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return 0;
}

// From here on peak_resident_bytes() says the largest size since now. Without effect where /proc is missing.
inline void reset_peak_resident_bytes() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace cortado
