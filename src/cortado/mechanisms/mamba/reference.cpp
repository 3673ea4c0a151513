#include "cortado/mechanisms/mamba/scan.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {

Tensor selective_scan_reference(const SelectiveScan& in) {
  const Tensor v = (in.step * in.x).unsqueeze(-1), g = in.step.unsqueeze(-1) * in.a;  // [B,T,E,1], [B,T,E,N]
  return std::get<0>(gated_scan_reference(in.c.unsqueeze(2), in.b.unsqueeze(2), v, g, "key", 1.0)).squeeze(-1);
}

}  // namespace cortado
