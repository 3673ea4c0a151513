#include "cortado/primitives/window_attention/op.h"

#include "cortado/primitives/choice.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/operator.h"
#include "cortado/primitives/window_attention/inputs.h"
#include "cortado/primitives/window_attention/on_gpu.h"

namespace cortado {
namespace {

constexpr const char* kOp = "window_attention";

using Options = WindowAttentionOptions;

// --- Checks. They use shapes and types only, so they also run on Meta and fake tensors. ---

void check_together(const Options& options) {
  fail_input_if(options.extra_k.has_value() != options.extra_v.has_value(), "[", kOp,
                "] extra_k and extra_v must be given together");
  fail_input_if(options.extra_mask && !options.extra_k, "[", kOp, "] extra_mask needs extra_k and extra_v");
}

void check_extra(const Options& options, const Sizes& sizes) {
  if (!options.extra_k) return;
  const auto check_heads = [&](const char* name, const c10::SymInt& count) {
    fail_input_if(count < 1 || sizes['H'] % count != 0, "[", kOp, "] the heads of ", name, " (", count,
                  ") must divide the output's heads, ", sizes['H']);
  };
  check_heads("extra_k", options.extra_k->sym_size(2));
  check_heads("extra_v", options.extra_v->sym_size(2));
  if (!options.extra_mask) return;
  const Tensor& mask = *options.extra_mask;
  fail_input_if(mask.scalar_type() != at::kBool, "[", kOp, "] extra_mask must be bool, got ", mask.scalar_type());
  if (mask.dim() == 3) {
    expect_shape(kOp, "extra_mask", mask, {sizes['N'], -1, sizes['E']});
    check_heads("extra_mask", mask.sym_size(1));
  } else {
    expect_shape(kOp, "extra_mask", mask, {sizes['N'], sizes['E']});
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

Sizes check(const Tensor& q, const Tensor& k, const Tensor& v, const Options& options) {
  fail_input_if(options.window && *options.window < 1, "[", kOp, "] window must be at least 1, got ",
                options.window.value_or(0));
  fail_input_if(options.softcap && !(*options.softcap > 0), "[", kOp, "] softcap must be positive, got ",
                options.softcap.value_or(0));
  check_together(options);
  const Sizes sizes(kOp, options.cu_seqlens,
                    {{"q", q, "BIqK"},
                     {"k", k, "BJhK"},
                     {"v", v, "BJhV"},
                     {"extra_k", options.extra_k, "NE*K"},
                     {"extra_v", options.extra_v, "NE*V"}});
  check_packing(q, k, options, sizes['N']);
  check_extra(options, sizes);
  return sizes;
}

// --- The computation. ---

AttentionInputs attention_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Options& options) {
  std::vector<int64_t> query_bounds{0, q.size(1)}, key_bounds{0, k.size(1)};
  if (options.cu_seqlens) {
    query_bounds = sequence_bounds(kOp, *options.cu_seqlens, q.size(1));
    key_bounds = options.cu_seqlens_k ? sequence_bounds(kOp, *options.cu_seqlens_k, k.size(1)) : query_bounds;
  }
  return {.q = q,
          .k = k,
          .v = v,
          .extra_k = options.extra_k,
          .extra_v = options.extra_v,
          .extra_mask = options.extra_mask,
          .first_key = options.first_key,
          .packed = options.cu_seqlens.has_value(),
          .scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3)))),
          .softcap = options.softcap,
          .visible = visible_keys(query_bounds, key_bounds, options.window, options.causal)};
}

using Four = TensorTuple<4>;
using Five = TensorTuple<5>;

// In the order of the schema.
struct Arguments {
  const Tensor &q, &k, &v;
  Options options;
};
using Signature = Four(const Tensor&, const Tensor&, const Tensor&, std::optional<int64_t>, bool, std::optional<double>,
                       std::optional<double>, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                       const OptionalTensor&, const OptionalTensor&, const OptionalTensor&);

Four forward(const Arguments& in) {
  const auto& [q, k, v, options] = in;
  NoAutocast types_as_given;
  check(q, k, v, options);
  std::optional<AttentionInputs> made;
  const auto inputs = [&]() -> const AttentionInputs& {
    return made ? *made : made.emplace(attention_inputs(q, k, v, options));
  };
  const AttentionOutputs out =
      choose(kOp, q,
             on_gpu(
                 "kernel", [&] { return window::gpu_takes(q, k, v, options); },
                 [&] { return window::forward_on_gpu(q, k, v, options, cuda::machine_of(q)); }),
             on_cpu(
                 "kernel", [&] { return window::kernel_takes(inputs()); },
                 [&] { return window::forward_by_kernel(inputs()); }),
             otherwise("ATen", [&] { return window::forward_by_aten(inputs()); }));
  return {out.o, out.lse, out.row_max, out.denominator};
}

Four forward_meta(const Arguments& in) {
  const auto& [q, k, v, options] = in;
  const Sizes sizes = check(q, k, v, options);
  const auto sums = q.options().dtype(accumulation_type({q, k, v, options.extra_k, options.extra_v}));
  return {sizes.empty("BIHV", v.options()), sizes.empty("BIH", sums), sizes.empty("BIH", sums),
          sizes.empty("BIH", sums)};
}

// The gradient operator's arguments that the forward operator does not have; o, row_max and denominator are the
// forward's results.
struct Given {
  const Tensor& grad_o;
  const OptionalTensor &grad_lse, &grad_row_max;
  const Tensor &o, &row_max, &denominator;
};

Five backward(const Given& given, const Arguments& in) {
  const auto& [grad_o, grad_lse, grad_row_max, o, row_max, denominator] = given;
  const auto& [q, k, v, options] = in;
  NoAutocast types_as_given;
  check(q, k, v, options)
      .expect({{"grad_o", grad_o, "BIHV"},
               {"grad_lse", grad_lse, "BIH"},
               {"grad_row_max", grad_row_max, "BIH"},
               {"o", o, "BIHV"},
               {"row_max", row_max, "BIH"},
               {"denominator", denominator, "BIH"}});
  const AttentionOutputs outputs{o, {}, row_max, denominator};
  const Tensor of_lse = grad_lse.value_or(Tensor()), of_maximum = grad_row_max.value_or(Tensor());
  std::optional<AttentionInputs> made;
  const auto inputs = [&]() -> const AttentionInputs& {
    return made ? *made : made.emplace(attention_inputs(q, k, v, options));
  };
  const InputGradients grads = choose(
      "_window_attention_backward", q,
      on_gpu(
          "kernel", [&] { return !grad_row_max && window::gpu_takes(q, k, v, options); },
          [&] { return window::backward_on_gpu(q, k, v, options, outputs, {grad_o, of_lse}, cuda::machine_of(q)); }),
      on_cpu(
          "kernel", [&] { return kernels::usable({grad_o}) && window::backward_kernel_takes(inputs(), of_maximum); },
          [&] { return window::backward_by_kernel(inputs(), outputs, grad_o, of_lse, of_maximum); }),
      otherwise("ATen", [&] { return window::backward_by_aten(inputs(), grad_o, of_lse, of_maximum); }));
  if (options.extra_k) return {grads.q, grads.k, grads.v, grads.extra_k, grads.extra_v};
  return {grads.q, grads.k, grads.v, no_gradient(q), no_gradient(q)};
}

// --- Dispatch. ---

// Calls the private operator without first_key, and drops the denominator.
void public_form(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("cortado::_window_attention", "");
  stack->emplace_back();
  op.callBoxed(stack);
  stack->pop_back();
}

}  // namespace

TensorTuple<3> window_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                const WindowAttentionOptions& options) {
  static const auto op = find_operator<Signature>("cortado::_window_attention");
  const auto [o, lse, row_max, denominator] =
      op.call(q, k, v, options.window, options.causal, options.scale, options.softcap, options.extra_k, options.extra_v,
              options.extra_mask, options.cu_seqlens, options.cu_seqlens_k, options.first_key);
  return {o, lse, row_max};
}

// Defines the public operator, and a private one with first_key and the denominator that the backward needs.
TORCH_LIBRARY_FRAGMENT(cortado, m) {
  const std::string options =
      "*, int? window=None, bool causal=True, float? scale=None, float? softcap=None, Tensor? extra_k=None, "
      "Tensor? extra_v=None, Tensor? extra_mask=None, Tensor? cu_seqlens=None, Tensor? cu_seqlens_k=None";
  const std::string results = "(Tensor o, Tensor lse, Tensor row_max";
  m.def(("window_attention(Tensor q, Tensor k, Tensor v, " + options + ") -> " + results + ")").c_str());
  m.impl("window_attention", torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd,
                                             torch::CppFunction::makeFromBoxedFunction<&public_form>()));
  define_operator(
      m,
      "_window_attention(Tensor q, Tensor k, Tensor v, " + options + ", Tensor? first_key=None) -> " + results +
          ", Tensor denominator)",
      gathered<Signature, forward>, gathered<Signature, forward_meta>,
      gathered_gradient<void(const Tensor&, const OptionalTensor&, const OptionalTensor&, const Tensor&, const Tensor&,
                             const Tensor&),
                        Signature, backward>,
      {.given = "Tensor grad_o, Tensor? grad_lse, Tensor? grad_row_max, Tensor o, Tensor row_max, Tensor denominator",
       .inputs = {"q", "k", "v", "extra_k", "extra_v"}});
}

}  // namespace cortado
