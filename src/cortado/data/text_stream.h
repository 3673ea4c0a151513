// Streams texts of any size as pieces of documents.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/base/files.h"

namespace cortado {

// Reads files one after the other and cuts them into documents. Each file is one document; with a separator, the text
// between two separators is. Separators belong to no document; empty documents are skipped. Needs a few MiB of memory.
class DocumentStream {
 public:
  // next() throws InputError for a missing file and, unless `any_bytes`, for a NUL byte (a binary file) or text that is
  // not UTF-8. `progress` is called from time to time with the number of bytes read so far.
  DocumentStream(std::vector<std::string> files, std::string separator, bool any_bytes,
                 std::function<void(int64_t)> progress = {});

  struct Piece {
    // never empty; ends at a line if possible, and always at a whole character (unless any_bytes)
    std::string_view text;
    bool starts_document = false;  // whether it is the first piece of a document
  };
  bool next(Piece& piece);  // false after the last file; the piece is valid until the next call

 private:
  void read_on(std::string_view text);
  bool take(Piece& piece, size_t count);

  std::vector<std::string> files_;
  std::string separator_;
  bool any_bytes_;
  std::function<void(int64_t)> progress_;
  std::unique_ptr<const MappedFile> map_;  // the current file
  size_t file_ = 0;
  int64_t bytes_before_ = 0;  // bytes of the finished files
  size_t begin_ = 0;          // the text before this byte has been returned
  size_t read_ = 0;           // the text before this byte has been checked
  bool document_open_ = false;
};

// Number of characters in valid UTF-8.
int64_t count_characters(std::string_view text);

// Number of bytes of the first `count` characters.
size_t bytes_of_characters(std::string_view text, int64_t count);

}  // namespace cortado
