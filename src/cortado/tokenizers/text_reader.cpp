#include "cortado/tokenizers/text_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cortado/base/error.h"
#include "cortado/base/utf8.h"

namespace cortado {
namespace {

constexpr size_t kPiece = 1 << 20;

}  // namespace

TextReader::TextReader(const std::string& path, bool any_bytes)
    : path_(path), any_bytes_(any_bytes), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  fail_input_if(file_.number() < 0, "[", path, "] cannot be read: ", std::strerror(errno));
  struct stat info{};
  const bool folder = ::fstat(file_.number(), &info) == 0 && S_ISDIR(info.st_mode);
  fail_input_if(folder, "[", path, "] is a folder, not a text file");
}

bool TextReader::read(std::string& text) {
  std::string piece(kPiece + rest_.size(), '\0');
  size_t filled = rest_.copy(piece.data(), rest_.size());
  rest_.clear();
  bool at_end = false;
  while (filled < piece.size() && !at_end) {
    const ssize_t count = ::read(file_.number(), piece.data() + filled, piece.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    fail_input_if(count < 0, "[", path_, "] cannot be read: ", std::strerror(errno));
    filled += static_cast<size_t>(count);
    at_end = count == 0;
  }
  piece.resize(filled);
  fail_input_if(at_end && offset_ + static_cast<int64_t>(filled) == 0, "[", path_,
                "] is empty: there is no text in it");
  size_t valid = piece.size();
  if (!any_bytes_) {
    valid = utf8_valid_prefix(piece);
    check(piece, valid, at_end);
    rest_ = piece.substr(valid);
    piece.resize(valid);
  }
  offset_ += static_cast<int64_t>(valid);
  text += piece;
  return valid > 0;
}

void TextReader::check(const std::string& piece, size_t valid, bool at_end) const {
  const size_t nul = piece.find('\0');
  fail_input_if(nul != std::string::npos && nul < valid, "[", path_, "] is binary, not text: NUL byte at byte offset ",
                offset_ + static_cast<int64_t>(nul), "; only the byte tokenizer takes it");
  if (valid == piece.size()) return;
  const bool unfinished = utf8_char(std::string_view(piece).substr(valid)).unfinished;
  if (unfinished && !at_end) return;  // its end comes with the next piece
  char invalid[32];
  std::snprintf(invalid, sizeof invalid, "invalid byte 0x%02X", static_cast<unsigned>(piece[valid]) & 0xFF);
  throw InputError(concat("[", path_, "] is not UTF-8: ", unfinished ? "a character is cut off" : invalid,
                          " at byte offset ", offset_ + static_cast<int64_t>(valid),
                          "; only the byte tokenizer takes it"));
}

}  // namespace cortado
