#include "cortado/mechanisms/sequences.h"

#include "cortado/primitives/elementwise_scan/op.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {

Tensor sequence_numbers(const Tensor& cu_seqlens, const Tensor& x) {
  const Tensor places = at::arange(x.sym_size(1), x.options().dtype(at::kLong));
  return at::searchsorted(cu_seqlens.to(at::kLong), places, /*out_int32=*/false, /*right=*/true) - 1;
}

ScanHeads check_qkv(const char* op, const Named& q, const Named& k, const Tensor& v) {
  expect_shape(op, "v", v, {-1, -1, -1, -1});
  expect_shape(op, k.name, k.x, {v.sym_size(0), v.sym_size(1), -1, -1});
  expect_shape(op, q.name, q.x, {v.sym_size(0), v.sym_size(1), -1, k.x.sym_size(3)});
  const c10::SymInt state = common_heads(op, {{k.name, k.x.sym_size(2)}, {"v", v.sym_size(2)}});
  return {state, output_heads(op, q.x.sym_size(2), state)};
}

bool given_together(const char* op, std::initializer_list<const OptionalTensor*> arguments, const char* names) {
  size_t given = 0;
  for (const auto* argument : arguments) given += argument->has_value();
  fail_input_if(given != 0 && given != arguments.size(), "[", op, "] ", names,
                " belong together: give all of them or none");
  return given != 0;
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
  const Tensor m = std::get<2>(running_max(theta, {}, cu_seqlens));  // the last: of the whole sequence
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
