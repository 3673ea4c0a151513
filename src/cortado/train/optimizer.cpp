#include "cortado/train/optimizer.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>

#include "cortado/base/error.h"

namespace cortado {

NamedTensors trainable(const torch::nn::Module& module) {
  NamedTensors parameters;
  for (const auto& entry : module.named_parameters()) {
    if (entry.value().requires_grad()) parameters.emplace_back(entry.key(), entry.value());
  }
  return parameters;
}

AdamW::AdamW(const NamedTensors& parameters, const TrainingOptions& options) : options_(options) {
  groups_[0].weight_decay = options.weight_decay;
  for (const auto& [name, parameter] : parameters) {
    TORCH_CHECK(parameter.is_contiguous(), "[optimizer] parameter ", name, " is not contiguous");
    Group& group = groups_[parameter.dim() >= 2 ? 0 : 1];
    group.names.push_back(name);
    group.parameters.push_back(parameter);
    group.first.push_back(at::zeros_like(parameter));
    group.second.push_back(at::zeros_like(parameter));
  }
}

double AdamW::gradient_norm() const {
  std::vector<Tensor> gradients;
  for (const Group& group : groups_) {
    for (const Tensor& parameter : group.parameters) {
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    }
  }
  if (gradients.empty()) return 0.0;
  const at::NoGradGuard no_grad;
  return at::stack(at::_foreach_norm(gradients)).norm().item<double>();
}

void AdamW::step(double rate, double divisor) {
  const at::NoGradGuard no_grad;
  ++steps_;
  Tensor scale;
  for (Group& group : groups_) {
    if (group.parameters.empty()) continue;
    if (!scale.defined()) scale = at::full({1}, divisor, group.parameters.front().options());
    update(group, rate, scale);
  }
}

void AdamW::update(Group& group, double rate, const Tensor& divisor) {
  // A parameter that took no part in this step has no gradient and stays as it is.
  std::vector<Tensor> parameters, gradients, first, second;
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const Tensor& gradient = group.parameters[i].grad();
    if (!gradient.defined()) continue;
    parameters.push_back(group.parameters[i]);
    gradients.push_back(gradient.contiguous());  // the fused kernel walks all four in memory order
    first.push_back(group.first[i]);
    second.push_back(group.second[i]);
  }
  if (parameters.empty()) return;
  const Tensor count = at::full({}, double(steps_), divisor.options());
  const std::vector<Tensor> counts(parameters.size(), count);
  at::_fused_adamw_(parameters, gradients, first, second, {}, counts, rate, options_.beta1, options_.beta2,
                    group.weight_decay, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false, divisor);
}

void AdamW::clear_gradients() {
  for (Group& group : groups_) {
    for (Tensor& parameter : group.parameters) parameter.mutable_grad().reset();
  }
}

std::vector<std::string> AdamW::decayed() const { return groups_[0].names; }

NamedTensors AdamW::moments() const {
  NamedTensors result;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.names.size(); ++i) {
      result.emplace_back("first." + group.names[i], group.first[i]);
      result.emplace_back("second." + group.names[i], group.second[i]);
    }
  }
  return result;
}

void AdamW::restore(const NamedTensors& moments, int64_t steps) {
  const at::NoGradGuard no_grad;
  const std::map<std::string, Tensor> given(moments.begin(), moments.end());
  const auto own = this->moments();
  fail_input_if(given.size() != own.size(), "[resume] expected ", own.size(), " optimiser moments, got ", given.size());
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    fail_input_if(found == given.end(), "[resume] the checkpoint has no optimiser moment \"", name, "\"");
    fail_input_if(found->second.sizes() != tensor.sizes(), "[resume] optimiser moment \"", name, "\": expected shape ",
                  tensor.sizes(), ", got ", found->second.sizes());
    tensor.copy_(found->second);
  }
  steps_ = steps;
}

double clip_divisor(double norm, double clip) { return clip > 0 && norm > clip ? norm / clip : 1.0; }

}  // namespace cortado
