// Text files in pieces, checked on the way.
#pragma once

#include <cstdint>
#include <string>

#include "cortado/base/descriptor.h"

namespace cortado {

// Reads a file in pieces of about 1 MiB, each of whole UTF-8 characters. InputError naming the file (and the byte
// offset): missing, empty, a NUL byte (binary), not UTF-8. With `any_bytes` every byte is taken as it is and pieces may
// split characters.
class TextReader {
 public:
  TextReader(const std::string& path, bool any_bytes);

  // Appends the next piece to `text`; false at the end of the file.
  bool read(std::string& text);
  int64_t bytes_read() const { return offset_; }

 private:
  void check(const std::string& piece, size_t valid, bool at_end) const;

  std::string path_;
  bool any_bytes_;
  Descriptor file_;
  int64_t offset_ = 0;  // of the end of what was handed out
  std::string rest_;    // the start of a character whose end is in the next piece
};

}  // namespace cortado
