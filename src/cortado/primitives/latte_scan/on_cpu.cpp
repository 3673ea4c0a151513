#include "cortado/primitives/latte_scan/on_cpu.h"

#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/latte_scan/kernel.h"

namespace cortado::latent {

namespace {

using kernels::room;
using kernels::states;
using kernels::timed;

Tensor plain(const Tensor& x) { return x.defined() ? x.to(at::kFloat).contiguous() : x; }

// A call's inputs, and the tensors whose data it points to.
struct Inputs {
  Tensor state, normalizer, maximum;
  LatteKernel call;

  explicit Inputs(const Arguments& in)
      : state(plain(in.start.state.value_or(Tensor()))),
        normalizer(plain(in.start.normalizer.value_or(Tensor()))),
        maximum(plain(in.start.maximum.value_or(Tensor()))) {
    const int64_t heads = std::max({in.query.size(2), in.theta.size(2), in.v.size(2)});
    call = {.rows = in.bounds ? static_cast<int64_t>(in.bounds->size()) - 1 : in.v.size(0),
            .tokens = in.v.size(1),
            .heads = heads,
            .latents = in.theta.size(3),
            .values = in.v.size(3)};
    call.bounds = in.bounds ? in.bounds->data() : nullptr;
    call.softmax = in.softmax;
    call.query = timed(in.query, heads);
    call.theta = timed(in.theta, heads);
    call.v = timed(in.v, heads);
    call.state = states(state, heads);
    call.normalizer = states(normalizer, heads);
    call.maximum = states(maximum, heads);
  }
};

}  // namespace

bool kernel_takes(at::ScalarType type, const Arguments& in, const OutputGradients& gradients) {
  const auto given = [](const std::optional<Tensor>& x) { return x.value_or(Tensor()); };
  return type == at::kFloat &&
         kernels::usable({in.query, in.theta, in.v, given(in.start.state), given(in.start.normalizer),
                          given(in.start.maximum), gradients.o, gradients.state, gradients.normalizer});
}

LatteResult latte_by_kernel(const Arguments& in) {
  Inputs inputs(in);
  LatteKernel& call = inputs.call;
  const int64_t heads = call.heads, state_heads = std::max(in.theta.size(2), in.v.size(2));
  const auto floats = in.v.options().dtype(at::kFloat);
  const LatteResult out{room({in.v.size(0), call.tokens, heads, call.values}, in.v.options()),
                        room({call.rows, state_heads, call.latents, call.values}, floats),
                        room({call.rows, state_heads, call.latents}, floats),
                        room({call.rows, state_heads, call.latents}, floats)};
  call.o = timed(out.o, heads);
  call.last_state = states(out.state, heads);
  call.last_normalizer = states(out.normalizer, heads);
  call.last_maximum = states(out.maximum, heads);
  run_latte(call, kernels::parallel(in.v.size(0) * call.tokens * heads * call.latents * call.values));
  return out;
}

InputGradients latte_gradients_by_kernel(const Arguments& in, const OutputGradients& gradients) {
  const Inputs inputs(in);
  const LatteKernel& call = inputs.call;
  const int64_t heads = call.heads;
  const Tensor state = plain(gradients.state), normalizer = plain(gradients.normalizer);
  const auto floats = in.v.options().dtype(at::kFloat);
  const auto like = [&](const Tensor& x) {
    return room({x.size(0), x.size(1), heads, x.size(3)}, x.size(2) == heads ? x.options() : floats);
  };
  InputGradients out{like(in.query), like(in.theta), like(in.v), {}, {}};
  if (in.start.state) out.state = room({call.rows, heads, call.latents, call.values}, floats);
  if (in.start.normalizer) out.normalizer = room({call.rows, heads, call.latents}, floats);
  run_latte_backward(call,
                     {.o = timed(gradients.o, heads),
                      .state = states(state, heads),
                      .normalizer = states(normalizer, heads),
                      .query = timed(out.query, heads),
                      .theta = timed(out.theta, heads),
                      .v = timed(out.v, heads),
                      .initial_state = states(out.state, heads),
                      .initial_normalizer = states(out.normalizer, heads)},
                     kernels::parallel());
  return out;
}

}  // namespace cortado::latent
