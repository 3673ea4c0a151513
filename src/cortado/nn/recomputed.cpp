#include "cortado/nn/recomputed.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cortado/base/error.h"
#include "cortado/primitives/common.h"

namespace cortado {
namespace {

using Formula = std::function<Tensors(const Tensors&)>;

struct Kept : torch::CustomClassHolder {
  explicit Kept(Formula formula) : f(std::move(formula)) {}
  Formula f;
};

class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, at::TensorList inputs,
                                                const c10::intrusive_ptr<Kept>& kept) {
    context->save_for_backward(inputs.vec());
    context->saved_data["f"] = c10::IValue::make_capsule(kept);
    const NoAutocast as_given;
    return kept->f(inputs.vec());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    fail_input_if(at::GradMode::is_enabled(), "[recomputed] differentiating twice is not supported");
    const NoAutocast as_given;
    Tensors inputs, wanted;
    for (const Tensor& input : context->get_saved_variables()) {
      inputs.push_back(input.detach().requires_grad_(input.requires_grad()));
      if (input.requires_grad()) wanted.push_back(inputs.back());
    }
    const at::AutoGradMode with_gradients(true);
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(context->saved_data["f"].toCapsule());
    const Tensors outputs = kept->f(inputs);
    Tensors differentiable, theirs;  // some may not depend on any input
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad()) continue;
      differentiable.push_back(outputs[i]);
      theirs.push_back(gradients[i]);
    }
    const Tensors found = torch::autograd::grad(differentiable, wanted, theirs, /*retain_graph=*/{},
                                                /*create_graph=*/false, /*allow_unused=*/true);
    torch::autograd::variable_list all;
    size_t next = 0;
    for (const Tensor& input : inputs) all.push_back(input.requires_grad() ? found[next++] : Tensor());
    all.emplace_back();  // of the formula
    return all;
  }
};

}  // namespace

Tensors recomputed(const Tensors& inputs, std::function<Tensors(const Tensors&)> f) {
  return Recomputed::apply(at::TensorList(inputs), c10::make_intrusive<Kept>(std::move(f)));
}

}  // namespace cortado
