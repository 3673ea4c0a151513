// A fast 64-bit checksum: any single flipped bit changes it, and so, all but surely, does any other damage. Not
// cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace cortado {

class Checksum {
 public:
  // What is added in two pieces differs from the same bytes added in one: each piece counts with its length.
  // `read` is told of every few MiB that have been read.
  void add(const void* bytes, size_t count, const std::function<void(const void*, size_t)>& read = nullptr);
  void add(std::string_view text) { add(text.data(), text.size()); }

  std::string hex() const;  // 16 digits

 private:
  uint64_t state_ = 0x9E3779B97F4A7C15ULL;
};

}  // namespace cortado
