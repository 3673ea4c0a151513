// torch.ops.cortado.part: parts of a model (part.h) as one operator. With real tensors autograd sees the operators
// inside. Under torch.compile and torch.export it is one opaque node, and its gradient another one, which recomputes
// the part. torch.classes.cortado.Part lists a part's weights and state.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <array>

#include "cortado/base/error.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/models/checkpoint.h"
#include "cortado/models/part.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

using Tensors = std::vector<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensors part_kernel(const std::string& part, const std::string& autocast, bool training, at::TensorList weights,
                    at::TensorList inputs, at::TensorList state, const OptionalTensor& cu_seqlens) {
  return run_part({part, autocast, training, weights.vec(), inputs.vec(), state.vec(), cu_seqlens});
}

// As part_kernel(), with Python's modules in place of linear maps and embeddings; `inner` finds them by `caller`.
Tensors part_calling(const std::string& part, const std::string& autocast, bool training, at::TensorList weights,
                     at::TensorList inputs, at::TensorList state, const OptionalTensor& cu_seqlens,
                     std::vector<std::string> called, int64_t caller) {
  static const auto inner = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("cortado::inner", "")
                                .typed<Tensor(int64_t, std::string_view, const Tensor&)>();
  const auto under_way = [](const Tensor& x) { return x.key_set().has(c10::DispatchKey::Python); };
  fail_input_if(std::any_of(inputs.begin(), inputs.end(), under_way),
                "[part] what calls modules of Python's cannot be traced");
  PartCall call{part, autocast, training, weights.vec(), inputs.vec(), state.vec(), cu_seqlens, std::move(called), {}};
  call.inner = [caller](const std::string& name, const Tensor& x) { return inner.call(caller, name, x); };
  return run_part(call);
}

// The gradients of weights, inputs and state, in this order. Unused tensors get zeros, integer tensors an empty tensor.
Tensors part_backward(const std::string& part, const std::string& autocast, bool training, at::TensorList weights,
                      at::TensorList inputs, at::TensorList state, const OptionalTensor& cu_seqlens,
                      const c10::List<OptionalTensor>& gradients) {
  const at::AutoGradMode on(true);
  Tensors leaves, wanted;
  const auto leaf = [&](at::TensorList tensors) {
    Tensors own;
    for (const Tensor& x : tensors) {
      own.push_back(x.detach());
      if (x.is_floating_point()) wanted.push_back(own.back().set_requires_grad(true));
    }
    leaves.insert(leaves.end(), own.begin(), own.end());
    return own;
  };
  const Tensors w = leaf(weights), in = leaf(inputs), s = leaf(state);
  const Tensors results = run_part({part, autocast, training, w, in, s, cu_seqlens});
  fail_input_if(gradients.size() != results.size(), "[part] expected ", results.size(), " gradients, got ",
                gradients.size());
  Tensors outputs, into;
  for (size_t i = 0; i < results.size(); ++i) {
    const OptionalTensor gradient = gradients.get(i);
    if (!gradient || !gradient->defined() || !results[i].requires_grad()) continue;
    fail_input_if(gradient->sizes() != results[i].sizes() || gradient->layout() != at::kStrided ||
                      gradient->device() != results[i].device() || !gradient->is_floating_point(),
                  "[part] expected the gradient of result ", i, " to be numbers of the shape ", results[i].sizes(),
                  ", got ", gradient->scalar_type(), " ", gradient->sizes());
    outputs.push_back(results[i]);
    into.push_back(*gradient);
  }
  variable_list found(wanted.size());
  if (!outputs.empty()) found = torch::autograd::grad(outputs, wanted, into, false, false, /*allow_unused=*/true);
  Tensors all;
  size_t next = 0;
  for (const Tensor& x : leaves) {
    if (!x.is_floating_point()) {
      all.push_back(at::empty({0}, x.options()));
      continue;
    }
    const Tensor& gradient = found[next++];
    all.push_back(gradient.defined() ? gradient.contiguous() : at::zeros_like(x, at::MemoryFormat::Contiguous));
  }
  return all;
}

// The node that tracing sees.
struct Opaque : torch::autograd::Function<Opaque> {
  // `ends`: where the weights end in `tensors`, then the inputs, then the state.
  static variable_list forward(AutogradContext* context, at::TensorList tensors, const std::array<size_t, 3>& ends,
                               const std::string& part, const std::string& autocast, bool training,
                               const OptionalTensor& cu_seqlens) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto call =
        c10::Dispatcher::singleton().findSchemaOrThrow("cortado::part", "").typed<decltype(part_kernel)>();
    auto saved = tensors.vec();
    if (cu_seqlens) saved.push_back(*cu_seqlens);
    context->save_for_backward(saved);
    context->saved_data["part"] = part;
    context->saved_data["autocast"] = autocast;
    context->saved_data["training"] = training;
    context->saved_data["ends"] = std::vector<int64_t>(ends.begin(), ends.end());
    const Tensors results = call.call(part, autocast, training, tensors.slice(0, ends[0]),
                                      tensors.slice(ends[0], ends[1] - ends[0]), tensors.slice(ends[1]), cu_seqlens);
    variable_list fixed;
    for (const Tensor& x : results) {
      if (!x.is_floating_point()) fixed.push_back(x);
    }
    context->mark_non_differentiable(fixed);
    context->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto call =
        c10::Dispatcher::singleton().findSchemaOrThrow("cortado::part_backward", "").typed<decltype(part_backward)>();
    const Tensors saved = context->get_saved_variables();
    const auto ends = context->saved_data["ends"].toIntVector();
    const auto first = static_cast<size_t>(ends[0]), second = static_cast<size_t>(ends[1]),
               end = static_cast<size_t>(ends[2]);
    const at::TensorList tensors = at::TensorList(saved).slice(0, end);
    const OptionalTensor cu_seqlens = saved.size() > end ? OptionalTensor(saved[end]) : std::nullopt;
    c10::List<OptionalTensor> given;
    for (const Tensor& x : gradients) given.push_back(x.defined() ? OptionalTensor(x) : std::nullopt);
    variable_list results =
        call.call(context->saved_data["part"].toStringRef(), context->saved_data["autocast"].toStringRef(),
                  context->saved_data["training"].toBool(), tensors.slice(0, first),
                  tensors.slice(first, second - first), tensors.slice(second), cu_seqlens, given);
    for (size_t i = 0; i < results.size(); ++i) {
      if (!tensors[i].is_floating_point()) results[i] = Tensor();
    }
    results.resize(end + 5);  // the arguments that are not tensors have no gradient
    return results;
  }
};

bool traced(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const Tensor& x) { return x.key_set().has(c10::DispatchKey::Python); });
}

Tensors part_autograd(const std::string& part, const std::string& autocast, bool training, at::TensorList weights,
                      at::TensorList inputs, at::TensorList state, const OptionalTensor& cu_seqlens) {
  if (!traced(weights) && !traced(inputs) && !traced(state)) {
    return part_kernel(part, autocast, training, weights, inputs, state, cu_seqlens);
  }
  Tensors all = weights.vec();
  for (const auto& more : {inputs, state}) all.insert(all.end(), more.begin(), more.end());
  const std::array<size_t, 3> ends{weights.size(), weights.size() + inputs.size(), all.size()};
  return Opaque::apply(at::TensorList(all), ends, part, autocast, training, cu_seqlens);
}

// A part's facts for Python: JSON about its weights and state, and initial weights.
class PythonPart : public torch::CustomClassHolder {
 public:
  // Draws weights from torch's generator; without `draw` the weights are uninitialised.
  PythonPart(const std::string& text, bool draw) {
    std::optional<SkipInitialization> skip;
    std::optional<KeptGenerator> kept;
    if (!draw) {
      skip.emplace();
      kept.emplace();
    }
    part_ = Part::make(text);
  }

  c10::Dict<std::string, Tensor> weights() const {
    c10::Dict<std::string, Tensor> all;
    for (const auto& weight : named_weights(part_->module())) all.insert(weight.key(), weight.value().detach());
    return all;
  }

  // {"buffers": names of weights that are not trained, "roles": roles of the other weights (nn/module.h), "maps": names
  // of modules that are linear maps, "draws": whether training draws random numbers, "foreseen": whether the state's
  // sizes can be predicted, "state": names of its tensors}
  std::string facts() const {
    Json facts = {
        {"buffers", Json::array()}, {"roles", Json::object()}, {"maps", Json::array()}, {"state", Json::array()}};
    for (const auto& buffer : part_->module().named_buffers()) facts["buffers"].push_back(buffer.key());
    for (const auto& [name, value, role] : parameters_of(part_->module())) facts["roles"][name] = role_name(role);
    for (const auto& module : part_->module().named_modules()) {
      if (dynamic_cast<const Linear*>(module.value().get())) facts["maps"].push_back(module.key());
    }
    facts["draws"] = part_->draws();
    const auto zero = part_->state_layout().zeros(part_->state_name(), 0, at::kFloat);
    for (const auto& [name, tensor] : zero.tensors()) facts["state"].push_back(name);
    facts["foreseen"] = true;
    try {
      part_->state_layout().places_after(std::vector<int64_t>(zero.tensors().size()), 1);
    } catch (const InputError&) {
      facts["foreseen"] = false;
    }
    return facts.dump();
  }

 private:
  std::unique_ptr<Part> part_;
};

// All mechanisms in the registry's order, as JSON: their descriptions, and their settings with the defaults in a model
// of this width and number of heads.
std::string mechanism_list(int64_t dim, int64_t heads) {
  constexpr int64_t kWidest = int64_t{1} << 20, kMostHeads = int64_t{1} << 16;
  fail_input_if(dim < 1 || dim > kWidest || heads < 1 || heads > kMostHeads, "[mechanisms] expected a width of 1..",
                kWidest, " and 1..", kMostHeads, " heads, got ", dim, " and ", heads);
  Json all = Json::array();
  for (const Mechanism* mechanism : mechanisms()) {
    Json settings = Json::array();
    const MixerContext context{.dim = dim, .heads = heads, .causal = mechanism->causal};
    for (const auto& question : settings_of(*mechanism, context)) {
      settings.push_back({{"name", question.key},
                          {"expected", question.expected},
                          {"default", question.fallback},
                          {"words", question.words}});
    }
    all.push_back({{"name", mechanism->name},
                   {"family", mechanism->family},
                   {"paper", mechanism->paper},
                   {"equation", mechanism->equation},
                   {"state", mechanism->state},
                   {"causal", mechanism->causal},
                   {"bidirectional", mechanism->bidirectional},
                   {"settings", std::move(settings)}});
  }
  return all.dump();
}

// The checked config with every default filled in.
std::string full_config(const std::string& config) {
  const KeptGenerator kept;
  return ModelConfig::from_json(parse_json(config, "config"), "config").to_json().dump();
}

void save_weights_as(const std::string& config, const std::vector<std::string>& names, at::TensorList tensors,
                     const std::string& path) {
  const KeptGenerator kept;
  NamedTensors weights;
  fail_input_if(names.size() != tensors.size(), "[checkpoint] ", names.size(), " names, ", tensors.size(), " tensors");
  for (size_t i = 0; i < names.size(); ++i) weights.emplace_back(names[i], tensors[i].detach());
  save_weights(ModelConfig::from_json(parse_json(config, "config"), "config"), std::move(weights), path);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def("mechanisms(int dim, int heads) -> str", mechanism_list);
  m.def("config(str config) -> str", full_config);
  m.def("part_zero_state(str part, int rows, Tensor like) -> Tensor[]", part_zero_state);
  m.def("part_places(str part, int[] now, int tokens) -> int[]", part_places);
  m.def("part_width(str part, int width) -> int", part_width);
  m.def("save_weights(str config, str[] names, Tensor[] weights, str path) -> ()", save_weights_as);
  const std::string call =
      "(str part, str autocast, bool training, Tensor[] weights, Tensor[] inputs, Tensor[] state, Tensor? cu_seqlens";
  m.def(("part" + call + ") -> Tensor[]").c_str());
  m.def(("part_backward" + call + ", Tensor?[] gradients) -> Tensor[]").c_str());
  m.def(("part_calling" + call + ", str[] called, int caller) -> Tensor[]").c_str(),
        torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, part_calling));
  m.def("inner(int caller, str place, Tensor x) -> Tensor");  // implemented in Python: cortado/_parts.py
  m.class_<PythonPart>("Part")
      .def(torch::init<const std::string&, bool>(), "", {torch::arg("part"), torch::arg("draw") = true})
      .def("weights", &PythonPart::weights)
      .def("facts", &PythonPart::facts);
}
TORCH_LIBRARY_IMPL(cortado, Autograd, m) {
  m.impl("part", part_autograd);
  m.impl("part_backward", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(cortado, CPU, m) {
  m.impl("part", part_kernel);
  m.impl("part_backward", part_backward);
}
TORCH_LIBRARY_IMPL(cortado, CUDA, m) {
  m.impl("part", part_kernel);
  m.impl("part_backward", part_backward);
}

}  // namespace cortado
