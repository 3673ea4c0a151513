#include "cortado/sweep/claim.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/json.h"

namespace cortado {
namespace {

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

// Whether the owner of an existing claim is gone.
bool is_abandoned(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return false;  // released in the meantime; the next attempt will see that
  if (std::time(nullptr) - info.st_mtime > kClaimSeconds) return true;
  const Json owner = Json::parse(read_file(path), nullptr, false);
  if (!owner.is_object() || owner.value("host", "") != host_name()) return false;
  return ::kill(owner.value("process", 0), 0) != 0 && errno == ESRCH;
}

}  // namespace

std::unique_ptr<Claim> Claim::take(const std::string& path) {
  const std::string own = concat(path, ".", host_name(), ".", ::getpid());
  write_file(own, Json{{"host", host_name()}, {"process", ::getpid()}}.dump() + "\n");
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (::link(own.c_str(), path.c_str()) == 0) {
      ::unlink(own.c_str());
      return std::unique_ptr<Claim>(new Claim(path));
    }
    const int error = errno;
    if (error != EEXIST) {
      ::unlink(own.c_str());
      throw Failure(concat("[", path, "] can't be claimed: ", std::strerror(error)));
    }
    const std::string gone = own + ".gone";
    if (!is_abandoned(path) || ::rename(path.c_str(), gone.c_str()) != 0) break;
    ::unlink(gone.c_str());
  }
  ::unlink(own.c_str());
  return nullptr;
}

Claim::~Claim() { ::unlink(path_.c_str()); }

void Claim::touch() const { ::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0); }

}  // namespace cortado
