#include "cortado/nn/composition.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cortado/base/error.h"
#include "cortado/primitives/common.h"

namespace cortado {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The arguments of compose(), except the tensors.
struct Formula : torch::CustomClassHolder {
  std::function<Composition(const Tensors&)> f;
  SequenceParts::Decay kind;
  size_t timed;    // number of inputs that are cut into pieces of tokens
  int64_t length;  // tokens per piece

  Tensors piece(const Tensors& inputs, int64_t first) const {
    Tensors some = inputs;
    for (size_t i = 0; i < timed; ++i) {
      some[i] = inputs[i].narrow(1, first, std::min(length, inputs[i].size(1) - first));
    }
    return some;
  }

  // Composes the pieces, each with two tensors: decay and own.
  Composition fold(const Tensors& pieces) const {
    Composition all{pieces[0], pieces[1]};
    for (size_t i = 2; i < pieces.size(); i += 2) {
      all = {decayed(kind, pieces[i], all.decay), decayed(kind, pieces[i], all.own) + pieces[i + 1]};
    }
    return all;
  }
};

Tensors as_leaves(const Tensors& x, const std::function<bool(size_t)>& learned) {
  Tensors leaves;
  for (size_t i = 0; i < x.size(); ++i) leaves.push_back(x[i].detach().requires_grad_(learned(i)));
  return leaves;
}

// Returns the gradients of the leaves that require one, undefined for the others. Some outputs may depend on no leaf.
Tensors gradients_of(const Tensors& outputs, const Tensors& gradients, const Tensors& leaves) {
  Tensors depending, theirs, wanted;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
    depending.push_back(outputs[i]);
    theirs.push_back(gradients[i]);
  }
  for (const Tensor& leaf : leaves) {
    if (leaf.requires_grad()) wanted.push_back(leaf);
  }
  Tensors found(leaves.size());
  if (depending.empty() || wanted.empty()) return found;
  const Tensors some = torch::autograd::grad(depending, wanted, theirs, /*retain_graph=*/{}, /*create_graph=*/false,
                                             /*allow_unused=*/true);
  size_t next = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].requires_grad()) found[i] = some[next++];
  }
  return found;
}

class Composed : public torch::autograd::Function<Composed> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList given,
                               const c10::intrusive_ptr<Formula>& formula) {
    const NoAutocast as_given;
    const Tensors inputs = given.vec();
    Tensors pieces;
    for (int64_t first = 0; first < inputs[0].size(1); first += formula->length) {
      const Composition piece = formula->f(formula->piece(inputs, first));
      pieces.insert(pieces.end(), {piece.decay, piece.own});
    }
    variable_list saved = inputs;
    saved.insert(saved.end(), pieces.begin(), pieces.end());
    context->save_for_backward(saved);
    context->saved_data["formula"] = c10::IValue::make_capsule(formula);
    context->saved_data["inputs"] = static_cast<int64_t>(inputs.size());
    const Composition all = formula->fold(pieces);
    return {all.decay, all.own};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    fail_input_if(at::GradMode::is_enabled(), "[compose] differentiating twice is not supported");
    const NoAutocast as_given;
    const at::AutoGradMode with_gradients(true);
    const auto formula = c10::static_intrusive_pointer_cast<Formula>(context->saved_data["formula"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    const auto pieces_begin = saved.begin() + context->saved_data["inputs"].toInt();
    const Tensors inputs(saved.begin(), pieces_begin);
    const Tensors pieces = as_leaves(Tensors(pieces_begin, saved.end()), [](size_t) { return true; });
    const Composition all = formula->fold(pieces);
    const Tensors of_pieces = gradients_of({all.decay, all.own}, gradients, pieces);
    variable_list found(inputs.size() + 1);  // none for the formula
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].requires_grad()) found[i] = at::zeros_like(inputs[i]);
    }
    for (size_t p = 0; p < pieces.size() / 2; ++p) {
      const auto first = static_cast<int64_t>(p) * formula->length;
      const Tensors leaves =
          as_leaves(formula->piece(inputs, first), [&](size_t i) { return inputs[i].requires_grad(); });
      const Composition piece = formula->f(leaves);
      const Tensors of_leaves =
          gradients_of({piece.decay, piece.own}, {of_pieces[2 * p], of_pieces[2 * p + 1]}, leaves);
      add(*formula, found, of_leaves, first);
    }
    return found;
  }

 private:
  static void add(const Formula& formula, const variable_list& to, const Tensors& some, int64_t first) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < some.size(); ++i) {
      if (!some[i].defined()) continue;
      const Tensor place = i < formula.timed ? to[i].narrow(1, first, some[i].size(1)) : to[i];
      place.add_(some[i]);
    }
  }
};

}  // namespace

Composition compose(const Tensors& timed, const Tensors& fixed, SequenceParts::Decay kind,
                    std::function<Composition(const Tensors&)> f) {
  constexpr int64_t kNumbers = 1 << 17, kLeastTokens = 64;
  auto formula = c10::make_intrusive<Formula>();
  formula->f = std::move(f);
  formula->kind = kind;
  formula->timed = timed.size();
  formula->length = std::max(kLeastTokens, kNumbers * timed[0].size(1) / timed[0].numel());
  Tensors inputs = timed;
  inputs.insert(inputs.end(), fixed.begin(), fixed.end());
  const variable_list all = Composed::apply(at::TensorList(inputs), formula);
  return {all[0], all[1]};
}

}  // namespace cortado
