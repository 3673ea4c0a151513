// A fast 64-bit checksum. A single flipped bit always changes it; other damage goes unnoticed only by an unlikely
// coincidence. It is not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace cortado {

class Checksum {
 public:
  // Adds a piece together with its length: two calls give another checksum than one call with the joined bytes. Calls
  // `read` after every 4 MiB and at the end, with the bytes that have just been read.
  void add(const void* bytes, size_t count, const std::function<void(const void*, size_t)>& read = nullptr);
  void add(std::string_view text) { add(text.data(), text.size()); }

  std::string hex() const;  // 16 digits

 private:
  uint64_t state_ = 0x9E3779B97F4A7C15ULL;
};

}  // namespace cortado
