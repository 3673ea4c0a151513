#include "cortado/mechanisms/linear/op.h"

#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {
namespace {

constexpr const char* kLinearOp = "normalized_linear";

// Whether a GPU's kernels take the operands as they are, in 16 bits; their sums come in float32.
bool read_as_given(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto type = v.scalar_type();
  const auto tokens = v.sym_size(1).maybe_as_int();
  return v.is_cuda() && (type == at::kBFloat16 || type == at::kHalf) && q.scalar_type() == type &&
         k.scalar_type() == type && tokens && *tokens > 1;
}

// Divides the numerator by the denominator, both in `sums`.
Tensor quotient(const Tensor& sums, const c10::SymInt& values, double eps) {
  return divide_or_zero(sums.narrow_symint(3, 0, values), sums.narrow_symint(3, values, 1) + eps);
}

}  // namespace

LinearResult normalized_linear(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double eps,
                               const OptionalTensor& state, const OptionalTensor& normalizer,
                               const OptionalTensor& cu_seqlens) {
  const NoAutocast as_given;
  const Sizes sizes(kLinearOp, cu_seqlens,
                    {{"v", v, "BThV"},
                     {"k", k, "BThK"},
                     {"q", q, "BTqK"},
                     {"state", state, "NSKV"},
                     {"normalizer", normalizer, "NSK"}});
  const ScanHeads heads = heads_of(sizes);
  const c10::SymInt &rows = sizes['N'], &keys = sizes['K'], &values = sizes['V'];
  const bool resumed = given_together(kLinearOp, {&state, &normalizer}, "state and normalizer");
  fail_input_if(resumed && !causal, "[normalized_linear] causal=False takes no state");
  const auto type = accumulation_type({q, k, v, state, normalizer});
  const bool short_operands = causal && read_as_given(q, k, v);
  // One scan over v and a column of ones gives numerator and denominator; its state is S and z.
  const Tensor v1 = with_ones(v, short_operands ? v.scalar_type() : type);
  if (!causal) {
    const auto once = [&](const Tensor& x, const c10::SymInt& count) {
      return expand_heads(differentiable_once(x.to(type)), count);
    };
    const Tensor sums = sequence_sums(once(k, heads.state), once(v1, heads.state), cu_seqlens);
    const Tensor read = read_sequences(once(q, heads.out), expand_heads(sums, heads.out, 1), cu_seqlens);
    return {quotient(read, values, eps).to(v.scalar_type()),
            at::zeros_symint({rows, heads.state, keys, values}, v1.options()),
            at::zeros_symint({rows, heads.state, keys}, v1.options())};
  }
  OptionalTensor start;
  if (resumed) {
    start = at::cat({state->to(type), normalizer->to(type).unsqueeze(3)}, 3);
  }
  auto [sums, last] = short_operands ? gated_scores(q, k, v1, {}, "key", 1.0, start, cu_seqlens)
                                     : gated_scan(q, k, v1, {}, "key", 1.0, {}, start, cu_seqlens);
  return {quotient(sums, values, eps).to(v.scalar_type()), last.narrow_symint(3, 0, values).contiguous(),
          last.narrow_symint(3, values, 1).squeeze(3).contiguous()};
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def(
      "normalized_linear(Tensor q, Tensor k, Tensor v, *, bool causal=True, float eps=0, Tensor? state=None, "
      "Tensor? normalizer=None, Tensor? cu_seqlens=None) -> (Tensor o, Tensor state, Tensor normalizer)",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, Unpacked<normalized_linear>::call));
}

}  // namespace cortado
