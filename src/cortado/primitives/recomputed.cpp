#include "cortado/primitives/recomputed.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cortado/base/error.h"
#include "cortado/primitives/common.h"

namespace cortado {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Kept : torch::CustomClassHolder {
  explicit Kept(Computation f) : f(std::move(f)) {}
  Computation f;
};

class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  static variable_list forward(AutogradContext* context, const Computation& f, at::TensorList inputs) {
    context->saved_data["f"] = c10::IValue::make_capsule(c10::make_intrusive<Kept>(f));
    context->save_for_backward(inputs.vec());
    context->set_materialize_grads(false);
    return f(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    fail_input_if(at::GradMode::is_enabled(), "differentiating twice is not supported");
    const auto kept = context->saved_data["f"].toCapsule();
    variable_list found = gradients_of(static_cast<const Kept&>(*kept).f, context->get_saved_variables(), gradients);
    found.insert(found.begin(), Tensor());  // for f
    return found;
  }
};

// Restores autograd as torch's caller has it, also inside an operator's kernel.
class Recording {
 public:
  Recording()
      : guard_(c10::impl::tls_local_dispatch_key_set().included_,
               c10::impl::tls_local_dispatch_key_set().excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView) {
  }

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
  at::AutoGradMode on_{true};
};

}  // namespace

Tensors recomputed(const Computation& f, const Tensors& inputs) {
  if (!at::GradMode::is_enabled()) return f(inputs);
  // Autograd functions take no undefined tensors.
  Tensors given;
  std::vector<bool> defined;
  for (const Tensor& x : inputs) {
    defined.push_back(x.defined());
    if (x.defined()) given.push_back(x);
  }
  const Computation of_given = [f, defined](const Tensors& some) {
    Tensors all;
    for (size_t i = 0, n = 0; i < defined.size(); ++i) all.push_back(defined[i] ? some[n++] : Tensor());
    return f(all);
  };
  return Recomputed::apply(of_given, at::TensorList(given));
}

Tensors gradients_of(const Computation& f, const Tensors& inputs, const Tensors& grad_results) {
  const NoAutocast as_given;
  const Recording recording;
  Tensors leaves, differentiated, results, grads;
  for (const Tensor& x : inputs) {
    leaves.push_back(x.defined() ? x.detach() : x);
    if (x.defined() && (at::isFloatingType(x.scalar_type()) || x.is_complex())) {
      differentiated.push_back(leaves.back().requires_grad_());
    }
  }
  const Tensors made = f(leaves);
  for (size_t i = 0; i < made.size(); ++i) {
    if (!grad_results[i].defined() || !made[i].requires_grad()) continue;
    results.push_back(made[i]);
    grads.push_back(grad_results[i].to(made[i].scalar_type()));
  }
  Tensors own(differentiated.size());
  if (!results.empty()) own = torch::autograd::grad(results, differentiated, grads, std::nullopt, false, true);
  Tensors found(inputs.size());
  for (size_t i = 0, n = 0; i < inputs.size(); ++i) {
    if (!leaves[i].defined() || !leaves[i].requires_grad()) continue;
    found[i] = own[n].defined() ? own[n] : at::zeros_like(inputs[i]);
    ++n;
  }
  return found;
}

}  // namespace cortado
