#include "cortado/data/text_stream.h"

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {
namespace {

constexpr size_t kPiece = 1 << 20;  // pieces are about as long as what TextReader gives at once

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

int64_t count_characters(std::string_view text) {
  return static_cast<int64_t>(text.size()) - std::count_if(text.begin(), text.end(), continues_character);
}

size_t bytes_of_characters(std::string_view text, int64_t count) {
  size_t at = 0;
  while (at < text.size()) {
    if (!continues_character(text[at]) && count-- == 0) break;
    ++at;
  }
  return at;
}

DocumentStream::DocumentStream(std::vector<std::string> files, std::string separator, bool any_bytes,
                               std::function<void(int64_t)> progress)
    : files_(std::move(files)),
      separator_(std::move(separator)),
      any_bytes_(any_bytes),
      progress_(std::move(progress)) {
  fail_input_if(files_.empty(), "[text] no files to read");
}

// Reads on in the current file; false at its end.
bool DocumentStream::fill() {
  if (!reader_) reader_ = std::make_unique<TextReader>(files_[file_], any_bytes_);
  buffer_.erase(0, begin_);
  scanned_ -= std::min(scanned_, begin_);
  begin_ = 0;
  const bool more = reader_->read(buffer_);
  if (progress_) progress_(bytes_before_ + reader_->bytes_read());
  return more;
}

bool DocumentStream::take(Piece& piece, size_t count) {
  piece.text.assign(buffer_, begin_, count);
  piece.starts_document = !document_open_;
  document_open_ = true;
  begin_ += count;
  return true;
}

bool DocumentStream::next(Piece& piece) {
  while (file_ < files_.size()) {
    scanned_ = std::max(scanned_, begin_);
    const size_t found = separator_.empty() ? std::string::npos : buffer_.find(separator_, scanned_);
    if (found != std::string::npos) {
      const size_t count = found - begin_;
      if (count > 0) return take(piece, count);  // the separator is found again, at once, by the next call
      begin_ += separator_.size();
      document_open_ = false;
      continue;
    }
    // The start of a separator may stand at the end of what is read.
    const size_t kept_back = separator_.empty() ? 0 : separator_.size() - 1;
    scanned_ = std::max(begin_, buffer_.size() - std::min(buffer_.size(), kept_back));
    if (scanned_ - begin_ >= kPiece) {
      size_t end = buffer_.rfind('\n', scanned_ - 1) + 1;  // npos + 1 = 0
      if (end <= begin_) end = buffer_.rfind(' ', scanned_ - 1);
      if (end == std::string::npos || end <= begin_) end = scanned_;
      if (!any_bytes_) {
        while (end > begin_ && end < buffer_.size() && continues_character(buffer_[end])) --end;
      }
      return take(piece, end - begin_);
    }
    if (fill()) continue;
    const size_t rest = buffer_.size() - begin_;
    if (rest > 0) return take(piece, rest);
    bytes_before_ += reader_->bytes_read();
    reader_.reset();
    ++file_;
    document_open_ = false;
  }
  return false;
}

}  // namespace cortado
