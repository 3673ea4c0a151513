// What is measured of linear's operator.
#include "cortado/mechanisms/linear/mixer.h"
#include "cortado/mechanisms/linear/op.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {

OperatorCase linear_case() {
  OperatorCase c{.name = "normalized_linear", .operation = "normalized_linear", .note = "queries and keys positive"};
  c.inputs = [](const OperatorSizes& s) { return Tensors{positive(s), positive(s), heads_of(s, s.size)}; };
  c.call = [](const Tensors& in, const Tensors& carried) {
    return normalized_linear(in[0], in[1], in[2], true, 0, part(carried, 0), part(carried, 1)).tensors();
  };
  c.reference = [](const Tensors& in) { return Tensors{linear_reference(in[0], in[1], in[2], true, 0)}; };
  c.work = [](const OperatorSizes& s) { return Work{4 * state_elements(s) + 4 * channels(s), 0}; };
  return c;
}

}  // namespace cortado
