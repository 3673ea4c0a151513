#include "cortado/primitives/choice.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "cortado/base/json.h"

namespace cortado {
namespace {

std::string traced_to() {
  const char* value = std::getenv("CORTADO_TRACE");
  return value && std::string_view(value) != "0" ? value : "";
}

// Counts calls by operator, path, device and type. Prints or appends the counts when the process ends.
class Calls {
 public:
  ~Calls() {
    try {
      if (!counts_.empty()) print();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "[trace] %s\n", error.what());
    }
  }

  void add(const char* op, const char* path, const Tensor& x) {
    const std::lock_guard lock(mutex_);
    ++counts_[{op, path, c10::DeviceTypeName(x.device().type(), true), c10::toString(x.scalar_type())}];
  }

 private:
  void print() const {
    const std::string to = traced_to();
    std::FILE* file = to == "1" ? stderr : std::fopen(to.c_str(), "a");
    if (!file) return;
    if (to == "1") std::fprintf(file, "%-26s %-26s %-6s %-9s %12s\n", "operator", "path", "device", "type", "calls");
    for (const auto& [key, count] : counts_) {
      const auto& [op, path, device, type] = key;
      if (to == "1") {
        std::fprintf(file, "%-26s %-26s %-6s %-9s %12lld\n", op.c_str(), path.c_str(), device.c_str(), type.c_str(),
                     static_cast<long long>(count));
      } else {
        const Json row = {{"operator", op}, {"path", path}, {"device", device}, {"type", type}, {"calls", count}};
        std::fprintf(file, "%s\n", row.dump().c_str());
      }
    }
    if (to != "1") std::fclose(file);
  }

  std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, std::string, std::string>, int64_t> counts_;
};

}  // namespace

bool is_traced() {
  static const bool traced = !traced_to().empty();
  return traced;
}

void trace(const char* op, const char* path, const Tensor& x) {
  static Calls calls;
  calls.add(op, path, x);
}

}  // namespace cortado
