// Which process works on what, in a folder that several share, on one machine or on many.
#pragma once

#include <memory>
#include <string>

namespace cortado {

// A file that exists while its owner works: made whole and given its name in one step that fails where the name is
// taken. An owner that has died is told by its process being gone, or on another machine by its file not having been
// touched for kClaimSeconds; whoever moves such a file away, which only one can, may claim anew.
inline constexpr int64_t kClaimSeconds = 120;

class Claim {
 public:
  // None: somebody else has it. Failure: the folder can't be written.
  static std::unique_ptr<Claim> take(const std::string& path);
  ~Claim();  // gives it back
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  void touch() const;  // to be called more often than every kClaimSeconds

 private:
  explicit Claim(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace cortado
