#include "cortado/mechanisms/linear/op.h"

#include "cortado/mechanisms/sequences.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {
namespace {

constexpr const char* kName = "normalized_linear";

struct Heads {
  c10::SymInt state, out;
};

Heads check(const Tensor& q, const Tensor& k, const Tensor& v) {
  expect_shape(kName, "v", v, {-1, -1, -1, -1});
  expect_shape(kName, "k", k, {v.sym_size(0), v.sym_size(1), -1, -1});
  expect_shape(kName, "q", q, {v.sym_size(0), v.sym_size(1), -1, k.sym_size(3)});
  const c10::SymInt state = common_heads(kName, {{"k", k.sym_size(2)}, {"v", v.sym_size(2)}});
  return {state, output_heads(kName, q.sym_size(2), state)};
}

// [numerator, denominator] -> their quotient, 0 where the denominator is.
Tensor quotient(const Tensor& sums, const c10::SymInt& values, double eps) {
  const Tensor denominator = sums.narrow_symint(3, values, 1) + eps;
  const Tensor nothing = denominator == 0;
  const Tensor o = sums.narrow_symint(3, 0, values) / denominator.masked_fill(nothing, 1);
  return o.masked_fill(nothing, 0);
}

// Every token reads the sums of its whole sequence.
Tensor read_all(const Tensor& q, const Tensor& k, const Tensor& v1, const Heads& heads,
                const std::optional<Tensor>& cu_seqlens) {
  const Tensor keys = repeat_heads(k, heads.state), queries = repeat_heads(q, heads.out);
  if (!cu_seqlens) {
    const Tensor sums = at::matmul(keys.permute({0, 2, 3, 1}), repeat_heads(v1, heads.state).transpose(1, 2));
    return at::matmul(queries.transpose(1, 2), repeat_heads(sums.unsqueeze(1), heads.out).squeeze(1)).transpose(1, 2);
  }
  auto [unused, sums] = gated_scan(keys, keys, repeat_heads(v1, heads.state), {}, "key", 1.0, {}, {}, cu_seqlens);
  const Tensor mine = repeat_heads(sums.unsqueeze(1), heads.out)
                          .squeeze(1)
                          .index_select(0, sequence_numbers(*cu_seqlens, keys));  // [T,H,K,V+1]
  return at::matmul(queries.squeeze(0).unsqueeze(2), mine).squeeze(2).unsqueeze(0);
}

}  // namespace

LinearResult normalized_linear(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double eps,
                               const std::optional<Tensor>& state, const std::optional<Tensor>& normalizer,
                               const std::optional<Tensor>& cu_seqlens) {
  const NoAutocast as_given;
  const Heads heads = check(q, k, v);
  const c10::SymInt rows = packed_rows(kName, cu_seqlens, v.sym_size(0)), keys = k.sym_size(3), values = v.sym_size(3);
  const bool resumed = given_together(kName, {&state, &normalizer}, "state and normalizer");
  fail_input_if(resumed && !causal, "[normalized_linear] causal=False takes no state");
  const auto type = accumulation_type({q, k, v, state, normalizer});
  // v with a column of ones: one scan gives the numerator and the denominator, its state S and z.
  const Tensor wide = v.to(type);
  const Tensor v1 = at::cat({wide, at::ones_like(wide.narrow(3, 0, 1))}, 3);
  if (!causal) {
    const Tensor o = quotient(read_all(q.to(type), k.to(type), v1, heads, cu_seqlens), values, eps);
    return {o.to(v.scalar_type()), at::zeros_symint({rows, heads.state, keys, values}, wide.options()),
            at::zeros_symint({rows, heads.state, keys}, wide.options())};
  }
  std::optional<Tensor> start;
  if (resumed) {
    expect_shape(kName, "state", *state, {rows, heads.state, keys, values});
    expect_shape(kName, "normalizer", *normalizer, {rows, heads.state, keys});
    start = at::cat({state->to(type), normalizer->to(type).unsqueeze(3)}, 3);
  }
  auto [sums, last] = gated_scan(q, k, v1, {}, "key", 1.0, {}, start, cu_seqlens);
  return {quotient(sums, values, eps).to(v.scalar_type()), last.narrow_symint(3, 0, values).contiguous(),
          last.narrow_symint(3, values, 1).squeeze(3).contiguous()};
}

namespace {

std::tuple<Tensor, Tensor, Tensor> normalized_linear_operator(const Tensor& q, const Tensor& k, const Tensor& v,
                                                              bool causal, double eps,
                                                              const std::optional<Tensor>& state,
                                                              const std::optional<Tensor>& normalizer,
                                                              const std::optional<Tensor>& cu_seqlens) {
  const LinearResult result = normalized_linear(q, k, v, causal, eps, state, normalizer, cu_seqlens);
  return {result.o, result.state, result.normalizer};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def(
      "normalized_linear(Tensor q, Tensor k, Tensor v, *, bool causal=True, float eps=0, Tensor? state=None, "
      "Tensor? normalizer=None, Tensor? cu_seqlens=None) -> (Tensor o, Tensor state, Tensor normalizer)",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, normalized_linear_operator));
}

}  // namespace cortado
