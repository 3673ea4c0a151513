#include "cortado/primitives/differentiable.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>

#include "cortado/primitives/autograd_node.h"
#include "cortado/primitives/common.h"

namespace cortado {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::jit::Stack;

// The place of the argument or result of that name; -1 if there is none.
template <typename Entries>
int64_t place_of(const Entries& entries, const std::string& name) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& x) { return x.name() == name; });
  return found == entries.end() ? -1 : found - entries.begin();
}

Tensor tensor_or_undefined(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : Tensor(); }

// Calls the gradient's operator.
class GradientNode : public Node {
 public:
  // `ignored`: those of the gradient's results that are not asked for.
  GradientNode(const c10::OperatorHandle& gradient, std::vector<bool> ignored)
      : gradient_(gradient), ignored_(std::move(ignored)) {}

  void keep(const c10::IValue& value, bool is_result) {
    Argument kept;
    kept.is_tensor = value.isTensor() && value.toTensor().defined();
    if (kept.is_tensor) kept.tensor = SavedVariable(value.toTensor(), is_result);
    if (!kept.is_tensor) kept.value = value;
    arguments_.push_back(std::move(kept));
  }

  std::string name() const override { return gradient_.schema().name(); }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Stack stack;
    for (size_t i = 0; i < grads.size(); ++i) {
      const bool optional = gradient_.schema().arguments()[i].type()->kind() == c10::TypeKind::OptionalType;
      if (!grads[i].defined() && !optional) grads[i] = input_metadata(i).zeros_like();
      stack.push_back(grads[i].defined() ? c10::IValue(grads[i]) : c10::IValue());
    }
    for (const Argument& x : arguments_) {
      stack.push_back(x.is_tensor ? c10::IValue(x.tensor.unpack(getptr())) : x.value);
    }
    gradient_.callBoxed(&stack);
    variable_list results;
    for (size_t i = 0; i < ignored_.size(); ++i) results.push_back(ignored_[i] ? Tensor() : stack[i].toTensor());
    return results;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Argument& x : arguments_) x.tensor.reset_data();
  }

 private:
  // Of the gradient's operator, behind the incoming gradients: a tensor, or a value of any other type.
  struct Argument {
    SavedVariable tensor;
    c10::IValue value;
    bool is_tensor = false;
  };

  c10::OperatorHandle gradient_;
  std::vector<Argument> arguments_;
  std::vector<bool> ignored_;
};

class Differentiable : public c10::OperatorKernel {
 public:
  Differentiable(std::string gradient, std::vector<std::string> inputs, std::string optional_work)
      : name_(std::move(gradient)), inputs_(std::move(inputs)), optional_work_(std::move(optional_work)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const auto& schema = op.schema();
    variable_list inputs;  // undefined where absent
    for (const auto& name : inputs_) {
      inputs.push_back(tensor_or_undefined(*(stack->end() - count(schema) + place_of(schema.arguments(), name))));
      TORCH_CHECK_NOT_IMPLEMENTED(!inputs.back().defined() || !inputs.back()._fw_grad(0).defined(), "[", schema.name(),
                                  "] forward-mode differentiation is not supported");
    }
    const bool wanted = at::GradMode::is_enabled() && torch::autograd::any_variable_requires_grad(inputs);
    Stack arguments;
    if (wanted) arguments.assign(stack->end() - count(schema), stack->end());
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    }
    if (wanted) record(schema, inputs, arguments, *stack);
  }

 private:
  static std::ptrdiff_t count(const c10::FunctionSchema& schema) {
    return static_cast<std::ptrdiff_t>(schema.arguments().size());
  }

  static void set_gradient(c10::IValue& result, const variable_list& inputs, const NodePointer& node) {
    // A result that is an input itself, as over no tokens, must not get the input's place in the graph.
    for (const Tensor& x : inputs) {
      const at::AutoDispatchBelowADInplaceOrView below;
      if (x.defined() && x.is_same(result.toTensor())) result = x.clone();
    }
    torch::autograd::set_history(result.toTensor(), node);
  }

  // `arguments` are those of the call, `stack` ends with its results.
  void record(const c10::FunctionSchema& schema, const variable_list& inputs, const Stack& arguments,
              Stack& stack) const {
    const auto gradient = c10::Dispatcher::singleton().findSchemaOrThrow(name_.c_str(), "");
    std::vector<bool> ignored;
    for (size_t i = 0; i < inputs.size(); ++i) {
      ignored.push_back(!inputs[i].defined() || (inputs_[i] == optional_work_ && !inputs[i].requires_grad()));
    }
    const auto node = make_node<GradientNode>(gradient, std::move(ignored));
    node->set_next_edges(torch::autograd::collect_next_edges(inputs));
    const auto results = stack.end() - static_cast<std::ptrdiff_t>(schema.returns().size());
    const auto& wanted = gradient.schema().arguments();
    for (size_t i = 0; i < wanted.size(); ++i) {
      const std::string& name = wanted[i].name();
      const int64_t argument = place_of(schema.arguments(), name), result = place_of(schema.returns(), name);
      if (name.starts_with("grad_")) {
        set_gradient(*(results + static_cast<std::ptrdiff_t>(i)), inputs, node);
      } else if (name.starts_with("need_")) {
        const auto needed = arguments[place_of(schema.arguments(), optional_work_)];
        node->keep(tensor_or_undefined(needed).defined() && needed.toTensor().requires_grad(), false);
      } else if (argument >= 0) {
        node->keep(arguments[argument], false);
      } else {
        node->keep(*(results + result), true);
      }
    }
  }

  std::string name_;
  std::vector<std::string> inputs_;
  std::string optional_work_;
};

class GradientsLike : public c10::OperatorKernel {
 public:
  GradientsLike(std::vector<std::string> inputs, std::string optional_work)
      : inputs_(std::move(inputs)), optional_work_(std::move(optional_work)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const auto& arguments = op.schema().arguments();
    const Stack given = torch::jit::pop(*stack, arguments.size());
    size_t first = 0;
    while (arguments[first].name().starts_with("grad_")) ++first;
    const Tensor& any = given[first].toTensor();
    const auto need =
        std::find_if(arguments.begin(), arguments.end(), [](const auto& x) { return x.name().starts_with("need_"); });
    const bool needed = need == arguments.end() || given[need - arguments.begin()].toBool();
    for (const auto& name : inputs_) {
      const int64_t place = place_of(arguments, name);
      const Tensor x = place < 0 ? any : tensor_or_undefined(given[place]);
      const bool wanted = x.defined() && (needed || name != optional_work_);
      stack->emplace_back(wanted ? at::empty_symint(x.sym_sizes(), x.options()) : at::empty({0}, any.options()));
    }
  }

 private:
  std::vector<std::string> inputs_;
  std::string optional_work_;
};

}  // namespace

torch::CppFunction differentiable_by(std::string gradient, std::vector<std::string> inputs, std::string optional_work) {
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<Differentiable>(std::move(gradient), std::move(inputs), std::move(optional_work)));
}

torch::CppFunction gradients_like(std::vector<std::string> inputs, std::string optional_work) {
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<GradientsLike>(std::move(inputs), std::move(optional_work)));
}

}  // namespace cortado
