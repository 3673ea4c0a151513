// In test programs, every tensor's memory and the bytes around it are initialised to NaN, and the bytes around it are
// checked when the tensor is freed. A read of memory that nothing wrote, or past a tensor's end, shows in a result; a
// write outside a tensor fails the test. Address sanitizers find more.
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace cortado::testing {
namespace {

constexpr size_t kAround = 512, kAlignment = 64;  // bytes; kAround is one row of a head
constexpr unsigned char kFill = 0xFF;             // NaN in every floating type, -1 in integers

bool untouched(const unsigned char* from, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    if (from[i] != kFill) return false;
  }
  return true;
}

// Memory layout: [size, fill | the tensor's bytes | fill]
void give_back(void* data) {
  if (!data) return;
  unsigned char* begin = static_cast<unsigned char*>(data) - kAround;
  size_t size = 0;
  std::memcpy(&size, begin, sizeof(size));
  if (!untouched(begin + sizeof(size), kAround - sizeof(size)) || !untouched(begin + kAround + size, kAround)) {
    ADD_FAILURE() << "something was written beside a tensor of " << size << " bytes";
  }
  std::free(begin);
}

class GuardedMemory : public at::Allocator {
 public:
  at::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, nullptr, &give_back, c10::DeviceType::CPU};
    const size_t bytes = (size + 2 * kAround + kAlignment - 1) / kAlignment * kAlignment;
    auto* begin = static_cast<unsigned char*>(std::aligned_alloc(kAlignment, bytes));
    TORCH_CHECK_WITH(OutOfMemoryError, begin, "no memory for a tensor of ", size, " bytes");
    std::memset(begin, kFill, size + 2 * kAround);
    std::memcpy(begin, &size, sizeof(size));
    void* data = begin + kAround;
    return {data, data, &give_back, c10::DeviceType::CPU};
  }
  at::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};

GuardedMemory memory;
const bool used = (c10::SetCPUAllocator(&memory), true);

}  // namespace
}  // namespace cortado::testing
