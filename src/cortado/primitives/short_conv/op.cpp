#include "cortado/primitives/short_conv/op.h"

#include "cortado/primitives/choice.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/operator.h"
#include "cortado/primitives/short_conv/kernel.h"
#include "cortado/primitives/short_conv/on_gpu.h"

namespace cortado {
namespace {

constexpr const char* kOp = "short_conv";

// In the order of the schema.
struct Arguments {
  const Tensor &x, &weight;
  const OptionalTensor& bias;
  std::string_view activation;
  const OptionalTensor &initial_state, &cu_seqlens;

  bool silu() const { return activation == "silu"; }
  at::ScalarType type() const { return accumulation_type({x, weight, bias, initial_state}); }
};

// The tokens before a sequence's first, or its last.
void expect_tail(const Sizes& sizes, const char* name, const Tensor& x) {
  expect_shape(kOp, name, x, {sizes['N'], sizes['W'] - 1, sizes['D']});
}

Sizes check(const Arguments& in) {
  fail_input_if(in.activation != "none" && !in.silu(), "[", kOp, "] activation must be \"none\" or \"silu\", got \"",
                in.activation, "\"");
  const Sizes sizes(kOp, in.cu_seqlens,
                    {{"x", in.x, "BTD"},
                     {"weight", in.weight, "DW"},
                     {"bias", in.bias, "D"},
                     {"initial_state", in.initial_state, "N*D"}});
  fail_input_if(sizes['W'] < 1, "[", kOp, "] weight must have at least one tap");
  if (in.initial_state) expect_tail(sizes, "initial_state", *in.initial_state);
  return sizes;
}

// --- By the kernel: float32 sums, ordinary CPU tensors. ---

bool kernel_takes(const Arguments& in) {
  const bool tail = in.initial_state && in.initial_state->numel() > 0;
  return in.type() == at::kFloat &&
         kernels::usable({in.x, in.weight, in.bias.value_or(Tensor()), tail ? *in.initial_state : Tensor()});
}

std::vector<convolution::Block> blocks_of(const Bounds& bounds, const Tensor& x) {
  std::vector<convolution::Block> blocks;
  const auto* packed = bounds.data();
  for (int64_t row = 0; row < bounds.rows(x.size(0)); ++row) {
    const int64_t begin = packed ? packed[row] : 0, length = packed ? packed[row + 1] - begin : x.size(1);
    int64_t first = 0;
    do {
      const int64_t count = std::min(convolution::kBlockTokens, length - first);
      blocks.push_back({row, packed ? 0 : row, begin, length, first, count});
      first += count;
    } while (first < length);
  }
  return blocks;
}

kernels::Timed timed(const Tensor& x) { return kernels::timed(x.unsqueeze(2), 1); }

// A call's inputs, and the tensors whose data it points to.
struct KernelInputs {
  Tensor x, weight, bias, initial;
  std::vector<convolution::Block> blocks;
  convolution::ConvKernel call;

  KernelInputs(const Arguments& in, const Bounds& bounds)
      : x(kernels::dense_rows(in.x)),
        weight(kernels::plain(in.weight.t())),
        bias(kernels::plain(in.bias.value_or(Tensor()))),
        initial(kernels::plain(in.initial_state.value_or(Tensor()))),
        blocks(blocks_of(bounds, in.x)),
        call{.channels = x.size(2), .taps = weight.size(0), .silu = in.silu()} {
    call.blocks = blocks.data();
    call.count = static_cast<int64_t>(blocks.size());
    call.x = timed(x);
    call.weight = kernels::numbers(weight);
    call.bias = kernels::numbers(bias);
    call.initial = kernels::numbers(initial);
    call.past_caches = kernels::goes_past_caches(x.numel(), call.channels);
  }
  Tensor states() const {
    return kernels::room({blocks.back().row + 1, weight.size(0) - 1, x.size(2)}, x.options().dtype(at::kFloat));
  }
};

// (y in x's type, final state in float32)
TensorTuple<2> forward_by_kernel(const Arguments& in, const Bounds& bounds) {
  KernelInputs inputs(in, bounds);
  convolution::ConvKernel& call = inputs.call;
  const Tensor y = kernels::room(in.x.sizes(), in.x.options()), last = inputs.states();
  call.y = timed(y);
  call.final_state = kernels::numbers(last);
  run_forward(call, kernels::parallel(in.x.numel() * call.taps));
  return {y, last};
}

using Four = TensorTuple<4>;  // gradients of x, weight, bias, initial_state

// x's in its type; in float32 those of the weight [D,W], the bias and the initial state, given or not.
Four backward_by_kernel(const Arguments& in, const Bounds& bounds, const Tensor& grad_y,
                        const OptionalTensor& grad_final) {
  KernelInputs inputs(in, bounds);
  convolution::ConvKernel& call = inputs.call;
  const Tensor grads = kernels::dense_rows(grad_y.to(in.x.scalar_type()));
  const Tensor last = kernels::plain(grad_final.value_or(Tensor()));
  const Tensor first = inputs.states(), grad_x = kernels::room(in.x.sizes(), in.x.options());
  const Tensor weights = kernels::room({call.taps + 1, call.channels}, first.options());
  const Tensor sums = kernels::room({call.count, call.taps + 1, call.channels}, first.options());
  call.grad_y = timed(grads);
  call.grad_x = timed(grad_x);
  call.grad_final = kernels::numbers(last);
  call.grad_initial = kernels::numbers(first);
  call.sums = kernels::numbers(sums);
  call.grad_weight = kernels::numbers(weights);
  run_backward(call, kernels::parallel());
  return {grad_x, weights.narrow(0, 0, call.taps).t(), weights.select(0, call.taps), first};
}

// --- By a GPU's kernel. ---

convolution::GpuInputs gpu_inputs(const Arguments& in) {
  const auto given = [](const OptionalTensor& x) { return x.value_or(Tensor()); };
  return {in.x, in.weight, given(in.bias), given(in.initial_state), in.silu()};
}

// --- By ATen. ---

// Where the tokens and the tails stand once every sequence n is laid out as [its W-1 tail rows, its tokens] along one
// axis of T + N·(W-1) rows. A dense batch has one such sequence a batch row and needs no lists.
struct Layout {
  Tensor tokens;  // [T] places of the tokens
  Tensor tails;   // [N·(W-1)] places of the initial tails
  Tensor ends;    // [N·(W-1)] places of the last W-1 rows of each sequence: its final state
  int64_t length = 0;
};

Layout packed_layout(const Tensor& cu_seqlens, int64_t tokens, int64_t tail, at::Device device) {
  const auto bounds = sequence_bounds(kOp, cu_seqlens, tokens);
  std::vector<int64_t> token_places, tail_places, end_places;
  for (int64_t n = 0; n + 1 < static_cast<int64_t>(bounds.size()); ++n) {
    const int64_t start = bounds[n] + n * tail, end = bounds[n + 1] + (n + 1) * tail;
    for (int64_t p = start; p < start + tail; ++p) tail_places.push_back(p);
    for (int64_t p = start + tail; p < end; ++p) token_places.push_back(p);
    for (int64_t p = end - tail; p < end; ++p) end_places.push_back(p);
  }
  const auto list = [device](const std::vector<int64_t>& places) { return at::tensor(places, at::kLong).to(device); };
  return {list(token_places), list(tail_places), list(end_places), tokens + static_cast<int64_t>(tail_places.size())};
}

// One problem in the accumulation type: tails and tokens laid out together, [B, P, D].
struct Padded {
  Tensor rows;    // [B, T + W-1, D], or [1, T + N·(W-1), D] packed
  Tensor weight;  // [W, D], tap by tap
  Tensor bias;    // [D] or undefined
  std::optional<Layout> layout;
  int64_t tokens, tail;

  // What belongs to the tokens in a tensor over the padded axis, [B, P, D] -> [B, T, D].
  Tensor tokens_of(const Tensor& x) const {
    return layout ? x.index_select(1, layout->tokens) : x.narrow(1, tail, tokens);
  }
  Tensor tails_of(const Tensor& x, const Tensor& places, int64_t begin) const {  // -> [B|N, W-1, D]
    if (!layout) return x.narrow(1, begin, tail);
    const int64_t sequences = tail == 0 ? 0 : places.numel() / tail;
    return x.index_select(1, places).view({sequences, tail, x.size(2)});
  }
};

Padded pad(const Arguments& in) {
  const auto type = in.type();
  const auto& [x, weight, bias, activation, initial_state, cu_seqlens] = in;
  Padded padded;
  padded.tokens = x.size(1);
  padded.tail = weight.size(1) - 1;
  padded.weight = weight.to(type).t().contiguous();
  if (bias) padded.bias = bias->to(type);
  const Tensor inputs = x.to(type);
  if (!cu_seqlens) {
    const Tensor tail =
        initial_state ? initial_state->to(type) : at::zeros({x.size(0), padded.tail, x.size(2)}, inputs.options());
    padded.rows = padded.tail == 0 ? inputs : at::cat({tail, inputs}, 1);
    return padded;
  }
  padded.layout = packed_layout(*cu_seqlens, x.size(1), padded.tail, x.device());
  padded.rows = at::zeros({1, padded.layout->length, x.size(2)}, inputs.options());
  padded.rows.index_copy_(1, padded.layout->tokens, inputs);
  if (initial_state)
    padded.rows.index_copy_(1, padded.layout->tails, initial_state->to(type).reshape({1, -1, x.size(2)}));
  return padded;
}

// z [B, P-W+1, D]: z_p = Σ_j weight_j ⊙ rows_{p+j} + bias, that of the token at place p + W-1. Packed, the places that
// are no token's hold sums across two sequences, which nobody reads.
Tensor correlate(const Padded& padded) {
  const int64_t taps = padded.tail + 1, length = std::max<int64_t>(0, padded.rows.size(1) - padded.tail);
  const auto shifted = [&](int64_t j) {
    return padded.rows.narrow(1, std::min(j, padded.rows.size(1) - length), length);
  };
  if (length == 1) {  // one token: all taps at once
    const Tensor z = (padded.rows * padded.weight).sum(1, true);
    return padded.bias.defined() ? z.add_(padded.bias) : z;
  }
  Tensor z =
      padded.bias.defined() ? at::addcmul(padded.bias, shifted(0), padded.weight[0]) : shifted(0) * padded.weight[0];
  for (int64_t j = 1; j < taps; ++j) z.addcmul_(shifted(j), padded.weight[j]);
  return z;
}

// [B, P-W+1, D] <-> the tokens [B, T, D].
Tensor tokens_of_sums(const Padded& padded, const Tensor& z) {
  return padded.layout ? z.index_select(1, padded.layout->tokens - padded.tail) : z;
}
Tensor sums_of_tokens(const Padded& padded, const Tensor& y) {
  if (!padded.layout) return y;
  const int64_t length = std::max<int64_t>(0, padded.layout->length - padded.tail);
  return at::zeros({1, length, y.size(2)}, y.options()).index_copy_(1, padded.layout->tokens - padded.tail, y);
}

TensorTuple<2> forward_by_aten(const Arguments& in) {
  const Padded padded = pad(in);
  Tensor y = correlate(padded);
  if (in.silu()) at::silu_(y);
  y = tokens_of_sums(padded, y);
  const Tensor places = padded.layout ? padded.layout->ends : Tensor();
  Tensor state = padded.tails_of(padded.rows, places, padded.tokens);
  if (padded.layout && padded.tail == 0) state = state.new_empty({in.cu_seqlens->size(0) - 1, 0, in.x.size(2)});
  return {y.to(in.x.scalar_type()).contiguous(), state.clone(at::MemoryFormat::Contiguous)};
}

Four backward_by_aten(const Arguments& in, const Tensor& grad_y, const OptionalTensor& grad_state) {
  const auto type = in.type();
  const Padded padded = pad(in);
  Tensor grad_z = sums_of_tokens(padded, grad_y.to(type));
  if (in.silu()) grad_z = at::silu_backward(grad_z, correlate(padded));
  const Tensor grad_rows = at::zeros_like(padded.rows);
  const Tensor grad_weight = at::zeros_like(padded.weight);
  for (int64_t j = 0; j <= padded.tail && grad_z.size(1) > 0; ++j) {
    grad_rows.narrow(1, j, grad_z.size(1)).addcmul_(grad_z, padded.weight[j]);
    grad_weight[j].copy_((grad_z * padded.rows.narrow(1, j, grad_z.size(1))).sum(at::IntArrayRef{0, 1}));
  }
  if (grad_state && padded.tail > 0) {
    if (padded.layout) {
      grad_rows.index_add_(1, padded.layout->ends, grad_state->to(type).reshape({1, -1, in.x.size(2)}));
    } else {
      grad_rows.narrow(1, padded.tokens, padded.tail).add_(*grad_state);
    }
  }
  const Tensor places = padded.layout ? padded.layout->tails : Tensor();
  return {padded.tokens_of(grad_rows), grad_weight.t(), in.bias ? grad_z.sum(at::IntArrayRef{0, 1}) : Tensor(),
          in.initial_state ? padded.tails_of(grad_rows, places, 0) : Tensor()};
}

// --- The operator and its gradient. ---

TensorTuple<2> forward(const Arguments& in) {
  NoAutocast types_as_given;
  check(in);
  const Bounds bounds(kOp, in.cu_seqlens, in.x.size(1));
  return choose(kOp, in.x,
                on_cpu(
                    "kernel", [&] { return kernel_takes(in); }, [&] { return forward_by_kernel(in, bounds); }),
                on_gpu(
                    "kernel", [&] { return convolution::gpu_takes(gpu_inputs(in), bounds); },
                    [&] { return convolution::forward_on_gpu(gpu_inputs(in), bounds, cuda::machine_of(in.x)); }),
                otherwise("ATen", [&] { return forward_by_aten(in); }));
}

// Each in its input's type.
Four backward(const Tensor& grad_y, const OptionalTensor& grad_state, const Tensor& x, const Tensor& weight,
              const OptionalTensor& bias, std::string_view activation, const OptionalTensor& initial_state,
              const OptionalTensor& cu_seqlens) {
  NoAutocast types_as_given;
  const Arguments in{x, weight, bias, activation, initial_state, cu_seqlens};
  Sizes sizes = check(in);
  sizes.expect({{"grad_y", grad_y, "BTD"}, {"grad_state", grad_state, "N*D"}});
  if (grad_state) expect_tail(sizes, "grad_state", *grad_state);
  const auto like = [&x](const Tensor& gradient, const OptionalTensor& input) {
    if (!input) return no_gradient(x);
    const Tensor own = gradient.to(input->scalar_type()).reshape(input->sizes()).contiguous();
    return own.storage_offset() == 0 ? own : own.clone();  // not a part of other gradients' memory
  };
  const Bounds bounds(kOp, cu_seqlens, x.size(1));
  const auto [of_x, of_weight, of_bias, of_state] =
      choose("short_conv_backward", x,
             on_cpu(
                 "kernel", [&] { return kernel_takes(in); },
                 [&] { return backward_by_kernel(in, bounds, grad_y, grad_state); }),
             on_gpu(
                 "kernel", [&] { return convolution::gpu_takes(gpu_inputs(in), bounds); },
                 [&] {
                   return convolution::backward_on_gpu(gpu_inputs(in), bounds, grad_y, grad_state.value_or(Tensor()),
                                                       cuda::machine_of(x));
                 }),
             otherwise("ATen", [&] { return backward_by_aten(in, grad_y, grad_state); }));
  return {like(of_x, x), like(of_weight, weight), like(of_bias, bias), like(of_state, initial_state)};
}

TensorTuple<2> forward_meta(const Arguments& in) {
  const Sizes sizes = check(in);
  return {sizes.empty("BTD", in.x.options()),
          at::empty_symint({sizes['N'], sizes['W'] - 1, sizes['D']}, in.x.options().dtype(in.type()))};
}

}  // namespace

TensorTuple<2> short_conv(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                          std::string_view activation, const OptionalTensor& initial_state,
                          const OptionalTensor& cu_seqlens) {
  static const auto op = find_operator<decltype(short_conv)>("cortado::short_conv");
  return op.call(x, weight, bias, activation, initial_state, cu_seqlens);
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(m,
                  "short_conv(Tensor x, Tensor weight, Tensor? bias=None, *, str activation=\"none\", "
                  "Tensor? initial_state=None, Tensor? cu_seqlens=None) -> (Tensor y, Tensor final_state)",
                  gathered<decltype(short_conv), forward>, gathered<decltype(short_conv), forward_meta>,
                  "short_conv_backward(Tensor grad_y, Tensor? grad_state, Tensor x, Tensor weight, Tensor? bias=None, "
                  "*, str activation=\"none\", Tensor? initial_state=None, Tensor? cu_seqlens=None) "
                  "-> (Tensor x, Tensor weight, Tensor bias, Tensor initial_state)",
                  backward, {"x", "weight", "bias", "initial_state"});
}

}  // namespace cortado
