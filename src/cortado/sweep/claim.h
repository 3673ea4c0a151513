// Claims on work in a folder that several processes share, on one machine or on several.
#pragma once

#include <memory>
#include <string>

namespace cortado {

// A claim is a file that exists while its owner works. It is created atomically, and creation fails if the name is
// taken. An owner counts as dead if its process no longer exists or, on another machine, if its file has not been
// touched for kClaimSeconds. A process that moves a dead owner's file away, which only one process can do, may claim
// again.
inline constexpr int64_t kClaimSeconds = 120;

// A claim held by this process.
class Claim {
 public:
  // Returns null if somebody else has the claim. Throws Failure if the folder can't be written.
  static std::unique_ptr<Claim> take(const std::string& path);
  ~Claim();  // releases the claim
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  void touch() const;  // call this more often than every kClaimSeconds

 private:
  explicit Claim(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace cortado
