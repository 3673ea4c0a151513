#include "cortado/mechanisms/macchiato/op.h"

#include <algorithm>
#include <cmath>

#include "cortado/mechanisms/macchiato/mix_on_gpu.h"
#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/primitives/choice.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/gated_scan/on_gpu.h"
#include "cortado/primitives/latte_scan/step_on_gpu.h"

namespace cortado {
namespace {

constexpr const char* kMacchiatoOp = "macchiato";

void check(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, const Tensor& window_q,
           const JoinedKeys& window, const MacchiatoOptions& options) {
  const Sizes sizes(kMacchiatoOp, options.cu_seqlens,
                    {{"v", v, "BThV"},
                     {"key_logits", key_logits, "BThL"},
                     {"query_logits", query_logits, "BT**"},
                     {"window_q", window_q, "BT*W"},
                     {"window_k", window.k, "***W"},
                     {"state", options.start.state, "NSLV"},
                     {"normalizer", options.start.normalizer, "NSL"},
                     {"maximum", options.start.maximum, "NSL"}});
  expect_shape(kMacchiatoOp, "query_logits", query_logits, {sizes['B'], sizes['T'], -1, sizes['L'] + 1});
}

// Softmax over the latents. torch's softmax wakes its threads for any size, which a few numbers in decoding are not
// worth. The two implementations round differently, so the choice depends only on the sequence's own sizes, not on the
// batch.
Tensor weights_of(const Tensor& logits) {
  constexpr int64_t kFew = 1024;  // numbers per row
  const bool plain = logits.is_inference() && !logits.unsafeGetTensorImpl()->is_python_dispatch();
  const bool few = plain && logits.is_cpu() && logits.scalar_type() == at::kFloat && logits.is_contiguous();
  if (!few || logits.numel() == 0 || logits.numel() > kFew * logits.size(0)) return at::softmax(logits, -1);
  const Tensor weights = at::empty_like(logits);
  const int64_t size = logits.size(-1);
  const auto* from = logits.const_data_ptr<float>();
  auto* to = weights.mutable_data_ptr<float>();
  for (const float* end = from + logits.numel(); from < end; from += size, to += size) {
    const float largest = *std::max_element(from, from + size);
    float sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += to[i] = std::exp(from[i] - largest);
    for (int64_t i = 0; i < size; ++i) to[i] /= sum;
  }
  return weights;
}

at::ScalarType values_type(const Tensor& key_logits, const Tensor& v, at::ScalarType type) {
  const auto latents = key_logits.sym_size(3).maybe_as_int(), width = v.sym_size(3).maybe_as_int();
  return latents && width ? gated::operand_type(v, {*latents, *width}, type) : type;
}

// The window's past as the operator's arguments give it.
PastKeys past_keys(const Tensor& window_k, const Tensor& v, bool causal, const OptionalTensor& k_before,
                   const OptionalTensor& v_before, const OptionalTensor& length, const OptionalTensor& cu_seqlens) {
  const bool resumed = given_together(kMacchiatoOp, {&k_before, &v_before}, "past_k and past_v");
  fail_input_if(length && !resumed, "[macchiato] past_length without past_k and past_v");
  fail_input_if(resumed && !causal, "[macchiato] causal=False takes no past");
  const Sizes sizes(
      kMacchiatoOp, cu_seqlens,
      {{"v", v, "BTGV"}, {"window_k", window_k, "BTJK"}, {"past_k", k_before, "NPJK"}, {"past_v", v_before, "NPGV"}});
  if (!resumed) return {};
  if (!length) return {k_before, v_before, {}};
  expect_shape(kMacchiatoOp, "past_length", *length, {sizes['N']});
  return {k_before, v_before, checked_integers(*length, "[macchiato] past_length", 0, sizes['P'])};
}

// In the order of the schema.
struct MacchiatoArguments {
  const Tensor &query_logits, &key_logits, &v, &window_q, &window_k;
  int64_t window;
  std::optional<double> scale;
  bool causal;
  const OptionalTensor &past_k, &past_v, &past_length, &state, &normalizer, &maximum, &cu_seqlens;
};
using MacchiatoSignature = TensorTuple<4>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                          int64_t, std::optional<double>, bool, const OptionalTensor&,
                                          const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                          const OptionalTensor&, const OptionalTensor&, const OptionalTensor&);

TensorTuple<4> macchiato_operator(const MacchiatoArguments& in) {
  const MacchiatoOptions options{
      {.window = in.window, .causal = in.causal, .scale = in.scale, .cu_seqlens = in.cu_seqlens},
      {in.state, in.normalizer, in.maximum}};
  const PastKeys past = past_keys(in.window_k, in.v, in.causal, in.past_k, in.past_v, in.past_length, in.cu_seqlens);
  const JoinedKeys keys = join_past(past, in.window_k, in.v, in.cu_seqlens, UnusedPlaces::kKeepBehind);
  const LatteResult result = macchiato(in.query_logits, in.key_logits, in.v, in.window_q, keys, options);
  return {result.o, result.state, result.normalizer, result.maximum};
}

// One token per row on a GPU without gradients: the window's part, and everything else in one kernel.
latent::GpuLatteInputs step_inputs(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v,
                                   const LatteState& start) {
  const auto given = [](const OptionalTensor& x) { return x.value_or(Tensor()); };
  return {query_logits, key_logits, v, given(start.state), given(start.normalizer), given(start.maximum)};
}
bool gpu_takes_step(const latent::GpuLatteInputs& in, const MacchiatoOptions& options) {
  return !at::GradMode::is_enabled() && options.causal && !options.cu_seqlens && cuda::has_numbers(in.v) &&
         latent::gpu_takes_step(in);
}

// As macchiato(), in 16 bits between the GPU's kernels.
LatteResult mixed_on_gpu(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, const Tensor& window_q,
                         const JoinedKeys& window, const MacchiatoOptions& options) {
  const latent::MixWeights weights = latent::mix_weights(query_logits);
  const Tensor near = attend_joined(window_q, window, options);
  LatteResult result = latte_with_weights(weights.p, key_logits, v, options.causal, options.start, options.cu_seqlens);
  const int64_t heads = query_logits.size(2);
  const auto all = [&](const Tensor& x) { return expand_heads(x.to(at::kBFloat16), heads); };
  result.o = latent::mix(all(result.o), all(near), weights.first);
  return result;
}

// Both parts stay in the accumulation type until they are joined, except for a GPU's kernels, which take short
// operands.
LatteResult join_parts(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, const Tensor& window_q,
                       const JoinedKeys& window, const MacchiatoOptions& options) {
  const auto type = accumulation_type({query_logits, key_logits, v, window_q, window.k, window.v, options.start.state,
                                       options.start.normalizer, options.start.maximum});
  // One split instead of two narrows: its backward pass joins the gradients in one pass.
  const auto p = weights_of(query_logits.to(type)).split_with_sizes_symint({1, key_logits.sym_size(3)}, 3);
  const auto values = values_type(key_logits, v, type);
  JoinedKeys keys = window;
  keys.v = keys.v.to(values);
  const Tensor local = attend_joined(window_q, keys, options);
  LatteResult result =
      latte_with_weights(p[1], key_logits, v.to(values), options.causal, options.start, options.cu_seqlens);
  const c10::SymInt heads = local.sym_size(2) > result.o.sym_size(2) ? local.sym_size(2) : result.o.sym_size(2);
  const auto wide = [&](const Tensor& x) { return expand_heads(x.to(type), heads); };
  result.o = at::addcmul(wide(result.o), wide(p[0]), wide(local)).to(v.scalar_type());
  return result;
}

}  // namespace

LatteResult macchiato(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, const Tensor& window_q,
                      const JoinedKeys& window, const MacchiatoOptions& options) {
  const NoAutocast as_given;
  check(query_logits, key_logits, v, window_q, window, options);
  const auto token = [&] { return step_inputs(query_logits, key_logits, v, options.start); };
  return choose(kMacchiatoOp, v,
                on_gpu(
                    "kernel of one token", [&] { return gpu_takes_step(token(), options); },
                    [&] {
                      return latent::mixed_step_on_gpu(token(), attend_joined(window_q, window, options),
                                                       cuda::machine_of(v));
                    }),
                on_gpu(
                    "kernels in 16 bits", [&] { return latent::gpu_mixes(query_logits, v); },
                    [&] { return mixed_on_gpu(query_logits, key_logits, v, window_q, window, options); }),
                otherwise("parts", [&] { return join_parts(query_logits, key_logits, v, window_q, window, options); }));
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def(
      "macchiato(Tensor query_logits, Tensor key_logits, Tensor v, Tensor window_q, Tensor window_k, *, int window, "
      "float? scale=None, bool causal=True, Tensor? past_k=None, Tensor? past_v=None, Tensor? past_length=None, "
      "Tensor? state=None, Tensor? normalizer=None, Tensor? maximum=None, Tensor? cu_seqlens=None) -> (Tensor o, "
      "Tensor state, Tensor normalizer, Tensor maximum)",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, gathered<MacchiatoSignature, macchiato_operator>));
}

}  // namespace cortado
