// The memory that this process holds (Linux).
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

// Pages of memory: to touch new ones, 4 KiB at a time, costs more than to fill them.
// From now on memory that this thread frees stays with the program, up to half a gigabyte, for what it takes next: a
// model takes and frees the same activations layer by layer, and new pages would cost more than many a product. Larger
// pieces are given back as always. For programs; with glibc only.
void keep_freed_memory();

}  // namespace cortado
