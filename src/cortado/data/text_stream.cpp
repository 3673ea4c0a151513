#include "cortado/data/text_stream.h"

#include <algorithm>
#include <cstdio>

#include "cortado/base/error.h"
#include "cortado/base/utf8.h"

namespace cortado {
namespace {

constexpr size_t kPiece = 1 << 20;  // bytes; about the length of a piece and of one read

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Checks that text[begin, end), of which `valid` bytes are UTF-8, is text. Its last character may continue after `end`.
void check_text(const std::string& path, std::string_view text, size_t begin, size_t end, size_t valid) {
  constexpr const char* kByteTakesIt = "; only the byte tokenizer takes it";
  const size_t nul = text.substr(begin, valid).find('\0');
  fail_input_if(nul != std::string_view::npos, "[", path, "] is binary, not text: NUL byte at byte offset ",
                begin + nul, kByteTakesIt);
  if (begin + valid == end) return;
  const bool unfinished = utf8_char(text.substr(begin + valid, end - begin - valid)).unfinished;
  if (unfinished && end < text.size()) return;
  char invalid[32];
  std::snprintf(invalid, sizeof invalid, "invalid byte 0x%02X", static_cast<unsigned>(text[begin + valid]) & 0xFF);
  throw InputError(concat("[", path, "] is not UTF-8: ", unfinished ? "a character is cut off" : invalid,
                          " at byte offset ", begin + valid, kByteTakesIt));
}

// Where a piece should end: after a line, else before a word, else at a character boundary.
size_t end_of_piece(std::string_view text, bool any_bytes) {
  if (const size_t line = text.rfind('\n'); line != std::string_view::npos) return line + 1;
  if (const size_t space = text.rfind(' '); space != std::string_view::npos && space > 0) return space;
  return any_bytes ? text.size() : utf8_valid_prefix(text);
}

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

// Reads on to the next multiple of kPiece, or to the last whole character before it.
void DocumentStream::read_on(std::string_view text) {
  constexpr size_t kLongestRest = 3;  // bytes of a character that crosses the bound
  const size_t end = std::min(text.size(), ((read_ + kLongestRest) / kPiece + 1) * kPiece);
  const size_t valid = any_bytes_ ? end - read_ : utf8_valid_prefix(text.substr(read_, end - read_));
  if (!any_bytes_) check_text(files_[file_], text, read_, end, valid);
  read_ += valid;
  map_->release(text.data(), begin_);
  if (progress_) progress_(bytes_before_ + static_cast<int64_t>(read_));
}

bool DocumentStream::take(Piece& piece, size_t count) {
  piece = {map_->text().substr(begin_, count), !document_open_};
  document_open_ = true;
  begin_ += count;
  return true;
}

bool DocumentStream::next(Piece& piece) {
  while (file_ < files_.size()) {
    if (!map_) {
      map_ = std::make_unique<const MappedFile>(files_[file_]);
      begin_ = read_ = 0;
    }
    const std::string_view text = map_->text();
    // The read text may end with the first bytes of a separator.
    const size_t kept_back = separator_.empty() ? 0 : separator_.size() - 1;
    while (read_ < text.size() && read_ < begin_ + kPiece + kept_back) read_on(text);
    const std::string_view ahead = text.substr(begin_, read_ - begin_);
    const size_t found = separator_.empty() ? std::string_view::npos : ahead.find(separator_);
    if (found == 0) {
      begin_ += separator_.size();
      document_open_ = false;
    } else if (found != std::string_view::npos) {
      return take(piece, found);
    } else if (ahead.size() >= kPiece + kept_back) {
      return take(piece, end_of_piece(ahead.substr(0, ahead.size() - kept_back), any_bytes_));
    } else if (!ahead.empty()) {
      return take(piece, ahead.size());
    } else {
      bytes_before_ += static_cast<int64_t>(text.size());
      map_.reset();
      ++file_;
      document_open_ = false;
    }
  }
  return false;
}

}  // namespace cortado
