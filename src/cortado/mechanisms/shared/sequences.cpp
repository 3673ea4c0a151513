#include "cortado/mechanisms/shared/sequences.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cortado/primitives/elementwise_scan/op.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/operator.h"

namespace cortado {

Tensor sequence_numbers(const Tensor& cu_seqlens, const Tensor& x) {
  const Tensor places = at::arange(x.sym_size(1), x.options().dtype(at::kLong));
  return at::searchsorted(cu_seqlens.to(at::kLong), places, /*out_int32=*/false, /*right=*/true) - 1;
}

ScanHeads check_qkv(const char* op, const Named& q, const Named& k, const Tensor& v) {
  return heads_of(Sizes(op, {}, {{"v", v, "BThV"}, {k.name, k.x, "BThK"}, {q.name, q.x, "BTqK"}}));
}

bool given_together(const char* op, std::initializer_list<const OptionalTensor*> arguments, const char* names) {
  size_t given = 0;
  for (const auto* argument : arguments) given += argument->has_value();
  fail_input_if(given != 0 && given != arguments.size(), "[", op, "] ", names,
                " belong together: give all of them or none");
  return given != 0;
}

namespace {

void check_integers(const Tensor& x, std::string_view what) {
  fail_input_if(!at::isIntegralType(x.scalar_type(), /*includeBool=*/false), what, " must be integers, got ",
                x.scalar_type());
  fail_input_if(x.layout() != at::kStrided, what, " must be a dense tensor, got the layout ", x.layout());
}

Tensor checked_integers_kernel(const Tensor& x, std::string_view what, int64_t low,
                               c10::SymInt high) {  // NOLINT(performance-unnecessary-value-param): an operator's type
  check_integers(x, what);
  const Tensor out = x.to(at::kLong, /*non_blocking=*/false, /*copy=*/true);
  if (x.numel() == 0) return out;
  const auto lowest = out.min().item<int64_t>(), highest = out.max().item<int64_t>();
  fail_input_if(lowest < low, what, " must be at least ", low, ", got ", lowest);
  fail_input_if(highest > high.expect_int(), what, " must be at most ", high, ", got ", highest);
  return out;
}

Tensor checked_integers_meta(const Tensor& x, std::string_view, int64_t,
                             c10::SymInt) {  // NOLINT(performance-unnecessary-value-param): an operator's type
  return at::empty_symint(x.sym_sizes(), x.options().dtype(at::kLong));
}

Tensor once_backward_kernel(const Tensor& gradient) { return gradient.clone(); }
Tensor once_backward_meta(const Tensor& gradient) { return at::empty_like(gradient); }

class Once : public torch::autograd::Function<Once> {
 public:
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    static const auto op = find_operator<decltype(once_backward_kernel)>("cortado::_once_backward");
    return {op.call(gradients[0])};
  }
};

}  // namespace

Tensor checked_integers(const Tensor& x, const std::string& what, int64_t low, const c10::SymInt& high) {
  check_integers(x, what);
  static const auto op = find_operator<decltype(checked_integers_kernel)>("cortado::_checked_integers");
  return op.call(x, what, low, high);
}

Tensor differentiable_once(const Tensor& x) {
  return at::GradMode::is_enabled() && x.requires_grad() ? Once::apply(x) : x;
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(m, "_checked_integers(Tensor x, str what, int low, SymInt high) -> Tensor", checked_integers_kernel,
                  checked_integers_meta, torch::CppFunction::makeFallthrough());
  define_operator(m, "_once_backward(Tensor gradient) -> Tensor", once_backward_kernel, once_backward_meta,
                  once_differentiable());
}

Tensor divide_or_zero(const Tensor& x, const Tensor& by) {
  const Tensor nothing = by == 0;
  return (x / by.masked_fill(nothing, 1)).masked_fill(nothing, 0);
}

Tensor with_ones(const Tensor& v, at::ScalarType type) {
  const Tensor wide = v.to(type);
  return at::cat({wide, at::ones_symint({v.sym_size(0), v.sym_size(1), v.sym_size(2), 1}, wide.options())}, 3);
}

Tensor at_tokens(const Tensor& x, const OptionalTensor& cu_seqlens, const Tensor& like) {
  return cu_seqlens ? x.index_select(0, sequence_numbers(*cu_seqlens, like)).unsqueeze(0) : x.unsqueeze(1);
}

Tensor sequence_sums(const Tensor& k, const Tensor& v, const OptionalTensor& cu_seqlens) {
  if (!cu_seqlens) return at::matmul(k.permute({0, 2, 3, 1}), v.transpose(1, 2));
  return std::get<1>(gated_scan(k, k, v, {}, "key", 1.0, {}, {}, cu_seqlens));
}

SequenceMeans sequence_means(const Tensor& theta, const Tensor& v, const OptionalTensor& cu_seqlens) {
  const Tensor m = std::get<2>(running_max(theta, {}, cu_seqlens));  // the final maximum, over the whole sequence
  const Tensor peak = m.masked_fill(m == -kInfinity, 0);
  const Tensor keys = (theta - at_tokens(peak, cu_seqlens, theta)).exp();
  const c10::SymInt values = v.sym_size(3);
  const Tensor sums = sequence_sums(keys, with_ones(v, keys.scalar_type()), cu_seqlens);
  const Tensor sum = sums.narrow_symint(3, values, 1);
  return {divide_or_zero(sums.narrow_symint(3, 0, values), sum), sum.squeeze(3), peak};
}

Tensor read_sequences(const Tensor& q, const Tensor& m, const OptionalTensor& cu_seqlens) {
  if (!cu_seqlens) return at::matmul(q.transpose(1, 2), m).transpose(1, 2);
  return at::matmul(q.unsqueeze(3), at_tokens(m, cu_seqlens, q)).squeeze(3);
}

}  // namespace cortado
