#include "cortado/primitives/kernels/kept_memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <list>
#include <mutex>
#include <unordered_map>

namespace cortado::kernels {
namespace {

constexpr std::size_t kHugePage = std::size_t{1} << 21;

std::size_t most_waiting() {
#if defined(__SANITIZE_ADDRESS__)
  return 0;  // keeps no freed memory, so that use after free is detected
#else
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) / 16;
#endif
}

struct Block {
  void* data;
  std::size_t bytes;
};

Block new_block(std::size_t bytes) {
  void* data = nullptr;
  TORCH_CHECK_WITH(OutOfMemoryError, posix_memalign(&data, kHugePage, bytes) == 0, "no memory for a result of ", bytes,
                   " bytes");
  madvise(data, bytes, MADV_HUGEPAGE);
  return {data, bytes};
}

class KeptMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const Block block = take((bytes + kHugePage - 1) / kHugePage * kHugePage);
    return {block.data, block.data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  // Never destroyed: tensors may outlive every static object.
  static KeptMemory& the() {
    static auto* const it = new KeptMemory;
    return *it;
  }

 private:
  // Takes the smallest waiting block that is large enough but not much larger.
  Block take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto best = waiting_.end();
    for (auto i = waiting_.begin(); i != waiting_.end(); ++i) {
      if (i->bytes >= bytes && i->bytes <= bytes + bytes / 4 && (best == waiting_.end() || i->bytes < best->bytes)) {
        best = i;
      }
    }
    Block block{};
    if (best == waiting_.end()) {
      block = new_block(bytes);
    } else {
      block = *best;
      waiting_.erase(best);
      waiting_bytes_ -= block.bytes;
    }
    used_[block.data] = block.bytes;
    return block;
  }

  static void give_back(void* data) { the().keep(data); }

  void keep(void* data) {
    const std::lock_guard lock(mutex_);
    const auto used = used_.find(data);
    waiting_.push_front({data, used->second});  // the first is the one most recently in the caches
    waiting_bytes_ += used->second;
    used_.erase(used);
    while (waiting_bytes_ > most_) {
      waiting_bytes_ -= waiting_.back().bytes;
      free(waiting_.back().data);
      waiting_.pop_back();
    }
  }

  std::mutex mutex_;
  std::list<Block> waiting_;
  std::unordered_map<void*, std::size_t> used_;
  std::size_t waiting_bytes_ = 0;
  const std::size_t most_ = most_waiting();
};

}  // namespace

c10::Allocator* kept_memory() { return &KeptMemory::the(); }

}  // namespace cortado::kernels
