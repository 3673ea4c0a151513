#include "cortado/primitives/gated_scan/widths_on_gpu.h"

namespace cortado::gated {

namespace {

Tensor with_zeros(const Tensor& x, int64_t dimension, int64_t piece) {
  const int64_t missing = x.defined() ? (piece - x.size(dimension) % piece) % piece : 0;
  if (missing == 0) return x;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[size_t(dimension)] = missing;
  return at::cat({x, at::zeros(sizes, x.options())}, dimension);
}

// Copies to memory of its own: compiled graphs misread a layout that differs from that of the Meta kernel.
void cut(Tensor& x, int64_t dimension, int64_t width) {
  if (x.defined() && x.size(dimension) > width) x = x.narrow(dimension, 0, width).contiguous();
}

}  // namespace

FormInputs widened(const FormInputs& in, int64_t piece) {
  FormInputs out = in;
  for (const auto member : {&FormInputs::y, &FormInputs::x, &FormInputs::w, &FormInputs::v}) {
    out.*member = with_zeros(in.*member, 3, piece);
  }
  if (in.g.defined() && in.g.dim() == 4) out.g = with_zeros(in.g, 3, piece);
  out.bonus = with_zeros(in.bonus, 1, piece);
  for (const auto member : {&FormInputs::initial, &FormInputs::final_grad}) {
    out.*member = with_zeros(with_zeros(in.*member, 2, piece), 3, piece);
  }
  return out;
}

FormOutputs narrowed(FormOutputs out, int64_t keys, int64_t values) {
  for (const auto member : {&FormOutputs::y, &FormOutputs::x}) cut(out.*member, 3, keys);
  if (out.g.defined() && out.g.dim() == 4) cut(out.g, 3, keys);
  cut(out.bonus, 2, keys);
  for (const auto member : {&FormOutputs::w, &FormOutputs::v}) cut(out.*member, 3, values);
  for (const auto member : {&FormOutputs::initial, &FormOutputs::final_state}) {
    cut(out.*member, 2, keys);
    cut(out.*member, 3, values);
  }
  return out;
}

}  // namespace cortado::gated
