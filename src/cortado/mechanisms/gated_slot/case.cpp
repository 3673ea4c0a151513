// What is measured of gated_slot's operator.
#include "cortado/mechanisms/gated_slot/op.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {

OperatorCase gated_slot_case() {
  OperatorCase c{.name = "gated_slot", .operation = "gated_slot", .note = "as many slots as channels"};
  c.inputs = [](const OperatorSizes& s) {
    const Tensor gate = gates({1, s.tokens, s.heads, s.size});
    return join(qkv(s), {1 - gate.exp(), gate});
  };
  c.call = [](const Tensors& in, const Tensors& carried) {
    return gated_slot(in[0], in[1], in[2], in[3], in[4], {}, part(carried, 0), part(carried, 1)).tensors();
  };
  c.reference = [](const Tensors& in) {
    const double scale = 1 / std::sqrt(static_cast<double>(in[0].size(3)));
    return Tensors{gated_slot_reference(in[0], in[1], in[2], in[3], in[4], scale)};
  };
  c.work = [](const OperatorSizes& s) { return Work{8 * state_elements(s), 2 * channels(s)}; };
  return c;
}

}  // namespace cortado
