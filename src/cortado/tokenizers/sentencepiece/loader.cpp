#include <dlfcn.h>

#include <string>

#include "cortado/base/error.h"
#include "cortado/tokenizers/sentencepiece/bridge.h"

#ifdef __SANITIZE_ADDRESS__
// The address sanitizer refuses RTLD_DEEPBIND. Then both libraries share one variable (bridge.h), and this definition
// makes it large enough for both. It takes precedence because our programs link libcortado before torch. Both libraries
// start with zero.
extern "C" {
alignas(64) __attribute__((visibility("default"))) char FLAGS_minloglevel[64];
}
#endif

namespace cortado {
namespace {

// The folder that libcortado was loaded from; both libraries are built and installed into one folder.
std::string own_folder() {
  Dl_info info{};
  if (!::dladdr(reinterpret_cast<const void*>(&sentencepiece_trainer), &info) || !info.dli_fname) return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

decltype(&cortado_sentencepiece) open_library() {
  int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
#ifdef __SANITIZE_ADDRESS__
  if (::dlsym(RTLD_DEFAULT, "FLAGS_minloglevel") != static_cast<void*>(FLAGS_minloglevel)) {
    throw Failure("[sentencepiece] under the address sanitizer, link the program to libcortado before torch");
  }
#else
  flags |= RTLD_DEEPBIND;
#endif
  const std::string path = own_folder() + "libcortado_sentencepiece.so";
  void* library = ::dlopen(path.c_str(), flags);
  if (!library) throw Failure(concat("[sentencepiece] cannot be loaded: ", ::dlerror()));
  const auto entry = reinterpret_cast<decltype(&cortado_sentencepiece)>(::dlsym(library, "cortado_sentencepiece"));
  if (!entry) throw Failure(concat("[sentencepiece] ", path, " is not of this version"));
  return entry;
}

}  // namespace

decltype(&cortado_sentencepiece) sentencepiece_trainer() {
  static const auto trainer = open_library();
  return trainer;
}

}  // namespace cortado
