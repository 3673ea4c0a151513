#include "cortado/base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>

#include "cortado/base/error.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBuffer = 1 << 20;
constexpr size_t kRandomLetters = 6;  // the number of X that mkdtemp replaces

// Opens an existing regular file or a pipe for reading, and fills `info`.
Descriptor open_for_reading(const std::string& path, struct stat& info, int flags = 0) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  fail_input_if(file.number() < 0, "[", path, "] cannot be read: ", std::strerror(errno));
  const bool known = ::fstat(file.number(), &info) == 0;
  fail_input_if(!known || S_ISDIR(info.st_mode), "[", path, "] ",
                S_ISDIR(info.st_mode) ? "is a folder, not a file" : "cannot be read");
  return file;
}

[[noreturn]] void fail_writing(const std::string& path, int error) {
  throw Failure(concat("[", path, "] cannot be written: ", std::strerror(error)));
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// Locks a new temporary file or folder for as long as this process lives. Returns false if another process removed it
// as a leftover before the lock was taken. On file systems without locks, nothing counts as a leftover.
bool claim(int descriptor) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  struct stat info{};
  return ::fstat(descriptor, &info) != 0 || info.st_nlink > 0;
}

// Removes temporary files and folders of killed processes: those whose names `is_ours` accepts and that nobody has
// locked.
void remove_leftovers(const std::string& folder, const std::function<bool(const std::string& name)>& is_ours) {
  std::error_code error, ignored;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (!is_ours(entry->path().filename().string())) continue;
    const Descriptor left(::open(entry->path().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (left.number() >= 0 && ::flock(left.number(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry->path(), ignored);
  }
}

}  // namespace

std::string read_file(const std::string& path) {
  struct stat info{};
  const Descriptor file = open_for_reading(path, info);
  std::string bytes;
  size_t done = 0;
  bytes.resize(static_cast<size_t>(info.st_size) + 1);  // one extra byte, so that one read also sees the end of the
                                                        // file; the buffer grows for pipes
  while (true) {
    if (done == bytes.size()) bytes.resize(bytes.size() * 2 + kBuffer);
    const ssize_t count = ::read(file.number(), bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    fail_input_if(count < 0, "[", path, "] cannot be read: ", std::strerror(errno));
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  static std::atomic<unsigned> serial{0};  // distinguishes the threads of this process
  const std::string prefix = path_ + ".tmp-", name = fs::path(prefix).filename().string();
  remove_leftovers(parent_of(path_), [&](const std::string& found) {
    return found.rfind(name, 0) == 0 && found.find_first_not_of("0123456789-", name.size()) == std::string::npos;
  });
  while (true) {
    temporary_ = concat(prefix, ::getpid(), "-", serial++);
    descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail_writing(path_, errno);
    if (claim(descriptor_)) return;
    ::close(descriptor_);
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write_at(uint64_t offset, const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t done = ::pwrite(descriptor_, bytes, count, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_writing(path_, errno);
    bytes += done;
    offset += static_cast<uint64_t>(done);
    count -= static_cast<size_t>(done);
  }
}

void AtomicFile::flush() {
  write_at(written_, buffer_.data(), buffer_.size());
  written_ += buffer_.size();
  buffer_.clear();
}

void AtomicFile::write(const void* bytes, size_t count) {
  if (count >= kBuffer) {
    flush();
    write_at(written_, static_cast<const char*>(bytes), count);
    written_ += count;
    return;
  }
  buffer_.append(static_cast<const char*>(bytes), count);
  if (buffer_.size() >= kBuffer) flush();
}

void AtomicFile::overwrite(uint64_t offset, std::string_view bytes) {
  flush();
  if (offset + bytes.size() > written_) throw Failure(concat("[", path_, "] overwrite beyond what was written"));
  write_at(offset, bytes.data(), bytes.size());
}

void AtomicFile::commit() {
  flush();
  if (::fsync(descriptor_) != 0 && errno != EINVAL && errno != EROFS) fail_writing(path_, errno);
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0) fail_writing(path_, errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_writing(path_, errno);
  temporary_.clear();
  sync_directory(parent_of(path_));
}

void sync_directory(const std::string& directory) {
  const Descriptor folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.number() >= 0) ::fsync(folder.number());
}

bool is_writable_directory(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return false;
  return ::access(path.c_str(), W_OK | X_OK) == 0;
}

void check_output_file(const std::string& path) {
  std::error_code ignored;
  const fs::path folder = fs::absolute(path).parent_path();
  fail_input_if(fs::is_directory(path, ignored), "[", path, "] is a folder, not a file to write");
  fail_input_if(!is_writable_directory(folder.string()), "[", path, "] cannot be written: no such folder, or not ours");
}

void claim_output_directory(const std::string& path, bool refuse_used) {
  std::error_code error;
  fail_input_if(path.empty(), "[output] the name of the output folder is empty");
  fs::create_directories(path, error);
  fail_input_if(!fs::is_directory(path), "[", path,
                "] cannot be made an output folder: ", error ? error.message() : "a file of that name exists");
  fail_input_if(!is_writable_directory(path), "[", path, "] this output folder is not writable");
  if (!refuse_used) return;
  const auto first = fs::directory_iterator(path, error);
  fail_input_if(error || first != fs::directory_iterator(), "[", path,
                "] this output folder is in use: it is not empty; name another or remove it");
}

TemporaryDirectory::TemporaryDirectory(const std::string& parent, const std::string& prefix) {
  std::error_code error;
  std::string base = parent.empty() ? fs::temp_directory_path(error).string() : parent;
  if (base.empty()) base = ".";
  if (prefix.starts_with('.')) {  // only for hidden folders: a visible one with this prefix may belong to somebody else
    remove_leftovers(base, [&](const std::string& found) {
      return found.rfind(prefix, 0) == 0 && found.size() == prefix.size() + kRandomLetters;
    });
  }
  while (true) {
    std::string name = base + "/" + prefix + std::string(kRandomLetters, 'X');
    if (!::mkdtemp(name.data())) {
      throw Failure(concat("[", base, "] no temporary folder can be made there: ", std::strerror(errno)));
    }
    path_ = name;
    lock_ = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock_ < 0 || claim(lock_)) return;
    ::close(lock_);
  }
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

MappedFile::MappedFile(const std::string& path) {
  struct stat info{};
  const Descriptor file = open_for_reading(path, info, O_NONBLOCK);  // fails on a pipe instead of waiting for its
                                                                     // writer
  fail_input_if(!S_ISREG(info.st_mode), "[", path, "] is not a regular file");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.number(), 0);
  fail_input_if(mapped == MAP_FAILED, "[", path, "] cannot be mapped: ", std::strerror(errno));
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::expect_sequential() const {
  if (data_) ::madvise(const_cast<std::byte*>(data_), size_, MADV_SEQUENTIAL);
}

void MappedFile::release(const void* bytes, size_t count) const {
  const auto* from = static_cast<const std::byte*>(bytes);
  if (!data_ || std::less<>{}(from, data_) || std::less<>{}(data_ + size_, from + count)) return;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (static_cast<size_t>(from - data_) + page - 1) / page * page;
  const auto end = (static_cast<size_t>(from - data_) + count) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace cortado
