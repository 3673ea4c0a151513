// What is measured of latte's operator.
#include "cortado/mechanisms/latte/mixer.h"
#include "cortado/mechanisms/latte/op.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {

OperatorCase latte_case() {
  OperatorCase c{.name = "latte", .operation = "latte", .note = "as many latents as channels"};
  c.inputs = qkv;
  c.call = [](const Tensors& in, const Tensors& carried) {
    return latte(in[0], in[1], in[2], true, {part(carried, 0), part(carried, 1), part(carried, 2)}).tensors();
  };
  c.reference = [](const Tensors& in) { return Tensors{latte_reference(at::softmax(in[0], -1), in[1], in[2], true)}; };
  c.work = [](const OperatorSizes& s) { return Work{4 * state_elements(s), 3 * channels(s)}; };
  return c;
}

}  // namespace cortado
