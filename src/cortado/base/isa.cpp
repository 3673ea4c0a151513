#include "cortado/base/isa.h"

#include <hwy/highway.h>

#include <cstdlib>
#include <mutex>

#include "cortado/base/error.h"

namespace cortado {
namespace {

struct Isa {
  const char* name;
  int64_t target;  // a mask of Highway's targets; 0: no kernels
};

// Best first.
constexpr Isa kIsas[] = {
#if HWY_ARCH_X86
    {"avx512", HWY_AVX3 | HWY_AVX3_DL},  // AVX3_DL where the machine has it, for kernels that ask for it
    {"avx2", HWY_AVX2},
    {"sse4", HWY_SSE4},
#elif HWY_ARCH_ARM
    {"neon", HWY_NEON},
#endif
    {"scalar", HWY_SCALAR},
    {"aten", 0}};

bool available(const Isa& isa) {
  return isa.target == 0 || isa.target == HWY_SCALAR || (hwy::SupportedTargets() & isa.target) != 0;
}

bool enabled = true;
const Isa* selected = nullptr;

// Selects an instruction set; ignores CORTADO_ISA.
void select(std::string_view name) {
  hwy::SetSupportedTargetsForTest(0);
  std::string known;
  for (const Isa& isa : kIsas) {
    if (!available(isa)) continue;
    if (name.empty() || name == isa.name) {
      selected = &isa;
      enabled = isa.target != 0;
      const int64_t here = isa.target == HWY_SCALAR ? HWY_SCALAR : isa.target & hwy::SupportedTargets();
      if (enabled) hwy::SetSupportedTargetsForTest(here);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      return;
    }
    known += concat(known.empty() ? "" : ", ", isa.name);
  }
  throw InputError(concat("[isa] ", name, " is not an instruction set of this machine; there are ", known));
}

void read_environment() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* wish = std::getenv("CORTADO_ISA");
    select(wish ? wish : "");
  });
}

}  // namespace

std::vector<std::string> available_isas() {
  read_environment();
  const Isa* current = selected;
  hwy::SetSupportedTargetsForTest(0);
  std::vector<std::string> names;
  for (const Isa& isa : kIsas) {
    if (available(isa)) names.emplace_back(isa.name);
  }
  select(current->name);
  return names;
}

void select_isa(std::string_view name) {
  read_environment();
  select(name);
}

std::string selected_isa() {
  read_environment();
  return selected->name;
}

bool kernels_enabled() {
  read_environment();
  return enabled;
}

}  // namespace cortado
