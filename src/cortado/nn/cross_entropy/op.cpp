#include "cortado/nn/cross_entropy/op.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/nn/cross_entropy/on_gpu.h"
#include "cortado/nn/linear/op.h"
#include "cortado/nn/wide.h"
#include "cortado/primitives/choice.h"

namespace cortado {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Head {
  const Tensor& weight;
  OptionalTensor bias;
  std::optional<double> softcap;
  at::ScalarType type;  // of the softmax
};

struct Gradients {
  Tensor hidden, weight, bias;
};

// A GPU kernel overwrites the logits by their gradient, rounded to 16 bits, as autocast would round it for the products
// that follow.
bool kernel_takes(const Head& head, const Tensor& logits) {
  return !head.softcap && !head.bias && at::autocast::is_autocast_enabled(at::kCUDA) && entropy::gpu_takes(logits);
}

void add_rows_by_kernel(const Head& head, const Tensor& logits, const Tensor& hidden, const Tensor& targets,
                        Tensor& total, Gradients* gradients, int64_t begin) {
  total.add_(entropy::losses(logits, targets, gradients != nullptr).sum());
  if (!gradients) return;
  const Tensor& slope = logits;
  gradients->hidden.narrow(0, begin, hidden.size(0)).copy_(at::matmul(slope, head.weight));
  gradients->weight.add_(at::matmul(slope.t(), hidden));
}

void add_rows_by_aten(const Head& head, Tensor logits, const Tensor& hidden, const Tensor& targets, Tensor& total,
                      Gradients* gradients, int64_t begin) {
  Tensor bend;  // tanh(z/c)
  if (head.softcap) {
    bend = at::tanh(logits.to(head.type) / *head.softcap);
    logits = bend * *head.softcap;
  }
  Tensor log_p = at::log_softmax(logits, -1, head.type);
  const Tensor index = targets.unsqueeze(1);
  total.sub_(log_p.gather(1, index).sum());
  if (!gradients) return;
  const Tensor& slope = log_p.exp_();  // softmax - one-hot: the gradient by the capped logits
  slope.scatter_add_(1, index, at::full({1, 1}, -1, slope.options()).expand_as(index));
  if (head.softcap) slope.mul_(at::square(bend).neg_().add_(1));
  if (gradients->bias.defined()) gradients->bias.add_(slope.sum(0));
  gradients->hidden.narrow(0, begin, hidden.size(0)).copy_(at::matmul(slope, head.weight.to(head.type)));
  gradients->weight.add_(at::matmul(slope.t(), hidden.to(head.type)));
}

// Adds the loss of some rows to `total`, and to `gradients`, if given, the gradients of the sum of losses.
void add_rows(const Head& head, const Tensor& hidden, const Tensor& targets, Tensor& total, Gradients* gradients,
              int64_t begin) {
  const Tensor logits = linear_map(hidden, head.weight, head.bias);
  choose("cross_entropy", logits,
         on_gpu(
             "kernel", [&] { return kernel_takes(head, logits); },
             [&] { add_rows_by_kernel(head, logits, hidden, targets, total, gradients, begin); }),
         otherwise("ATen", [&] { add_rows_by_aten(head, logits, hidden, targets, total, gradients, begin); }));
}

// Half a GiB on a GPU: 2 bytes per logit if a kernel works in place, else up to 16 bytes.
int64_t logits_at_once(const Head& head, const Tensor& hidden) {
  if (!hidden.is_cuda()) return int64_t{1} << 24;
  const bool few_bytes =
      !head.softcap && !head.bias && head.weight.size(0) % 8 == 0 && at::autocast::is_autocast_enabled(at::kCUDA);
  return int64_t{1} << (few_bytes ? 28 : 26);
}

struct Wanted {
  std::optional<double> softcap;
  int64_t chunk;  // logits at once; 0: as many as suit the device
  bool differentiate;
};

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight,
                        const OptionalTensor& bias, const Tensor& targets, const Wanted& wanted) {
    const auto& [softcap, chunk, differentiate] = wanted;
    const auto type = wide_type(hidden);
    const Head head{weight, bias, softcap, type};
    Gradients gradients;
    if (differentiate) {
      gradients.hidden = at::empty(hidden.sizes(), hidden.options().dtype(type));
      gradients.weight = at::zeros(weight.sizes(), weight.options().dtype(type));
      if (bias) gradients.bias = at::zeros(bias->sizes(), weight.options().dtype(type));
    }
    Tensor total = at::zeros({}, hidden.options().dtype(type));
    const int64_t rows =
        std::max<int64_t>(1, (chunk ? chunk : logits_at_once(head, hidden)) / std::max<int64_t>(1, weight.size(0)));
    for (int64_t begin = 0; begin < hidden.size(0); begin += rows) {
      const int64_t count = std::min(rows, hidden.size(0) - begin);
      add_rows(head, hidden.narrow(0, begin, count), targets.narrow(0, begin, count), total,
               differentiate ? &gradients : nullptr, begin);
    }
    if (differentiate) {
      context->saved_data["bias"] = gradients.bias.defined();
      // Kept by hand instead of by save_for_backward, because these are results computed outside the graph.
      context->saved_data["hidden_gradient"] = gradients.hidden.to(hidden.scalar_type());
      context->saved_data["weight_gradient"] = gradients.weight.to(weight.scalar_type());
      if (bias) context->saved_data["bias_gradient"] = gradients.bias.to(bias->scalar_type());
    }
    return total;
  }

  static variable_list backward(AutogradContext* context, variable_list outer) {
    const auto scaled = [&](const char* name) {
      const Tensor gradient = context->saved_data[name].toTensor();
      return gradient * outer[0].to(gradient.scalar_type());
    };
    fail_input_if(at::GradMode::is_enabled(), "[linear_cross_entropy] cannot be differentiated twice");
    const bool bias = context->saved_data["bias"].toBool();
    return {scaled("hidden_gradient"), scaled("weight_gradient"), bias ? scaled("bias_gradient") : Tensor(), Tensor(),
            Tensor()};
  }
};

}  // namespace

Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const OptionalTensor& bias,
                            const Tensor& targets, std::optional<double> softcap, int64_t chunk) {
  fail_input_if(hidden.dim() != 2 || weight.dim() != 2 || targets.dim() != 1 || hidden.size(1) != weight.size(1) ||
                    targets.size(0) != hidden.size(0),
                "[linear_cross_entropy] expected hidden [N, D], weight [V, D], targets [N], got ", hidden.sizes(), ", ",
                weight.sizes(), ", ", targets.sizes());
  const Tensor counted = targets >= 0;
  const int64_t count = counted.sum().item<int64_t>();
  const bool all = count == targets.size(0);
  const Tensor rows = all ? hidden : hidden.index({counted});
  const Tensor wanted = all ? targets : targets.index({counted});
  const bool differentiate = at::GradMode::is_enabled() && (hidden.requires_grad() || weight.requires_grad());
  const Tensor total = LinearCrossEntropy::apply(rows, weight, bias, wanted, Wanted{softcap, chunk, differentiate});
  return total / static_cast<double>(std::max<int64_t>(1, count));
}

}  // namespace cortado
