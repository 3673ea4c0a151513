// Reading whole files, writing files atomically, output folders, memory maps.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace cortado {

// Returns the whole file. Throws InputError if it is missing, unreadable or a folder.
std::string read_file(const std::string& path);

// Replaces `path` by `bytes` atomically: writes a temporary file beside it, flushes it to the disk and renames it. If
// anything fails (disk full, no permission), the old file stays as it was, the temporary file is removed, and a Failure
// names the reason in one line.
void write_file(const std::string& path, std::string_view bytes);

// Writes a file piece by piece, with the guarantees of write_file. The file appears at `path` only after commit().
// Without commit() the destructor removes the temporary file. Every operation throws Failure on an error.
//
// The temporary file is locked while its process lives. The next process that writes the same path removes temporary
// files of killed processes.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* bytes, size_t count);  // buffered
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  void overwrite(uint64_t offset, std::string_view bytes);  // overwrites bytes already written: for headers that depend
                                                            // on the rest of the file
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

// Makes renames inside `directory` durable. Best effort: some file systems refuse.
void sync_directory(const std::string& directory);

// Returns whether `path` is a folder in which this process may create files.
bool is_writable_directory(const std::string& path);

// Throws InputError if no file can be written at `path`. Call it before work whose result takes long to compute.
void check_output_file(const std::string& path);

// Prepares an output folder for a command; creates it with its parents if it is missing. Throws InputError if the
// folder is not writable, if a file has that name, or, with `refuse_used`, if the folder is not empty.
void claim_output_directory(const std::string& path, bool refuse_used);

// A temporary folder. The destructor removes it with everything in it, unless it was released. It is locked like an
// AtomicFile. If the prefix is hidden (".cortado-..."), the next TemporaryDirectory with the same parent and prefix
// removes folders of killed processes.
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

// A read-only memory map of a whole file. Throws InputError if the file is missing or unreadable. An empty file has
// size() == 0.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  void expect_sequential() const;  // a hint: read ahead and drop pages after use
  // A hint: these bytes are not needed soon, so their pages can leave memory.
  void release(const void* bytes, size_t count) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Owns a file descriptor and closes it in its destructor. -1: none.
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
