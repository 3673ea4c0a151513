#include "cortado/primitives/cuda/runtime.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/hash.h"
#include "cortado/primitives/cuda/libraries.h"

namespace cortado::cuda {
namespace {

std::atomic<int64_t> compiled{0}, from_disk{0}, launched{0};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

const char* text_of(const std::string& name) {
  for (const Source& source : sources()) {
    if (name == source.name) return source.text;
  }
  throw Failure(concat("[cuda] there is no kernel file ", name));
}

std::string log_of(Program program) {
  size_t size = 0;
  compiler().log_size(program, &size);
  std::string log(size, '\0');
  if (size) compiler().log(program, log.data());
  return log.substr(0, log.find('\0'));
}

std::string first_error(const std::string& log) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("error") != std::string::npos) return line;
  }
  return log.substr(0, 200);
}

std::string in_file_name(std::string source) {
  std::replace(source.begin(), source.end(), '/', '-');
  return source;
}

// --- Cached binaries: "cortado cuda 1 <hash>\n", then the cubin. A damaged one is compiled again. ---

constexpr std::string_view kHead = "cortado cuda 1 ";

std::string kept_binary(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return "";
  try {
    const std::string bytes = read_file(path);
    const size_t head = kHead.size() + 16;
    if (bytes.size() <= head + 1 || bytes.compare(0, kHead.size(), kHead) != 0) return "";
    const std::string binary = bytes.substr(head + 1);
    return bytes.compare(kHead.size(), 16, hash_text(binary)) == 0 ? binary : "";
  } catch (const std::exception&) {
    return "";  // the kernel is then compiled
  }
}

void keep_binary(const std::string& path, const std::string& binary) {
  try {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    write_file(path, concat(kHead, hash_text(binary), "\n", binary));
  } catch (const std::exception&) {
    // Ignored: a full or read-only disk only costs the next process a second of compiling.
  }
}

// compiler_version: NVRTC's version. architecture_of: what it compiles for; a GPU runs binaries for its own generation up
// to its own version.
std::string compiler_version() {
  int major = 0, minor = 0;
  compiler().version(&major, &minor);
  return concat(major, ".", minor);
}

std::string architecture_of(int major, int minor) {
  if (major < 8)
    throw Failure(concat("[cuda] the kernels need compute capability 8.0, this GPU has ", major, ".", minor));
  int count = 0, best = 0;
  compiler().count_architectures(&count);
  std::vector<int> known(static_cast<size_t>(count));
  compiler().architectures(known.data());
  for (int number : known) {
    if (number / 10 == major && number % 10 <= minor) best = std::max(best, number);
  }
  if (!best) {
    throw Failure(concat("[cuda] NVRTC ", compiler_version(), " is too old for this GPU's compute capability ", major,
                         ".", minor));
  }
  return concat("sm_", best, best == 90 && minor == 0 ? "a" : "");
}

class GpuMachine : public Machine {
 public:
  explicit GpuMachine(int device) : device_(device) {
    const Driver& d = driver();
    d.check(d.device_get(&ordinal_, device), "cuDeviceGet");
    d.check(d.attribute(&multiprocessors_, 16, ordinal_), "cuDeviceGetAttribute");
    d.check(d.attribute(&shared_bytes_, 97, ordinal_), "cuDeviceGetAttribute");
    int major = 0, minor = 0;
    d.check(d.attribute(&major, 75, ordinal_), "cuDeviceGetAttribute");
    d.check(d.attribute(&minor, 76, ordinal_), "cuDeviceGetAttribute");
    d.check(d.version(&driver_version_), "cuDriverGetVersion");
    architecture_ = architecture_of(major, minor);
    stream_of_ = reinterpret_cast<decltype(stream_of_)>(::dlsym(RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream"));
    if (!stream_of_) {  // torch is loaded, but its symbols are not global
      void* torch = ::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
      if (torch)
        stream_of_ = reinterpret_cast<decltype(stream_of_)>(::dlsym(torch, "aoti_torch_get_current_cuda_stream"));
    }
    if (!stream_of_) throw Failure("[cuda] this torch has no aoti_torch_get_current_cuda_stream");
  }

  int multiprocessors() const override { return multiprocessors_; }
  int shared_bytes() const override { return shared_bytes_; }

  Description describe() const {
    char name[256] = "";
    driver().check(driver().device_name(name, sizeof name, ordinal_), "cuDeviceGetName");
    return {name, architecture_, multiprocessors_, driver_version_};
  }

  bool capturing() const {
    int status = 0;
    driver().check(driver().is_capturing(stream_now(), &status), "cuStreamIsCapturing");
    return status != 0;
  }

  void launch(const Kernel& kernel, Blocks blocks, const void* parameters) override {
    const Driver& d = driver();
    Context context = nullptr;
    d.check(d.current(&context), "cuCtxGetCurrent");
    if (!context) {  // a thread that has not used the GPU yet
      d.check(d.retain(&context, ordinal_), "cuDevicePrimaryCtxRetain");
      d.check(d.set_current(context), "cuCtxSetCurrent");
    }
    const Function function = function_of(kernel);
    void* stream = stream_now();
    void* arguments[] = {const_cast<void*>(parameters)};
    d.check(d.launch(function, blocks.x, blocks.y, blocks.z, kernel.threads, 1, 1, unsigned(kernel.shared), stream,
                     arguments, nullptr),
            kernel.name);
  }

 private:
  void* stream_now() const {
    void* stream = nullptr;
    if (stream_of_(device_, &stream)) throw Failure("[cuda] torch does not say its stream");
    return stream;
  }

  Function function_of(const Kernel& kernel) {
    const std::lock_guard lock(mutex_);
    ++launched;
    const auto key = std::make_tuple(std::string_view(kernel.source), std::string_view(kernel.variant),
                                     std::string_view(kernel.name));
    const auto found = functions_.find(key);
    if (found != functions_.end()) return found->second;
    const Driver& d = driver();
    Function function = nullptr;
    d.check(d.function(&function, module_of(kernel), kernel.name), "cuModuleGetFunction");
    constexpr int kDynamicSharedBytes = 8, kSharedPercent = 9;
    const auto set = [&](int attribute, int value) {
      d.check(d.set_attribute(function, attribute, value), "cuFuncSetAttribute");
    };
    if (kernel.shared > (48 << 10)) set(kDynamicSharedBytes, int(kernel.shared));
    // In percent of a multiprocessor's memory. By default the driver keeps so much of it as cache that fewer blocks
    // fit.
    if (kernel.shared > (32 << 10)) set(kSharedPercent, 100);
    functions_.emplace(std::make_tuple(std::string(kernel.source), kernel.variant, std::string(kernel.name)), function);
    return function;
  }

  Module module_of(const Kernel& kernel) {
    Module& module = modules_[{kernel.source, kernel.variant}];
    if (module) return module;
    const std::string folder = cache_folder();
    const std::string what =
        concat(text_of(kernel.source), kernel.variant, architecture_, compiler_version(), driver_version_);
    const std::string path = concat(folder, "/", in_file_name(kernel.source), "-", hash_text(what), ".cubin");
    std::string binary = folder.empty() ? "" : kept_binary(path);
    if (binary.empty()) {
      binary = compile(kernel.source, kernel.variant, architecture_);
      if (!folder.empty()) keep_binary(path, binary);
    } else {
      ++from_disk;
    }
    driver().check(driver().load(&module, binary.data()), "cuModuleLoadData");
    return module;
  }

  const int device_;
  int ordinal_ = 0, multiprocessors_ = 0, shared_bytes_ = 0, driver_version_ = 0;
  std::string architecture_;
  int (*stream_of_)(int device, void** stream) = nullptr;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, Module> modules_;
  std::map<std::tuple<std::string, std::string, std::string>, Function, std::less<>> functions_;
};

// A device's machine, or the reason why there is none.
struct Slot {
  std::unique_ptr<GpuMachine> machine;
  std::string why_not;
};

const Slot& slot_of(int device) {
  static std::mutex mutex;
  static std::map<int, Slot> slots;
  const std::lock_guard lock(mutex);
  const auto [slot, created] = slots.try_emplace(device);
  if (created) {
    try {
      if (environment("CORTADO_CUDA") == "off") throw Failure("[cuda] switched off by CORTADO_CUDA");
      slot->second.machine = std::make_unique<GpuMachine>(device);
    } catch (const std::exception& error) {
      slot->second.why_not = error.what();
    }
  }
  return slot->second;
}

}  // namespace

bool usable(int device) { return slot_of(device).machine != nullptr; }
std::string why_not(int device) { return slot_of(device).why_not; }

Machine& machine(int device) {
  const Slot& slot = slot_of(device);
  if (!slot.machine) throw Failure(slot.why_not);
  return *slot.machine;
}

bool capturing(int device) {
  const Slot& slot = slot_of(device);
  return slot.machine && slot.machine->capturing();
}

std::string compile(const std::string& source, const std::string& variant, const std::string& architecture) {
  const Compiler& c = compiler();
  Program program = nullptr;
  if (c.create(&program, text_of(source), (source + ".cu").c_str(), 0, nullptr, nullptr)) {
    throw Failure("[cuda] NVRTC takes no source");
  }
  const std::unique_ptr<Program, void (*)(Program*)> owner(&program, [](Program* p) { compiler().destroy(p); });
  std::vector<std::string> words = {"--std=c++17", "-default-device", "--gpu-architecture=" + architecture};
  std::istringstream macros(variant);
  for (std::string macro; macros >> macro;) words.push_back("-D" + macro);
  std::vector<const char*> options;
  for (const std::string& word : words) options.push_back(word.c_str());
  const int failed = c.compile(program, int(options.size()), options.data());
  if (failed) throw Failure(concat("[cuda] ", source, " for ", architecture, ": ", first_error(log_of(program))));
  size_t size = 0;
  c.binary_size(program, &size);
  std::string binary(size, '\0');
  c.binary(program, binary.data());
  ++compiled;
  return binary;
}

Description describe(int device) {
  machine(device);
  return slot_of(device).machine->describe();
}

std::vector<std::pair<std::string, int64_t>> kept_binaries() {
  std::vector<std::pair<std::string, int64_t>> found;
  const std::string folder = cache_folder();
  for (const Source& source : sources()) {
    const std::string begin = in_file_name(source.name) + "-";
    int64_t count = 0;
    std::error_code none;
    for (const auto& file : std::filesystem::directory_iterator(folder.empty() ? "." : folder, none)) {
      const std::string name = file.path().filename();
      // One source's name may be a prefix of another's: after the name come exactly 16 digits and the ending.
      count += !folder.empty() && name.starts_with(begin) && name.size() == begin.size() + 16 + 6;
    }
    found.emplace_back(source.name, count);
  }
  return found;
}

Statistics statistics() { return {compiled, from_disk, launched}; }

std::string cache_folder() {
  std::string wanted = environment("CORTADO_CUDA_CACHE");
  if (wanted == "off") return "";
  if (!wanted.empty()) return wanted;
  const std::string cache = environment("XDG_CACHE_HOME"), home = environment("HOME");
  if (cache.empty() && home.empty()) return "";
  return (cache.empty() ? home + "/.cache" : cache) + "/cortado/cuda";
}

}  // namespace cortado::cuda
