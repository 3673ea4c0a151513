// Texts as a stream of documents' pieces, whatever their size.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cortado/tokenizers/text_reader.h"

namespace cortado {

// Reads files one after the other and cuts them into documents: each file is one, or, with a separator, what lies
// between two separators (which belong to no document; empty documents are left out). Memory: a few MiB.
class DocumentStream {
 public:
  // any_bytes: as TextReader. progress: called with the bytes read so far, now and then.
  DocumentStream(std::vector<std::string> files, std::string separator, bool any_bytes,
                 std::function<void(int64_t)> progress = {});

  struct Piece {
    std::string text;  // never empty; ends at a line where it can, always at a whole character (unless any_bytes)
    bool starts_document = false;  // the first piece of a document
  };
  bool next(Piece& piece);  // false at the end of the last file

 private:
  bool fill();
  bool take(Piece& piece, size_t count);

  std::vector<std::string> files_;
  std::string separator_;
  bool any_bytes_;
  std::function<void(int64_t)> progress_;
  std::unique_ptr<TextReader> reader_;
  size_t file_ = 0;
  int64_t bytes_before_ = 0;  // of the files that are done
  std::string buffer_;
  size_t begin_ = 0;    // buffer_[begin_..] is not handed out yet
  size_t scanned_ = 0;  // no separator begins before buffer_[scanned_]
  bool document_open_ = false;
};

// Characters of valid UTF-8.
int64_t count_characters(std::string_view text);

// Bytes of the first `count` characters.
size_t bytes_of_characters(std::string_view text, int64_t count);

}  // namespace cortado
