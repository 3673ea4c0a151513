// What is measured of lolcats's operator.
#include "cortado/mechanisms/lolcats/mixer.h"
#include "cortado/mechanisms/lolcats/op.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {

OperatorCase lolcats_case() {
  OperatorCase c{.name = "lolcats", .operation = "lolcats"};
  c.note = concat("a window of ", kCaseWindow, " keys, as many features as channels");
  const LolcatsRule rule{.window = kCaseWindow};
  c.inputs = [](const OperatorSizes& s) { return join(qkv(s), {positive(s), positive(s), at::randn({s.heads})}); };
  c.steps = false;
  c.call = [rule](const Tensors& in, const Tensors&) {
    return Tensors{lolcats(in[0], in[1], in[2], in[3], in[4], in[5], rule)};
  };
  c.reference = [rule](const Tensors& in) {
    return Tensors{lolcats_reference(in[0], in[1], in[2], in[3], in[4], in[5], rule)};
  };
  c.work = [](const OperatorSizes& s) {
    return Work{4 * state_elements(s) + 4 * channels(s), 0} + window_work(s, kCaseWindow);
  };
  return c;
}

}  // namespace cortado
