#include "cortado/mechanisms/macchiato/op.h"

#include "cortado/mechanisms/sequences.h"
#include "cortado/primitives/common.h"

namespace cortado {
namespace {

constexpr const char* kName = "macchiato";

void check(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, const MacchiatoOptions& options) {
  expect_shape(kName, "v", v, {-1, -1, -1, -1});
  expect_shape(kName, "key_logits", key_logits, {v.sym_size(0), v.sym_size(1), -1, -1});
  expect_shape(kName, "query_logits", query_logits, {v.sym_size(0), v.sym_size(1), -1, key_logits.sym_size(3) + 1});
  const bool resumed = given_together(kName, {&options.past.k, &options.past.v}, "past_k and past_v");
  fail_input_if(options.past.length && !resumed, "[macchiato] past_length without past_k and past_v");
  fail_input_if(resumed && !options.causal, "[macchiato] causal=False takes no past");
  if (!resumed) return;
  const c10::SymInt rows = packed_rows(kName, options.cu_seqlens, v.sym_size(0));
  expect_shape(kName, "past_k", *options.past.k, {rows, -1, -1, -1});
  expect_shape(kName, "past_v", *options.past.v, {rows, options.past.k->sym_size(1), -1, v.sym_size(3)});
  if (options.past.length) expect_shape(kName, "past_length", *options.past.length, {rows});
}

}  // namespace

LatteResult macchiato(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, const Tensor& window_q,
                      const Tensor& window_k, const MacchiatoOptions& options) {
  const NoAutocast as_given;
  check(query_logits, key_logits, v, options);
  const auto type = accumulation_type({query_logits, key_logits, v, window_q, window_k, options.start.state});
  const Tensor p = at::softmax(query_logits.to(type), -1);
  const c10::SymInt latents = key_logits.sym_size(3);
  WindowAttentionOptions window;
  window.window = options.window;
  window.causal = options.causal;
  window.scale = options.scale;
  window.cu_seqlens = options.cu_seqlens;
  const Tensor wide_v = v.to(type);  // both parts stay wide until they are joined
  const Tensor local = attend_joined(window_q, join_past(options.past, window_k, wide_v, options.cu_seqlens), window);
  LatteResult result = latte_with_weights(p.narrow_symint(3, 1, latents), key_logits, wide_v, options.causal,
                                          options.start, options.cu_seqlens);
  const c10::SymInt heads = local.sym_size(2) > result.o.sym_size(2) ? local.sym_size(2) : result.o.sym_size(2);
  result.o =
      (repeat_heads(p.narrow_symint(3, 0, 1), heads) * repeat_heads(local, heads) + repeat_heads(result.o, heads))
          .to(v.scalar_type());
  return result;
}

namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> macchiato_operator(
    const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, const Tensor& window_q,
    const Tensor& window_k, int64_t window, std::optional<double> scale, bool causal,
    const std::optional<Tensor>& past_k, const std::optional<Tensor>& past_v, const std::optional<Tensor>& past_length,
    const std::optional<Tensor>& state, const std::optional<Tensor>& normalizer, const std::optional<Tensor>& maximum,
    const std::optional<Tensor>& cu_seqlens) {
  MacchiatoOptions options;
  options.window = window;
  options.scale = scale;
  options.causal = causal;
  options.past = {past_k, past_v, past_length};
  options.start = {state, normalizer, maximum};
  options.cu_seqlens = cu_seqlens;
  const LatteResult result = macchiato(query_logits, key_logits, v, window_q, window_k, options);
  return {result.o, result.state, result.normalizer, result.maximum};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def(
      "macchiato(Tensor query_logits, Tensor key_logits, Tensor v, Tensor window_q, Tensor window_k, *, int window, "
      "float? scale=None, bool causal=True, Tensor? past_k=None, Tensor? past_v=None, Tensor? past_length=None, "
      "Tensor? state=None, Tensor? normalizer=None, Tensor? maximum=None, Tensor? cu_seqlens=None) -> (Tensor o, "
      "Tensor state, Tensor normalizer, Tensor maximum)",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, macchiato_operator));
}

}  // namespace cortado
