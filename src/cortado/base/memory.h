// The memory of this process (Linux).
#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace cortado {

// Returns the resident set size in bytes; 0 without /proc.
inline int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  if (!(statm >> total >> resident)) return 0;
  return resident * sysconf(_SC_PAGESIZE);
}

// Returns the largest resident set size so far in bytes; 0 without /proc.
inline int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return 0;
}

// Restarts the measurement of peak_resident_bytes(). No effect without /proc.
inline void reset_peak_resident_bytes() { std::ofstream("/proc/self/clear_refs") << "5"; }

// From now on, memory that this thread frees stays with the process for later allocations, up to half a gigabyte. A
// model allocates and frees the same activations layer by layer, and touching fresh pages (4 KiB at a time) costs more
// than filling them, often more than a matrix product. Larger blocks go back to the system as usual. For programs, not
// for libraries; glibc only.
void keep_freed_memory();

}  // namespace cortado
