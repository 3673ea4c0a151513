#include "cortado/primitives/window_attention/op.h"

#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/operator.h"
#include "cortado/primitives/window_attention/blocked.h"
#include "cortado/primitives/window_attention/on_cpu.h"

namespace cortado {
namespace {

constexpr const char* kOp = "window_attention";

// The arguments after q, k, v, in the order of the schema. Cheap to copy: at most six tensor handles.
struct Options {
  std::optional<int64_t> window;
  bool causal = true;
  std::optional<double> scale, softcap;
  OptionalTensor extra_k, extra_v, extra_mask, cu_seqlens, cu_seqlens_k, first_key;
};

// --- Checks: shapes and types only, so that they also run on Meta and fake tensors. ---

void check_types(const Tensor& q, const Tensor& k, const Tensor& v, const Options& options) {
  const std::pair<const char*, OptionalTensor> inputs[] = {
      {"q", q}, {"k", k}, {"v", v}, {"extra_k", options.extra_k}, {"extra_v", options.extra_v}};
  for (const auto& [name, x] : inputs) {
    if (x && !at::isFloatingType(x->scalar_type())) {
      throw InputError(concat("[", kOp, "] ", name, " must be of a floating-point type, got ", x->scalar_type()));
    }
  }
  if (options.extra_mask && options.extra_mask->scalar_type() != at::kBool) {
    throw InputError(concat("[", kOp, "] extra_mask must be bool, got ", options.extra_mask->scalar_type()));
  }
}

void check_extra(const Options& options, const c10::SymInt& rows, const c10::SymInt& heads,
                 const c10::SymInt& key_size) {
  fail_input_if(options.extra_k.has_value() != options.extra_v.has_value(), "[", kOp,
                "] extra_k and extra_v must be given together");
  fail_input_if(options.extra_mask && !options.extra_k, "[", kOp, "] extra_mask needs extra_k and extra_v");
  if (!options.extra_k) return;
  expect_shape(kOp, "extra_k", *options.extra_k, {rows, -1, -1, key_size});
  const c10::SymInt extra = options.extra_k->sym_size(1);
  expect_shape(kOp, "extra_v", *options.extra_v, {rows, extra, -1, -1});
  const auto check_heads = [&](const char* name, const c10::SymInt& count) {
    fail_input_if(count < 1 || heads % count != 0, "[", kOp, "] the heads of ", name, " (", count,
                  ") must divide the output's heads, ", heads);
  };
  check_heads("extra_k", options.extra_k->sym_size(2));
  check_heads("extra_v", options.extra_v->sym_size(2));
  if (!options.extra_mask) return;
  if (options.extra_mask->dim() == 3) {
    expect_shape(kOp, "extra_mask", *options.extra_mask, {rows, -1, extra});
    check_heads("extra_mask", options.extra_mask->sym_size(1));
  } else {
    expect_shape(kOp, "extra_mask", *options.extra_mask, {rows, extra});
  }
}

void check_packing(const Tensor& q, const Tensor& k, const Options& options, const c10::SymInt& sequences) {
  fail_input_if(options.cu_seqlens_k && !options.cu_seqlens, "[", kOp, "] cu_seqlens_k needs cu_seqlens");
  fail_input_if(options.first_key && options.cu_seqlens, "[", kOp,
                "] first_key needs a dense batch, without cu_seqlens");
  if (options.cu_seqlens_k) {
    const c10::SymInt rows = packed_rows(kOp, options.cu_seqlens_k, 1);
    fail_input_if(rows != sequences, "[", kOp, "] cu_seqlens and cu_seqlens_k must have as many sequences, got ",
                  sequences, " and ", rows);
  } else if (options.cu_seqlens) {
    fail_input_if(q.sym_size(1) != k.sym_size(1), "[", kOp, "] packed q and k of different lengths (", q.sym_size(1),
                  " and ", k.sym_size(1), ") need cu_seqlens_k");
  }
  if (options.first_key) {
    expect_shape(kOp, "first_key", *options.first_key, {q.sym_size(0)});
    fail_input_if(options.first_key->scalar_type() != at::kLong, "[", kOp, "] first_key must be int64");
  }
}

// Returns the heads of the output.
c10::SymInt check(const Tensor& q, const Tensor& k, const Tensor& v, const Options& options) {
  expect_shape(kOp, "q", q, {-1, -1, -1, -1});
  expect_shape(kOp, "k", k, {q.sym_size(0), -1, -1, q.sym_size(3)});
  expect_shape(kOp, "v", v, {q.sym_size(0), k.sym_size(1), -1, -1});
  check_types(q, k, v, options);
  fail_input_if(options.window && *options.window < 1, "[", kOp, "] window must be at least 1, got ",
                options.window.value_or(0));
  fail_input_if(options.softcap && !(*options.softcap > 0), "[", kOp, "] softcap must be positive, got ",
                options.softcap.value_or(0));
  const c10::SymInt state_heads = common_heads(kOp, {{"k", k.sym_size(2)}, {"v", v.sym_size(2)}});
  const c10::SymInt heads = output_heads(kOp, q.sym_size(2), state_heads);
  const c10::SymInt sequences = packed_rows(kOp, options.cu_seqlens, q.sym_size(0));
  check_packing(q, k, options, sequences);
  check_extra(options, sequences, heads, q.sym_size(3));
  if (options.extra_v) expect_shape(kOp, "extra_v", *options.extra_v, {-1, -1, -1, v.sym_size(3)});
  return heads;
}

// --- The computation. ---

BlockedInputs blocked_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Options& options) {
  std::vector<int64_t> query_bounds{0, q.size(1)}, key_bounds{0, k.size(1)};
  if (options.cu_seqlens) {
    query_bounds = sequence_bounds(kOp, *options.cu_seqlens, q.size(1));
    key_bounds = options.cu_seqlens_k ? sequence_bounds(kOp, *options.cu_seqlens_k, k.size(1)) : query_bounds;
  }
  BlockedInputs inputs;
  inputs.q = q;
  inputs.k = k;
  inputs.v = v;
  inputs.extra_k = options.extra_k;
  inputs.extra_v = options.extra_v;
  inputs.extra_mask = options.extra_mask;
  inputs.first_key = options.first_key;
  inputs.packed = options.cu_seqlens.has_value();
  inputs.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
  inputs.softcap = options.softcap;
  inputs.visible = visible_keys(query_bounds, key_bounds, options.window, options.causal);
  return inputs;
}

using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// The argument lists of the schemas, written once.
#define CORTADO_WINDOW_OPTIONS                                                                            \
  std::optional<int64_t> window, bool causal, std::optional<double> scale, std::optional<double> softcap, \
      const OptionalTensor &extra_k, const OptionalTensor &extra_v, const OptionalTensor &extra_mask,     \
      const OptionalTensor &cu_seqlens, const OptionalTensor &cu_seqlens_k, const OptionalTensor &first_key
#define CORTADO_WINDOW_NAMES \
  window, causal, scale, softcap, extra_k, extra_v, extra_mask, cu_seqlens, cu_seqlens_k, first_key

Four forward(const Tensor& q, const Tensor& k, const Tensor& v, CORTADO_WINDOW_OPTIONS) {
  NoAutocast types_as_given;
  const Options options{CORTADO_WINDOW_NAMES};
  check(q, k, v, options);
  const BlockedInputs inputs = blocked_inputs(q, k, v, options);
  const BlockedOutputs out = window::kernel_takes(inputs) ? window::forward_by_kernel(inputs) : blocked_forward(inputs);
  return {out.o, out.lse, out.row_max, out.denominator};
}

Four forward_meta(const Tensor& q, const Tensor& k, const Tensor& v, CORTADO_WINDOW_OPTIONS) {
  const Options options{CORTADO_WINDOW_NAMES};
  const c10::SymInt heads = check(q, k, v, options);
  const auto sums = q.options().dtype(accumulation_type({q, k, v, extra_k, extra_v}));
  const c10::SymInt batch = q.sym_size(0), queries = q.sym_size(1);
  const auto row = [&] { return at::empty_symint({batch, queries, heads}, sums); };
  return {at::empty_symint({batch, queries, heads, v.sym_size(3)}, v.options()), row(), row(), row()};
}

#define CORTADO_WINDOW_SAVED                                                                                 \
  const Tensor &grad_o, const OptionalTensor &grad_lse, const OptionalTensor &grad_row_max, const Tensor &q, \
      const Tensor &k, const Tensor &v, const Tensor &o, const Tensor &row_max, const Tensor &denominator

Five backward(CORTADO_WINDOW_SAVED, CORTADO_WINDOW_OPTIONS) {
  NoAutocast types_as_given;
  const Options options{CORTADO_WINDOW_NAMES};
  check(q, k, v, options);
  const BlockedOutputs outputs{o, {}, row_max, denominator};
  const BlockedInputs inputs = blocked_inputs(q, k, v, options);
  const Tensor of_maximum = grad_row_max.value_or(Tensor());
  const auto differentiate = kernels::usable({grad_o}) && window::backward_kernel_takes(inputs, of_maximum)
                                 ? window::backward_by_kernel
                                 : blocked_backward;
  const BlockedGradients grads = differentiate(inputs, outputs, grad_o, grad_lse.value_or(Tensor()), of_maximum);
  if (extra_k) return {grads.q, grads.k, grads.v, grads.extra_k, grads.extra_v};
  return {grads.q, grads.k, grads.v, no_gradient(q), no_gradient(q)};
}

Five backward_meta(CORTADO_WINDOW_SAVED, CORTADO_WINDOW_OPTIONS) {
  const Options options{CORTADO_WINDOW_NAMES};
  const c10::SymInt heads = check(q, k, v, options);
  expect_shape(kOp, "grad_o", grad_o, {q.sym_size(0), q.sym_size(1), heads, v.sym_size(3)});
  for (const auto& x : {grad_lse, grad_row_max, OptionalTensor(row_max), OptionalTensor(denominator)}) {
    if (x) expect_shape(kOp, "a row's gradient", *x, {q.sym_size(0), q.sym_size(1), heads});
  }
  expect_shape(kOp, "o", o, {q.sym_size(0), q.sym_size(1), heads, v.sym_size(3)});
  return {gradient_meta(q, q), gradient_meta(k, q), gradient_meta(v, q), gradient_meta(extra_k, q),
          gradient_meta(extra_v, q)};
}

// --- Dispatch. ---

Four call_forward(const Tensor& q, const Tensor& k, const Tensor& v, CORTADO_WINDOW_OPTIONS) {
  static const auto op = find_operator<decltype(forward)>("cortado::_window_attention");
  return op.call(q, k, v, CORTADO_WINDOW_NAMES);
}

std::tuple<Tensor, Tensor, Tensor> public_form(const Tensor& q, const Tensor& k, const Tensor& v,
                                               std::optional<int64_t> window, bool causal, std::optional<double> scale,
                                               std::optional<double> softcap, const OptionalTensor& extra_k,
                                               const OptionalTensor& extra_v, const OptionalTensor& extra_mask,
                                               const OptionalTensor& cu_seqlens, const OptionalTensor& cu_seqlens_k) {
  const auto out = call_forward(q, k, v, window, causal, scale, softcap, extra_k, extra_v, extra_mask, cu_seqlens,
                                cu_seqlens_k, std::nullopt);
  return {std::get<0>(out), std::get<1>(out), std::get<2>(out)};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> window_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                    const WindowAttentionOptions& options) {
  const auto out =
      call_forward(q, k, v, options.window, options.causal, options.scale, options.softcap, options.extra_k,
                   options.extra_v, options.extra_mask, options.cu_seqlens, options.cu_seqlens_k, options.first_key);
  return {std::get<0>(out), std::get<1>(out), std::get<2>(out)};
}

// The public operator, and beside it the one with first_key and the denominator that the backward needs.
TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def(
      "window_attention(Tensor q, Tensor k, Tensor v, *, int? window=None, bool causal=True, float? scale=None, "
      "float? softcap=None, Tensor? extra_k=None, Tensor? extra_v=None, Tensor? extra_mask=None, "
      "Tensor? cu_seqlens=None, Tensor? cu_seqlens_k=None) -> (Tensor o, Tensor lse, Tensor row_max)");
  m.impl("window_attention", torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, public_form));
  define_operator(
      m,
      "_window_attention(Tensor q, Tensor k, Tensor v, *, int? window=None, bool causal=True, float? scale=None, "
      "float? softcap=None, Tensor? extra_k=None, Tensor? extra_v=None, Tensor? extra_mask=None, "
      "Tensor? cu_seqlens=None, Tensor? cu_seqlens_k=None, Tensor? first_key=None) "
      "-> (Tensor o, Tensor lse, Tensor row_max, Tensor denominator)",
      forward, forward_meta,
      differentiable_by("cortado::window_attention_backward", {"q", "k", "v", "extra_k", "extra_v"}));
  define_operator(
      m,
      "window_attention_backward(Tensor grad_o, Tensor? grad_lse, Tensor? grad_row_max, Tensor q, Tensor k, Tensor v, "
      "Tensor o, Tensor row_max, Tensor denominator, *, int? window=None, bool causal=True, float? scale=None, "
      "float? softcap=None, Tensor? extra_k=None, Tensor? extra_v=None, Tensor? extra_mask=None, "
      "Tensor? cu_seqlens=None, Tensor? cu_seqlens_k=None, Tensor? first_key=None) "
      "-> (Tensor q, Tensor k, Tensor v, Tensor extra_k, Tensor extra_v)",
      backward, backward_meta, once_differentiable());
}

}  // namespace cortado
