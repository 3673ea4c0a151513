// What is measured of abc's operator.
#include "cortado/mechanisms/abc/op.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {

OperatorCase abc_case() {
  OperatorCase c{.name = "abc", .operation = "abc", .note = "as many slots as channels"};
  c.inputs = [](const OperatorSizes& s) { return join(qkv(s), {heads_of(s, s.size)}); };
  c.call = [](const Tensors& in, const Tensors& carried) {
    const AbcState start{part(carried, 0), part(carried, 1), part(carried, 2), part(carried, 3)};
    return abc(in[0], in[1], in[2], in[3], {}, start).tensors();
  };
  c.reference = [](const Tensors& in) {
    return Tensors{abc_reference(in[0], in[1], in[2], in[3], 1 / std::sqrt(static_cast<double>(in[0].size(3))))};
  };
  c.work = [](const OperatorSizes& s) { return Work{8 * state_elements(s), 3 * channels(s)}; };
  return c;
}

}  // namespace cortado
