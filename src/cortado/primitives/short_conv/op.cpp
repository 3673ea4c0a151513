#include "cortado/primitives/short_conv/op.h"

#include "cortado/primitives/operator.h"
#include "cortado/primitives/short_conv/on_cpu.h"

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

// Shapes and types only, so that it also runs on Meta and fake tensors. Returns the rows of the state.
c10::SymInt check(const Arguments& in) {
  expect_shape(kOp, "x", in.x, {-1, -1, -1});
  const c10::SymInt width = in.x.sym_size(2);
  expect_shape(kOp, "weight", in.weight, {width, -1});
  const c10::SymInt taps = in.weight.sym_size(1);
  fail_input_if(taps < 1, "[", kOp, "] weight must have at least one tap");
  if (in.bias) expect_shape(kOp, "bias", *in.bias, {width});
  fail_input_if(in.activation != "none" && !in.silu(), "[", kOp, "] activation must be \"none\" or \"silu\", got \"",
                in.activation, "\"");
  const c10::SymInt rows = packed_rows(kOp, in.cu_seqlens, in.x.sym_size(0));
  if (in.initial_state) expect_shape(kOp, "initial_state", *in.initial_state, {rows, taps - 1, width});
  const std::pair<const char*, OptionalTensor> inputs[] = {
      {"x", in.x}, {"weight", in.weight}, {"bias", in.bias}, {"initial_state", in.initial_state}};
  for (const auto& [name, tensor] : inputs) {
    if (tensor && !at::isFloatingType(tensor->scalar_type())) {
      throw InputError(concat("[", kOp, "] ", name, " must be of a floating-point type, got ", tensor->scalar_type()));
    }
  }
  return rows;
}

// Calls compute(arguments) if the kernel takes them. Returns whether it does.
template <class Compute>
bool by_kernel(const Arguments& in, const Compute& compute) {
  const Bounds bounds(kOp, in.cu_seqlens, in.x.size(1));
  const convolution::Arguments plain{
      in.x, in.weight, in.bias.value_or(Tensor()), in.initial_state.value_or(Tensor()), in.silu(), bounds.get()};
  const bool taken = convolution::kernel_takes(in.type(), plain);
  if (taken) compute(plain);
  return taken;
}

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

std::tuple<Tensor, Tensor> forward(const Arguments& in) {
  NoAutocast types_as_given;
  check(in);
  std::pair<Tensor, Tensor> found;
  if (by_kernel(in, [&](const auto& plain) { found = convolution::forward_by_kernel(plain); })) return found;
  const Padded padded = pad(in);
  Tensor y = correlate(padded);
  if (in.silu()) at::silu_(y);
  y = tokens_of_sums(padded, y);
  const Tensor places = padded.layout ? padded.layout->ends : Tensor();
  Tensor state = padded.tails_of(padded.rows, places, padded.tokens);
  if (padded.layout && padded.tail == 0) state = state.new_empty({in.cu_seqlens->size(0) - 1, 0, in.x.size(2)});
  return {y.to(in.x.scalar_type()).contiguous(), state.clone(at::MemoryFormat::Contiguous)};
}

using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// Gradients of x, weight, bias ([0] without one) and initial_state ([0] without one), each in its input's type.
Four backward(const Tensor& grad_y, const OptionalTensor& grad_state, const Tensor& x, const Tensor& weight,
              const OptionalTensor& bias, std::string_view activation, const OptionalTensor& initial_state,
              const OptionalTensor& cu_seqlens) {
  NoAutocast types_as_given;
  const Arguments in{x, weight, bias, activation, initial_state, cu_seqlens};
  check(in);
  const auto like = [](const Tensor& gradient, const Tensor& input) {
    const Tensor own = gradient.to(input.scalar_type()).reshape(input.sizes()).contiguous();
    return own.storage_offset() == 0 ? own : own.clone();  // not a part of other gradients' memory
  };
  convolution::Gradients found;
  if (by_kernel(in, [&](const auto& plain) {
        found = convolution::backward_by_kernel(plain, grad_y, grad_state.value_or(Tensor()));
      })) {
    return {found.x, like(found.weight, weight), bias ? like(found.bias, *bias) : no_gradient(x),
            initial_state ? like(found.initial, *initial_state) : no_gradient(x)};
  }
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
      grad_rows.index_add_(1, padded.layout->ends, grad_state->to(type).reshape({1, -1, x.size(2)}));
    } else {
      grad_rows.narrow(1, padded.tokens, padded.tail).add_(*grad_state);
    }
  }
  const Tensor places = padded.layout ? padded.layout->tails : Tensor();
  return {like(padded.tokens_of(grad_rows), x), like(grad_weight.t(), weight),
          bias ? like(grad_z.sum(at::IntArrayRef{0, 1}), *bias) : no_gradient(x),
          initial_state ? like(padded.tails_of(grad_rows, places, 0), *initial_state) : no_gradient(x)};
}

// --- Meta: the shapes. ---

std::tuple<Tensor, Tensor> forward_meta(const Arguments& in) {
  const c10::SymInt rows = check(in);
  return {at::empty_symint(in.x.sym_sizes(), in.x.options()),
          at::empty_symint({rows, in.weight.sym_size(1) - 1, in.x.sym_size(2)}, in.x.options().dtype(in.type()))};
}

Four backward_meta(const Tensor& grad_y, const OptionalTensor& grad_state, const Tensor& x, const Tensor& weight,
                   const OptionalTensor& bias, std::string_view activation, const OptionalTensor& initial_state,
                   const OptionalTensor& cu_seqlens) {
  const c10::SymInt rows = check({x, weight, bias, activation, initial_state, cu_seqlens});
  expect_shape(kOp, "grad_y", grad_y, x.sym_sizes().vec());
  if (grad_state) expect_shape(kOp, "grad_state", *grad_state, {rows, weight.sym_size(1) - 1, x.sym_size(2)});
  return {gradient_meta(x, x), gradient_meta(weight, x), gradient_meta(bias, x), gradient_meta(initial_state, x)};
}

}  // namespace

std::tuple<Tensor, Tensor> short_conv(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                                      std::string_view activation, const std::optional<Tensor>& initial_state,
                                      const std::optional<Tensor>& cu_seqlens) {
  static const auto op = find_operator<decltype(short_conv)>("cortado::short_conv");
  return op.call(x, weight, bias, activation, initial_state, cu_seqlens);
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(m,
                  "short_conv(Tensor x, Tensor weight, Tensor? bias=None, *, str activation=\"none\", "
                  "Tensor? initial_state=None, Tensor? cu_seqlens=None) -> (Tensor y, Tensor final_state)",
                  gathered<decltype(short_conv), forward>, gathered<decltype(short_conv), forward_meta>,
                  differentiable_by("cortado::short_conv_backward", {"x", "weight", "bias", "initial_state"}));
  define_operator(m,
                  "short_conv_backward(Tensor grad_y, Tensor? grad_state, Tensor x, Tensor weight, Tensor? bias=None, "
                  "*, str activation=\"none\", Tensor? initial_state=None, Tensor? cu_seqlens=None) "
                  "-> (Tensor x, Tensor weight, Tensor bias, Tensor initial_state)",
                  backward, backward_meta, once_differentiable());
}

}  // namespace cortado
