#include "cortado/base/pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace cortado {
namespace {

constexpr std::uintptr_t kHugePage = std::uintptr_t{1} << 21;

}  // namespace

void prefer_huge_pages(void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage,
                       last = (begin + bytes) / kHugePage * kHugePage;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargest = 1 << 27, kKept = 1 << 29;
  if (!mallopt(M_MMAP_THRESHOLD, kLargest)) return;
  mallopt(M_TRIM_THRESHOLD, kKept);
  // The heap grows by this once; its pages, none of which is there before it is touched, are to be huge ones.
  void* volatile heap = std::malloc(kLargest - 4096);
  if (heap) prefer_huge_pages(heap, kLargest - 4096);
  std::free(heap);
#endif
}

}  // namespace cortado
