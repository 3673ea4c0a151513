#include "cortado/primitives/cuda/libraries.h"

#include <c10/core/Device.h>
#include <dlfcn.h>
#include <glob.h>

#include <vector>

#include "cortado/base/error.h"

namespace cortado::cuda {
namespace {

// Returns the folder of the loaded library that contains this address.
std::string folder_of(const void* address) {
  Dl_info info{};
  if (!::dladdr(address, &info) || !info.dli_fname) return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::vector<std::string> matching(const std::string& pattern) {
  std::vector<std::string> found;
  glob_t result{};
  if (::glob(pattern.c_str(), 0, nullptr, &result) == 0) {
    for (size_t i = result.gl_pathc; i-- > 0;) found.emplace_back(result.gl_pathv[i]);  // newest first
  }
  ::globfree(&result);
  return found;
}

void* open_any(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <typename F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
  if (!function) throw Failure(concat("[cuda] the library has no ", name, ": too old a driver or NVRTC"));
}

Driver open_driver() {
  void* library = open_any({"libcuda.so.1", "libcuda.so"});
  if (!library) throw Failure("[cuda] there is no libcuda.so.1: no NVIDIA driver");
  Driver d{};
  find(library, "cuInit", d.init);
  find(library, "cuDriverGetVersion", d.version);
  find(library, "cuGetErrorName", d.error_name);
  find(library, "cuDeviceGet", d.device_get);
  find(library, "cuDeviceGetName", d.device_name);
  find(library, "cuDeviceGetAttribute", d.attribute);
  find(library, "cuDevicePrimaryCtxRetain", d.retain);
  find(library, "cuCtxGetCurrent", d.current);
  find(library, "cuCtxSetCurrent", d.set_current);
  find(library, "cuModuleLoadData", d.load);
  find(library, "cuModuleGetFunction", d.function);
  find(library, "cuFuncSetAttribute", d.set_attribute);
  find(library, "cuStreamIsCapturing", d.is_capturing);
  find(library, "cuLaunchKernel", d.launch);
  d.check(d.init(0), "cuInit");
  return d;
}

// Opens NVRTC: that of torch's wheel, beside torch's own folder, else whichever the loader finds.
Compiler open_compiler() {
  const std::string torch = folder_of(reinterpret_cast<const void*>(&c10::isValidDeviceType));
  std::vector<std::string> names;
  for (const char* place : {"/../../nvidia/*/lib/libnvrtc.so.*", "/libnvrtc*.so.*"}) {
    for (const auto& path : matching(torch + place)) {
      if (path.find("builtins") == std::string::npos && path.find(".alt") == std::string::npos) names.push_back(path);
    }
  }
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) names.emplace_back(name);
  for (const auto& path : matching("/usr/local/cuda*/lib64/libnvrtc.so.*")) names.push_back(path);
  for (const auto& path : names) {  // NVRTC opens the builtins by name; the loader wouldn't look here
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) continue;
    for (const auto& beside : matching(path.substr(0, slash) + "/libnvrtc-builtins.so.*")) open_any({beside});
  }
  void* library = open_any(names);
  if (!library) throw Failure("[cuda] there is no libnvrtc: pip install nvidia-cuda-nvrtc");
  Compiler c{};
  find(library, "nvrtcVersion", c.version);
  find(library, "nvrtcGetNumSupportedArchs", c.count_architectures);
  find(library, "nvrtcGetSupportedArchs", c.architectures);
  find(library, "nvrtcCreateProgram", c.create);
  find(library, "nvrtcCompileProgram", c.compile);
  find(library, "nvrtcGetProgramLogSize", c.log_size);
  find(library, "nvrtcGetProgramLog", c.log);
  find(library, "nvrtcGetCUBINSize", c.binary_size);
  find(library, "nvrtcGetCUBIN", c.binary);
  find(library, "nvrtcDestroyProgram", c.destroy);
  return c;
}

}  // namespace

void Driver::check(int error, const char* what) const {
  if (!error) return;
  const char* name = nullptr;
  error_name(error, &name);
  throw Failure(concat("[cuda] ", what, ": ", name ? name : "unknown error ", name ? "" : std::to_string(error)));
}

const Driver& driver() {
  static const Driver opened = open_driver();
  return opened;
}

const Compiler& compiler() {
  static const Compiler opened = open_compiler();
  return opened;
}

}  // namespace cortado::cuda
