#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/headeronly/version.h>

#include <algorithm>

#include "cortado/primitives/operator.h"

namespace cortado {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::jit::Stack;

// Nodes of torch's backward graph: differences between the supported versions of torch.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
using NodePointer = std::shared_ptr<Node>;
template <class T, class... Arguments>
std::shared_ptr<T> make_node(Arguments&&... arguments) {
  return {new T(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode};
}
#else
using NodePointer = c10::intrusive_ptr<Node>;
template <class T, class... Arguments>
c10::intrusive_ptr<T> make_node(Arguments&&... arguments) {
  return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
}
#endif

// Makes a boxed kernel from run(op, keys, stack).
template <typename Run>
torch::CppFunction boxed(Run run) {
  struct Kernel : c10::OperatorKernel {
    explicit Kernel(Run run) : run(std::move(run)) {}
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) { run(op, keys, *stack); }
    Run run;
  };
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(std::move(run)));
}

// Runs the operator below autograd.
void compute(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, &stack);
}

bool any_requires_grad(const variable_list& inputs) {
  return at::GradMode::is_enabled() && torch::autograd::any_variable_requires_grad(inputs);
}

// Returns the index of the argument or result of that name, or -1.
template <typename Entries>
int64_t place_of(const Entries& entries, const std::string& name) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& x) { return x.name() == name; });
  return found == entries.end() ? -1 : found - entries.begin();
}

Tensor tensor_or_undefined(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : Tensor(); }

// The backward node: calls the gradient operator.
class GradientNode : public Node {
 public:
  // `ignored`: results of the gradient operator that are not wanted.
  GradientNode(const c10::OperatorHandle& gradient, std::vector<bool> ignored)
      : gradient_(gradient), ignored_(std::move(ignored)) {}

  void keep(const c10::IValue& value, bool is_result) {
    Kept& kept = arguments_.emplace_back();
    kept.is_tensor = value.isTensor() && value.toTensor().defined();
    if (kept.is_tensor) kept.tensor = SavedVariable(value.toTensor(), is_result);
    if (!kept.is_tensor) kept.value = value;
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
    for (const Kept& x : arguments_) {
      stack.push_back(x.is_tensor ? c10::IValue(x.tensor.unpack(getptr())) : x.value);
    }
    gradient_.callBoxed(&stack);
    variable_list results;
    for (size_t i = 0; i < ignored_.size(); ++i) results.push_back(ignored_[i] ? Tensor() : stack[i].toTensor());
    return results;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Kept& x : arguments_) x.tensor.reset_data();
  }

 private:
  // An argument of the gradient operator after the incoming gradients: a tensor, or a value of another type.
  struct Kept {
    SavedVariable tensor;
    c10::IValue value;
    bool is_tensor = false;
  };

  c10::OperatorHandle gradient_;
  std::vector<Kept> arguments_;
  std::vector<bool> ignored_;
};

// The call's arguments, or its results, at the top of the stack.
template <typename Entries>
Stack::iterator first_of(Stack& stack, const Entries& entries) {
  return stack.end() - static_cast<std::ptrdiff_t>(entries.size());
}

void set_gradient(c10::IValue& result, const variable_list& inputs, const NodePointer& node) {
  // A result may be an input itself, as for zero tokens. It must not take over the input's place in the graph.
  for (const Tensor& x : inputs) {
    const at::AutoDispatchBelowADInplaceOrView below;
    if (x.defined() && x.is_same(result.toTensor())) result = x.clone();
  }
  torch::autograd::set_history(result.toTensor(), node);
}

// Records the backward node. `arguments` are those of the call; `stack` ends with its results.
void record(const GradientOperator& gradient, const c10::FunctionSchema& schema, const variable_list& inputs,
            const Stack& arguments, Stack& stack) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(gradient.name.c_str(), "");
  std::vector<bool> ignored;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool optional = gradient.inputs[i] == gradient.optional_work;
    ignored.push_back(!inputs[i].defined() || (optional && !inputs[i].requires_grad()));
  }
  const auto node = make_node<GradientNode>(op, std::move(ignored));
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  const auto results = first_of(stack, schema.returns());
  const auto& wanted = op.schema().arguments();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string& name = wanted[i].name();
    const int64_t argument = place_of(schema.arguments(), name), result = place_of(schema.returns(), name);
    if (name.starts_with("grad_")) {
      set_gradient(results[static_cast<std::ptrdiff_t>(i)], inputs, node);
    } else if (name.starts_with("need_")) {
      const auto& needed = arguments[place_of(schema.arguments(), gradient.optional_work)];
      node->keep(tensor_or_undefined(needed).defined() && needed.toTensor().requires_grad(), false);
    } else {
      node->keep(argument >= 0 ? arguments[argument] : results[result], argument < 0);
    }
  }
}

// Returns the tensors among the entries' values, without absent optional ones.
template <typename Entries>
variable_list tensors_of(Stack& stack, const Entries& entries) {
  variable_list found;
  for (auto it = first_of(stack, entries); it != stack.end(); ++it) {
    if (it->isTensor()) found.push_back(it->toTensor());
  }
  return found;
}

}  // namespace

torch::CppFunction differentiable_by(const GradientOperator& gradient) {
  return boxed([=](const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack) {
    const auto& schema = op.schema();
    variable_list inputs;  // undefined if absent
    for (const auto& name : gradient.inputs) {
      inputs.push_back(tensor_or_undefined(first_of(stack, schema.arguments())[place_of(schema.arguments(), name)]));
      TORCH_CHECK_NOT_IMPLEMENTED(!inputs.back().defined() || !inputs.back()._fw_grad(0).defined(), "[", schema.name(),
                                  "] forward-mode differentiation is not supported");
    }
    const bool wanted = any_requires_grad(inputs);
    Stack arguments;
    if (wanted) arguments.assign(first_of(stack, schema.arguments()), stack.end());
    compute(op, keys, stack);
    if (wanted) record(gradient, schema, inputs, arguments, stack);
  });
}

torch::CppFunction gradients_like(const GradientOperator& gradient) {
  return boxed([=](const c10::OperatorHandle& op, c10::DispatchKeySet, Stack& stack) {
    const auto& arguments = op.schema().arguments();
    const Stack given = torch::jit::pop(stack, arguments.size());
    const auto begins = [&](const char* with) {
      return [with](const c10::Argument& x) { return x.name().starts_with(with); };
    };
    const auto first = std::find_if(arguments.begin(), arguments.end(),
                                    [&](const c10::Argument& x) { return !begins("grad_")(x) && !begins("need_")(x); });
    const Tensor& any = given[first - arguments.begin()].toTensor();
    const auto need = std::find_if(arguments.begin(), arguments.end(), begins("need_"));
    const bool needed = need == arguments.end() || given[need - arguments.begin()].toBool();
    for (const auto& name : gradient.inputs) {
      const int64_t place = place_of(arguments, name);
      const Tensor x = place < 0 ? any : tensor_or_undefined(given[place]);
      const bool wanted = x.defined() && (needed || name != gradient.optional_work);
      stack.emplace_back(wanted ? at::empty_symint(x.sym_sizes(), x.options()) : at::empty({0}, any.options()));
    }
  });
}

torch::CppFunction once_differentiable() {
  return boxed([](const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack) {
    const auto& schema = op.schema();
    const variable_list inputs = tensors_of(stack, schema.arguments());
    const bool wanted = any_requires_grad(inputs);
    compute(op, keys, stack);
    if (!wanted) return;
    // Inserted between the results and the inputs, so that every path between them contains it.
    const auto error = make_node<torch::autograd::Error>(
        concat("[", schema.name(),
               "] differentiating twice is not supported: this gradient has no gradient of its own"),
        torch::autograd::collect_next_edges(inputs));
    for (const Tensor& output : tensors_of(stack, schema.returns())) {
      if (output.defined() && torch::autograd::isDifferentiableType(output.scalar_type())) {
        torch::autograd::set_history(output, error);
      }
    }
  });
}

}  // namespace cortado
