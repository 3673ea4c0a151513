#include "cortado/base/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace cortado {

void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargest = 1 << 27, kKept = 1 << 29;
  if (!mallopt(M_MMAP_THRESHOLD, kLargest)) return;
  mallopt(M_TRIM_THRESHOLD, kKept);
  // Allocates once to grow the heap, and asks for huge pages there. Pages get memory only when they are touched.
  constexpr std::uintptr_t kHugePage = std::uintptr_t{1} << 21;
  void* volatile heap = std::malloc(kLargest - 4096);
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(heap) % kHugePage;
  if (heap) madvise(static_cast<char*>(heap) + (kHugePage - past), kLargest - 2 * kHugePage, MADV_HUGEPAGE);
  std::free(heap);
#endif
}

}  // namespace cortado
