// Texts as a stream of documents' pieces, whatever their size.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/base/files.h"

namespace cortado {

// Reads files one after the other and cuts them into documents: each file is one, or, with a separator, what lies
// between two separators (which belong to no document; empty documents are left out). Memory: a few MiB.
class DocumentStream {
 public:
  // InputError where it comes to a file that is missing, or, unless `any_bytes`, has a NUL byte (binary) or is not
  // UTF-8. progress: called with the bytes read so far, now and then.
  DocumentStream(std::vector<std::string> files, std::string separator, bool any_bytes,
                 std::function<void(int64_t)> progress = {});

  struct Piece {
    std::string_view text;  // never empty; ends at a line where it can, always at a whole character (unless any_bytes)
    bool starts_document = false;  // the first piece of a document
  };
  bool next(Piece& piece);  // false at the end of the last file; the piece lives until the next call

 private:
  void read_on(std::string_view text);
  bool take(Piece& piece, size_t count);

  std::vector<std::string> files_;
  std::string separator_;
  bool any_bytes_;
  std::function<void(int64_t)> progress_;
  std::unique_ptr<const MappedFile> map_;  // of the current file
  size_t file_ = 0;
  int64_t bytes_before_ = 0;  // of the files that are done
  size_t begin_ = 0;          // what lies before has been handed out
  size_t read_ = 0;           // what lies before has been checked
  bool document_open_ = false;
};

// Characters of valid UTF-8.
int64_t count_characters(std::string_view text);

// Bytes of the first `count` characters.
size_t bytes_of_characters(std::string_view text, int64_t count);

}  // namespace cortado
