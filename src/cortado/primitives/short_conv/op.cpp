#include "cortado/primitives/short_conv/op.h"

#include "cortado/primitives/choice.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/operator.h"
#include "cortado/primitives/recomputed.h"
#include "cortado/primitives/short_conv/kernel.h"
#include "cortado/primitives/short_conv/on_gpu.h"
#include "cortado/primitives/short_conv/one_token.h"

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

// Checks the tokens before a sequence's first one, or its last ones.
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

// --- By the CPU kernel: float32 sums, plain CPU tensors. ---

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

// The weight [D,W] as [W,D] in float32. at::contiguous() would take a good part of a decoded token's time.
Tensor taps_first(const Tensor& weight) {
  const Tensor own = kernels::plain(weight);
  const int64_t channels = own.size(0), taps = own.size(1);
  const Tensor turned = kernels::room({taps, channels}, own.options());
  const auto* from = own.const_data_ptr<float>();
  auto* to = turned.mutable_data_ptr<float>();
  for (int64_t i = 0; i < channels; ++i) {
    for (int64_t j = 0; j < taps; ++j) to[j * channels + i] = from[i * taps + j];
  }
  return turned;
}

// A kernel call's inputs, and the tensors that own the data it points to.
struct KernelInputs {
  Tensor x, weight, bias, initial;
  std::vector<convolution::Block> blocks;
  convolution::ConvKernel call;

  KernelInputs(const Arguments& in, const Bounds& bounds)
      : x(kernels::dense_rows(in.x)),
        weight(taps_first(in.weight)),
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

// Returns (y in x's type, final state in float32).
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

// Returns the gradients of x, in its type, and in float32 those of the weight [D,W], the bias and the initial state,
// also if these were not given.
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

// --- By the GPU kernel. ---

convolution::GpuInputs gpu_inputs(const Arguments& in) {
  const auto given = [](const OptionalTensor& x) { return x.value_or(Tensor()); };
  return {in.x, in.weight, given(in.bias), given(in.initial_state), in.silu()};
}

// --- By ATen. ---

// Maps (x, weight, bias, initial state), of which the last two may be undefined, to (y, final state) in the sums' type.
Computation convolution_of(const Arguments& in, const Bounds& bounds) {
  return [&in, &bounds](const Tensors& given) -> Tensors {
    const auto wide = [&](const Tensor& x) { return x.defined() ? x.to(in.type()) : x; };
    const Tensor x = wide(given[0]), taps = wide(given[1]).t().contiguous(), bias = wide(given[2]);
    const int64_t tail = taps.size(0) - 1;
    const Tensor start =
        given[3].defined() ? wide(given[3]) : at::zeros({bounds.rows(x.size(0)), tail, x.size(2)}, x.options());
    const auto dense = [&](const Tensors& timed, const Tensors& first) -> PackedResult {
      const int64_t tokens = timed[0].size(1);
      const Tensor rows = at::cat({first[0], timed[0]}, 1);
      Tensor z = bias.defined() ? bias.expand_as(timed[0]) : at::zeros_like(timed[0]);
      for (int64_t j = 0; j <= tail; ++j) z = at::addcmul(z, rows.narrow(1, j, tokens), taps.select(0, j));
      return {{in.silu() ? at::silu(z) : z}, {rows.narrow(1, tokens, tail)}};
    };
    const PackedResult all = bounds.run({x}, {start}, dense);
    return {all.timed[0].to(in.x.scalar_type()).contiguous(), all.rows[0].contiguous()};
  };
}

Tensors inputs_of(const Arguments& in) {
  return {in.x, in.weight, in.bias.value_or(Tensor()), in.initial_state.value_or(Tensor())};
}

TensorTuple<2> forward_by_aten(const Arguments& in, const Bounds& bounds) {
  const at::NoGradGuard no_grad;
  const Tensors made = convolution_of(in, bounds)(inputs_of(in));
  return {made[0], made[1].clone()};  // must not share x's memory
}

Four backward_by_aten(const Arguments& in, const Bounds& bounds, const Tensor& grad_y,
                      const OptionalTensor& grad_state) {
  const Tensors found =
      gradients_of(convolution_of(in, bounds), inputs_of(in), {grad_y, grad_state.value_or(Tensor())});
  return {found[0], found[1], found[2], found[3]};
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
                otherwise("ATen", [&] { return forward_by_aten(in, bounds); }));
}

// The gradient operator's arguments that the forward operator does not have.
struct ConvGiven {
  const Tensor& grad_y;
  const OptionalTensor& grad_state;
};

// Returns each gradient in its input's type.
Four backward(const ConvGiven& given, const Arguments& in) {
  NoAutocast types_as_given;
  const auto& [grad_y, grad_state] = given;
  const Tensor& x = in.x;
  Sizes sizes = check(in);
  sizes.expect({{"grad_y", grad_y, "BTD"}, {"grad_state", grad_state, "N*D"}});
  if (grad_state) expect_tail(sizes, "grad_state", *grad_state);
  const auto like = [&x](const Tensor& gradient, const OptionalTensor& input) {
    if (!input) return no_gradient(x);
    const Tensor own = gradient.to(input->scalar_type()).reshape(input->sizes()).contiguous();
    return own.storage_offset() == 0 ? own : own.clone();  // must not share other gradients' memory
  };
  const Bounds bounds(kOp, in.cu_seqlens, x.size(1));
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
             otherwise("ATen", [&] { return backward_by_aten(in, bounds, grad_y, grad_state); }));
  return {like(of_x, x), like(of_weight, in.weight), like(of_bias, in.bias), like(of_state, in.initial_state)};
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
                  gathered_gradient<void(const Tensor&, const OptionalTensor&), decltype(short_conv), backward>,
                  {.given = "Tensor grad_y, Tensor? grad_state", .inputs = {"x", "weight", "bias", "initial_state"}});
}

Tensor short_conv_one_token(const float* x, int64_t x_row, const Tensor& weight, const OptionalTensor& bias, bool silu,
                            const Tensor& tail, float* y) {
  const Tensor turned = taps_first(weight), biases = kernels::plain(bias.value_or(Tensor()));
  const Tensor last = kernels::room(tail.sizes(), tail.options());
  const int64_t rows = tail.size(0), channels = weight.size(0), taps = weight.size(1);
  std::vector<convolution::Block> blocks;
  for (int64_t row = 0; row < rows; ++row) blocks.push_back({row, row, 0, 1, 0, 1});
  convolution::ConvKernel call{.channels = channels, .taps = taps, .silu = silu};
  call.blocks = blocks.data();
  call.count = rows;
  call.x = {.data = const_cast<float*>(x), .row = x_row};
  call.weight = kernels::numbers(turned);
  call.bias = kernels::numbers(biases);
  call.initial = kernels::numbers(tail);
  call.y = {.data = y, .row = channels};
  call.final_state = kernels::numbers(last);
  run_forward(call, kernels::parallel(rows * channels * taps));
  return last;
}

}  // namespace cortado
