// Files: whole reads, writes that never leave half a file, output folders, memory maps.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace cortado {

// The whole file. Missing, unreadable or a folder: InputError.
std::string read_file(const std::string& path);

// Replaces `path` by `bytes` atomically: a temporary file beside it, flushed to the disk, renamed. On any trouble (disk
// full, no permission) the old file stays untouched, the temporary one is removed, and a Failure says why in one line.
void write_file(const std::string& path, std::string_view bytes);

// The same for files written piece by piece. Nothing is seen at `path` until commit(); without commit the destructor
// removes what was written. Every operation throws Failure on trouble.
//
// The temporary file is locked while its process lives. What a killed process left behind is removed by the next one
// that writes the same file.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* bytes, size_t count);  // buffered
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  void overwrite(uint64_t offset, std::string_view bytes);  // of what was written: for headers that know the end
  uint64_t size() const { return written_ + buffer_.size(); }
  void commit();

 private:
  void flush();
  void write_at(uint64_t offset, const char* bytes, size_t count);

  std::string path_;
  std::string temporary_;
  std::string buffer_;
  uint64_t written_ = 0;
  int descriptor_ = -1;
};

// Makes the rename of files inside `directory` durable. Best effort: some file systems refuse.
void sync_directory(const std::string& directory);

bool is_writable_directory(const std::string& path);

// InputError: a file cannot be written there. For results that take long to make.
void check_output_file(const std::string& path);

// An output folder that a command fills: created with its parents when missing. Not writable, or a file of that name:
// InputError. `refuse_used`: also an InputError when it already holds anything.
void claim_output_directory(const std::string& path, bool refuse_used);

// A folder for temporary work, removed with everything in it at the end of life (unless released). Locked like an
// AtomicFile; with a hidden prefix (".cortado-..."), the next one of the same parent and prefix removes what a killed
// process left behind.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& parent = "", const std::string& prefix = "cortado-");
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  void release() { path_.clear(); }

 private:
  std::string path_;
  int lock_ = -1;
};

// A read-only memory map of a whole file. Missing or unreadable: InputError. An empty file maps to size() == 0.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  void expect_sequential() const;  // a hint: read ahead, drop behind
  // A hint: these bytes of the file are not needed soon, and need not stay in memory.
  void release(const void* bytes, size_t count) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// An open file of the system's: closed on every way out. -1: none.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace cortado
