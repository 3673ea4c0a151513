#include "cortado/mechanisms/lolcats/fused.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cortado/mechanisms/lolcats/kernel.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado::lolcats_fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void fail_if_differentiated_twice(const char* name) {
  fail_input_if(at::GradMode::is_enabled(), "[", name, "] can be differentiated once only");
}

std::vector<int64_t> with_last(const Tensor& x, int64_t size) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = size;
  return sizes;
}

class FeaturesFunction : public torch::autograd::Function<FeaturesFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& given, double least) {
    const Tensor y = given.contiguous();
    const int64_t width = y.size(-1);
    const Tensor phi = at::empty(with_last(y, 2 * width), y.options());
    lolcats_kernel::features({.rows = y.numel() / width,
                              .width = width,
                              .least = static_cast<float>(least),
                              .y = y.const_data_ptr<float>(),
                              .phi = phi.data_ptr<float>()},
                             kernels::parallel());
    context->save_for_backward({phi});
    context->saved_data["least"] = least;
    return phi;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    fail_if_differentiated_twice("lolcats features");
    const Tensor phi = context->get_saved_variables()[0], dphi = gradients[0].contiguous();
    const int64_t width = phi.size(-1) / 2;
    const Tensor dy = at::empty(with_last(phi, width), phi.options());
    lolcats_kernel::features_backward({.rows = dy.numel() / width,
                                       .width = width,
                                       .least = static_cast<float>(context->saved_data["least"].toDouble()),
                                       .y = nullptr,
                                       .phi = phi.data_ptr<float>(),
                                       .dphi = dphi.const_data_ptr<float>(),
                                       .dy = dy.data_ptr<float>()},
                                      kernels::parallel());
    return {dy, Tensor()};
  }
};

// Cumulative sums in place over the blocks of each row, x [rows · blocks, ...] contiguous: forwards, or backwards if
// `back`.
void add_up(const Tensor& x, int64_t rows, bool back) {
  const int64_t blocks = x.size(0) / rows, size = x.size(1) * x.size(2);
  auto* data = x.data_ptr<float>();
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 1; i < blocks; ++i) {
        float* to = data + (row * blocks + (back ? blocks - 1 - i : i)) * size;
        const float* from = back ? to + size : to - size;
        for (int64_t j = 0; j < size; ++j) to[j] += from[j];
      }
    }
  });
}

// Every product is computed in the memory layout that its reader needs.
class BlockSums : public torch::autograd::Function<BlockSums> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v) {
    const auto blocks = [](const Tensor& x) { return x.flatten(0, 2); };
    const Tensor phi_q = blocks(q), phi_k = blocks(k), values = blocks(v);
    const Tensor sums = at::bmm(phi_k.transpose(1, 2), values);
    add_up(sums, q.size(0) * q.size(1), false);
    context->save_for_backward({phi_q, phi_k, values, sums});
    context->saved_data["sizes"] = q.sizes().slice(0, 3).vec();
    return at::bmm(phi_q, sums).unflatten(0, q.sizes().slice(0, 3));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    fail_if_differentiated_twice("lolcats sums");
    const auto saved = context->get_saved_variables();
    const std::vector<int64_t> sizes = context->saved_data["sizes"].toIntVector();
    const Tensor dout = gradients[0].flatten(0, 2);
    const Tensor dsums = at::bmm(saved[0].transpose(1, 2), dout);
    add_up(dsums, sizes[0] * sizes[1], true);
    const auto wanted = [&](size_t input, const Tensor& a, const Tensor& b) {
      return context->needs_input_grad(input) ? at::bmm(a, b).unflatten(0, sizes) : Tensor();
    };
    return {wanted(0, dout, saved[3].transpose(1, 2)), wanted(1, saved[2], dsums.transpose(1, 2)),
            wanted(2, saved[1], dsums)};
  }
};

lolcats_kernel::Join join_call(const Tensor& near, const Tensor& lse, const Tensor& row_max, const Tensor& far,
                               const Tensor& factor, int64_t mixture) {
  const int64_t heads = near.size(2);
  const auto timed = [&](const Tensor& x) { return kernels::timed(x, heads); };
  return {.batch = near.size(0),
          .tokens = near.size(1),
          .heads = heads,
          .values = near.size(3),
          .mixture = static_cast<lolcats_kernel::Mixture>(mixture),
          .near = timed(near),
          .lse = timed(lse),
          .row_max = timed(row_max),
          .far = timed(far),
          .out = {},
          .factor = factor.data_ptr<float>()};
}

class JoinFunction : public torch::autograd::Function<JoinFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& near_any, const Tensor& lse, const Tensor& row_max,
                        const Tensor& far_any, const Tensor& factor_any, int64_t mixture) {
    const Tensor near = kernels::dense_rows(near_any), far = kernels::dense_rows(far_any),
                 factor = factor_any.contiguous();
    const Tensor out = at::empty(near.sizes(), near.options());
    lolcats_kernel::Join call = join_call(near, lse, row_max, far, factor, mixture);
    call.out = kernels::timed(out, near.size(2));
    lolcats_kernel::join(call, kernels::parallel());
    context->save_for_backward({near, lse, row_max, far, factor});
    context->saved_data["mixture"] = mixture;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    fail_if_differentiated_twice("lolcats");
    const auto saved = context->get_saved_variables();
    const Tensor &near = saved[0], &far = saved[3], dout = kernels::dense_rows(gradients[0]);
    lolcats_kernel::Join call =
        join_call(near, saved[1], saved[2], far, saved[4], context->saved_data["mixture"].toInt());
    const auto room = [](const Tensor& x) { return at::empty_like(x); };
    const Tensor dfar = room(far), dfactor = room(saved[4]), parts = at::empty({parts_size(call)}, far.options());
    Tensor dnear, dlse, drow_max;
    if (context->needs_input_grad(0)) {
      dnear = room(near);
      dlse = room(saved[1]);
      drow_max = room(saved[2]);
    }
    const auto timed = [&](const Tensor& x) { return kernels::timed(x, call.heads); };
    call.dout = timed(dout);
    call.dnear = timed(dnear);
    call.dlse = timed(dlse);
    call.drow_max = timed(drow_max);
    call.dfar = timed(dfar);
    call.dfactor = dfactor.data_ptr<float>();
    call.parts = parts.data_ptr<float>();
    lolcats_kernel::join_backward(call, kernels::parallel());
    return {dnear, dlse, drow_max, dfar, dfactor, Tensor()};
  }
};

}  // namespace

bool takes(std::initializer_list<Tensor> tensors) {
  for (const Tensor& x : tensors) {
    if (x.scalar_type() != at::kFloat) return false;
  }
  return kernels::usable(tensors);
}

Tensor features(const Tensor& y, double least) { return FeaturesFunction::apply(y, least); }

Tensor mapped_features(const Tensor& x_any, const Tensor& weight_any, double least) {
  const Tensor x = kernels::dense_rows(x_any), weight = weight_any.contiguous();
  const int64_t rows = x.size(0), tokens = x.size(1), heads = x.size(2), width = weight.size(2);
  // the reader of more tokens wants each head's tokens contiguous
  const bool few = tokens <= lolcats_kernel::kFewTokens;
  Tensor phi = few ? at::empty({rows, tokens, heads, 2 * width}, x.options())
                   : kernels::room({rows, heads, tokens, 2 * width}, x.options()).transpose(1, 2);
  lolcats_kernel::mapped_features({.batch = rows,
                                   .tokens = tokens,
                                   .heads = heads,
                                   .inputs = x.size(3),
                                   .width = width,
                                   .least = static_cast<float>(least),
                                   .x = kernels::timed(x, heads),
                                   .weight = weight.const_data_ptr<float>(),
                                   .phi = kernels::timed(phi, heads)},
                                  kernels::parallel(x.numel() * (width + 2 * kernels::kAnExponential)));
  return phi;
}

Tensor block_sums(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v) {
  return BlockSums::apply(phi_q, phi_k, v);
}

Tensor join(const SoftmaxPart& near, const Tensor& far, const Tensor& window_factor, LolcatsMixture mixture) {
  return JoinFunction::apply(near.o, near.lse, near.row_max, far, window_factor, static_cast<int64_t>(mixture));
}

Tensor join_sums(const SoftmaxPart& part, const Tensor& phi_q, const Tensor& sums_any, const Tensor& factor_any,
                 LolcatsMixture mixture) {
  const Tensor near = kernels::dense_rows(part.o), phi = kernels::dense_rows(phi_q);
  const Tensor sums = sums_any.contiguous(), factor = factor_any.contiguous();
  const Tensor out = at::empty(near.sizes(), near.options());
  const int64_t heads = near.size(2);
  lolcats_kernel::JoinSums call{
      .join = join_call(near, part.lse, part.row_max, {}, factor, static_cast<int64_t>(mixture)),
      .features = phi.size(3),
      .phi = kernels::timed(phi, heads),
      .sums = sums.const_data_ptr<float>()};
  call.join.out = kernels::timed(out, heads);
  lolcats_kernel::join_sums(call, kernels::parallel(phi.numel() * sums.size(3)));
  return out;
}

}  // namespace cortado::lolcats_fused
