#include "cortado/primitives/latte_scan/on_cpu.h"

#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/latte_scan/kernel.h"

namespace cortado::latent {

namespace {

Tensor plain(const std::optional<Tensor>& x) { return x ? x->to(at::kFloat).contiguous() : Tensor(); }

}  // namespace

bool kernel_takes(at::ScalarType type, const Tensor& query, const Tensor& theta, const Tensor& v,
                  const LatteState& start) {
  const auto given = [](const std::optional<Tensor>& x) { return x.value_or(Tensor()); };
  return type == at::kFloat &&
         kernels::usable({query, theta, v, given(start.state), given(start.normalizer), given(start.maximum)});
}

LatteResult latte_by_kernel(const Tensor& query, const Tensor& theta, const Tensor& v, bool softmax,
                            const LatteState& start, const std::vector<int64_t>* bounds) {
  const int64_t state_heads = std::max(theta.size(2), v.size(2)), heads = std::max(query.size(2), state_heads);
  LatteKernel call{.rows = bounds ? static_cast<int64_t>(bounds->size()) - 1 : v.size(0),
                   .tokens = v.size(1),
                   .heads = heads,
                   .latents = theta.size(3),
                   .values = v.size(3)};
  call.bounds = bounds ? bounds->data() : nullptr;
  call.softmax = softmax;
  const Tensor state = plain(start.state), alpha = plain(start.normalizer), maximum = plain(start.maximum);
  const auto floats = v.options().dtype(at::kFloat);
  const LatteResult out{kernels::room({v.size(0), v.size(1), heads, v.size(3)}, v.options()),
                        kernels::room({call.rows, state_heads, call.latents, call.values}, floats),
                        kernels::room({call.rows, state_heads, call.latents}, floats),
                        kernels::room({call.rows, state_heads, call.latents}, floats)};
  using kernels::states;
  using kernels::timed;
  call.query = timed(query, heads);
  call.theta = timed(theta, heads);
  call.v = timed(v, heads);
  call.o = timed(out.o, heads);
  call.state = states(state, heads);
  call.normalizer = states(alpha, heads);
  call.maximum = states(maximum, heads);
  call.last_state = states(out.state, heads);
  call.last_normalizer = states(out.normalizer, heads);
  call.last_maximum = states(out.maximum, heads);
  run_latte(call, kernels::parallel());
  return out;
}

}  // namespace cortado::latent
