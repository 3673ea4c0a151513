#include "cortado/mechanisms/macchiato/mix_on_gpu.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cortado/mechanisms/macchiato/mix_gpu.h"
#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"

namespace cortado::latent {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kWidest = 128;

void launch(cuda::Machine& machine, const char* name, const Tensor& rows, int64_t width, size_t shared,
            const void* in) {
  if (rows.numel() == 0) return;
  machine.launch({"macchiato/kernel", "", name, cuda::kRowThreads, shared},
                 cuda::row_blocks(rows.size(0), rows.size(1) * rows.size(2), width), in);
}

// All rows of the batch as those of one.
Tensor as_one(const Tensor& x) { return x.flatten(0, 1).unsqueeze(0); }
size_t row_bytes(int64_t latents) { return size_t(cuda::rows_of_block(int(latents))) * size_t(latents + 1) * 2; }

template <typename In>
In sized(const Tensor& timed) {
  In in{};
  in.tokens = int(timed.size(1));
  in.heads = int(timed.size(2));
  return in;
}

Tensor with_width(const Tensor& x, int64_t width) {
  return at::empty({x.size(0), x.size(1), x.size(2), width}, x.options());
}
Tensor sums_of(const Tensor& x) { return at::empty({x.size(0), x.size(1), x.size(2)}, x.options().dtype(at::kFloat)); }

class MixWeightsFunction : public torch::autograd::Function<MixWeightsFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& logits) {
    const MixWeights made = mix_weights_on_gpu(logits, cuda::machine_of(logits));
    context->save_for_backward({made.first, made.p});
    return {made.first, made.p};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto given = [&](size_t i) { return gradients[i].defined() ? gradients[i] : at::zeros_like(saved[i]); };
    return {mix_weights_gradient_on_gpu({saved[0], saved[1]}, given(0), given(1), cuda::machine_of(saved[0]))};
  }
};

class MixFunction : public torch::autograd::Function<MixFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& far, const Tensor& near, const Tensor& first) {
    context->save_for_backward({near, first});
    return mix_on_gpu(far, near, first, cuda::machine_of(far));
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto [near, first] = mix_gradient_on_gpu(gradients[0], saved[0], saved[1], cuda::machine_of(saved[0]));
    return {gradients[0], near, first};
  }
};

}  // namespace

bool gpu_mixes(const Tensor& logits, const Tensor& v) {
  return cuda::are_there({logits, v}, {at::kBFloat16}) && logits.size(2) == v.size(2) && logits.size(3) % 8 == 1 &&
         logits.size(3) <= kWidest + 1 && v.size(3) % 8 == 0 && v.size(3) <= kWidest && v.size(0) <= cuda::kMostRows;
}

MixWeights mix_weights_on_gpu(const Tensor& logits, cuda::Machine& machine) {
  const Tensor rows = as_one(cuda::dense(logits));
  const int64_t latents = rows.size(3) - 1;
  const MixWeights made{sums_of(logits), with_width(logits, latents)};
  auto in = sized<GpuMixWeights>(rows);
  in.latents = int(latents);
  in.logits = cuda::timed(rows);
  in.p = cuda::timed(as_one(made.p));
  in.first = made.first.mutable_data_ptr<float>();
  launch(machine, "mix_weights", rows, latents, row_bytes(latents), &in);
  return made;
}

Tensor mix_weights_gradient_on_gpu(const MixWeights& weights, const Tensor& grad_first, const Tensor& grad_p,
                                   cuda::Machine& machine) {
  const Tensor first = grad_first.to(at::kFloat).contiguous(), rest = cuda::dense(grad_p.to(weights.p.scalar_type()));
  const Tensor p = as_one(weights.p), gradient = with_width(weights.p, weights.p.size(3) + 1);
  const int64_t latents = p.size(3);
  auto in = sized<GpuMixWeights>(p);
  in.latents = int(latents);
  in.p = cuda::timed(p);
  in.grad_p = cuda::timed(as_one(rest));
  in.grad_logits = cuda::timed(as_one(gradient));
  in.first = weights.first.mutable_data_ptr<float>();
  in.grad_first = first.const_data_ptr<float>();
  launch(machine, "mix_weights_gradient", p, latents, row_bytes(latents), &in);
  return gradient;
}

Tensor mix_on_gpu(const Tensor& far, const Tensor& near, const Tensor& first, cuda::Machine& machine) {
  const Tensor both[] = {cuda::in_pieces(far), cuda::in_pieces(near)}, share = first.contiguous();
  const Tensor o = with_width(far, far.size(3));
  auto in = sized<GpuMix>(far);
  in.values = int(far.size(3));
  in.far = cuda::timed(both[0]);
  in.near = cuda::timed(both[1]);
  in.o = cuda::timed(o);
  in.first = share.const_data_ptr<float>();
  launch(machine, "mix", far, far.size(3), 0, &in);
  return o;
}

std::pair<Tensor, Tensor> mix_gradient_on_gpu(const Tensor& grad_o, const Tensor& near, const Tensor& first,
                                              cuda::Machine& machine) {
  const Tensor both[] = {cuda::in_pieces(grad_o), cuda::in_pieces(near)}, share = first.contiguous();
  const Tensor grad_near = with_width(near, near.size(3)), grad_first = sums_of(near);
  auto in = sized<GpuMix>(near);
  in.values = int(near.size(3));
  in.grad_o = cuda::timed(both[0]);
  in.near = cuda::timed(both[1]);
  in.grad_near = cuda::timed(grad_near);
  in.first = share.const_data_ptr<float>();
  in.grad_first = grad_first.mutable_data_ptr<float>();
  launch(machine, "mix_gradient", near, near.size(3), 0, &in);
  return {grad_near, grad_first};
}

MixWeights mix_weights(const Tensor& logits) {
  const auto made = MixWeightsFunction::apply(logits);
  return {made[0], made[1]};
}

Tensor mix(const Tensor& far, const Tensor& near, const Tensor& first) { return MixFunction::apply(far, near, first); }

}  // namespace cortado::latent
