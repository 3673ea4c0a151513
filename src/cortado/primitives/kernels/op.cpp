// Reports the instruction set that the kernels use, for benchmarks and tests from Python. Takes no tensors, so there is
// nothing to differentiate.
#include <torch/library.h>

#include "cortado/base/isa.h"

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def("_select_isa(str name) -> str", [](std::string_view name) {
    cortado::select_isa(name);
    return cortado::selected_isa();
  });
  m.def("_available_isas() -> str[]", [] { return cortado::available_isas(); });
}
