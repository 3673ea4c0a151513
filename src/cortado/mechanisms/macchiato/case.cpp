// What is measured of macchiato's operator.
#include "cortado/base/error.h"
#include "cortado/mechanisms/macchiato/op.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {
namespace {

// Carried: Latte's state, then the window's keys and values.
Tensors macchiato_call(const Tensors& in, const Tensors& carried) {
  MacchiatoOptions options;
  options.window = kCaseWindow;
  PastKeys past;
  if (!carried.empty()) {
    options.start = {carried[0], carried[1], carried[2]};
    past = {carried[3], carried[4], {}};
  }
  const Tensor &v = in[2], &window_k = in[4];
  const JoinedKeys keys = join_past(past, window_k, v, {});
  Tensors out = macchiato(in[0], in[1], v, in[3], keys, options).tensors();
  const int64_t kept = std::min(kCaseWindow - 1, keys.k.size(1)), first = keys.k.size(1) - kept;
  return join(out, {keys.k.detach().narrow(1, first, kept), keys.v.detach().narrow(1, first, kept)});
}

}  // namespace

OperatorCase macchiato_case() {
  OperatorCase c{.name = "macchiato", .operation = "macchiato"};
  c.note = concat("Latte and a window of ", kCaseWindow, " keys");
  c.inputs = [](const OperatorSizes& s) {
    return Tensors{heads_of(s, s.size + 1), heads_of(s, s.size), heads_of(s, s.size), heads_of(s, s.size),
                   heads_of(s, s.size)};
  };
  c.call = macchiato_call;
  c.reference = [](const Tensors& in) {
    const double scale = 1 / std::sqrt(static_cast<double>(in[3].size(3)));
    return Tensors{macchiato_reference(in[0], in[1], in[2], in[3], in[4], kCaseWindow, scale, true)};
  };
  c.work = [](const OperatorSizes& s) {
    return Work{4 * state_elements(s), 3 * channels(s)} + window_work(s, kCaseWindow);
  };
  return c;
}

}  // namespace cortado
