#include "cortado/train/optimizer.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/flatten_dense_tensors.h>
#include <ATen/ops/unflatten_dense_tensors.h>

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {

AdamW::AdamW(const Parameters& parameters, const TrainingOptions& options, const Ranks& ranks, bool shared_out)
    : options_(options), ranks_(ranks), shared_out_(shared_out && ranks.several()) {
  groups_[0].weight_decay = options.weight_decay;
  for (const auto& [name, parameter, role] : parameters) {
    TORCH_CHECK(parameter.is_contiguous(), "[optimizer] parameter ", name, " is not contiguous");
    Group& group = groups_[is_decayed(role) ? 0 : 1];
    group.names.push_back(name);
    group.parameters.push_back(parameter);
  }
  share_owners();
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      group.first.push_back(owns(group, i) ? at::zeros_like(group.parameters[i]) : Tensor());
      group.second.push_back(owns(group, i) ? at::zeros_like(group.parameters[i]) : Tensor());
    }
  }
}

// Assigns the largest parameters first, each to the process with the smallest load so far.
void AdamW::share_owners() {
  std::vector<std::pair<Group*, size_t>> all;
  for (Group& group : groups_) {
    group.owners.assign(group.parameters.size(), 0);
    for (size_t i = 0; i < group.parameters.size(); ++i) all.emplace_back(&group, i);
  }
  const auto size = [](const auto& place) { return place.first->parameters[place.second].numel(); };
  std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return size(a) > size(b); });
  std::vector<int64_t> loads(static_cast<size_t>(ranks_.size()), 0);
  for (const auto& place : all) {
    const auto least = std::min_element(loads.begin(), loads.end());
    place.first->owners[place.second] = least - loads.begin();
    *least += size(place);
  }
}

// Each process sends the parameters that it has updated, in one message.
void AdamW::exchange_parameters() {
  for (int64_t owner = 0; owner < ranks_.size(); ++owner) {
    std::vector<Tensor> parameters;
    for (const Group& group : groups_) {
      for (size_t i = 0; i < group.parameters.size(); ++i) {
        if (group.owners[i] == owner && group.parameters[i].grad().defined()) parameters.push_back(group.parameters[i]);
      }
    }
    if (parameters.empty()) continue;
    const Tensor all = at::flatten_dense_tensors(parameters);
    ranks_.broadcast(all, owner);
    if (owner == ranks_.rank()) continue;
    const std::vector<Tensor> updated = at::unflatten_dense_tensors(all, parameters);
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(updated[i]);
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
  if (shared_out_) exchange_parameters();
}

void AdamW::update(Group& group, double rate, const Tensor& divisor) {
  // A parameter without a gradient took no part in this step and stays unchanged.
  std::vector<Tensor> parameters, gradients, first, second;
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const Tensor& gradient = group.parameters[i].grad();
    if (!gradient.defined() || !owns(group, i)) continue;
    parameters.push_back(group.parameters[i]);
    gradients.push_back(gradient.contiguous());  // the fused kernel visits all four tensors in memory order
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
      for (const auto& [name, own] : {std::pair("first.", group.first[i]), std::pair("second.", group.second[i])}) {
        const Tensor moment = own.defined() ? own : at::empty_like(group.parameters[i]);
        if (shared_out_) ranks_.broadcast(moment, group.owners[i]);
        if (!shared_out_ || ranks_.first()) result.emplace_back(name + group.names[i], moment.detach());
      }
    }
  }
  return result;
}

void AdamW::restore(const NamedTensors& moments, int64_t steps) {
  const at::NoGradGuard no_grad;
  const std::map<std::string, Tensor> given(moments.begin(), moments.end());
  size_t count = 0;
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.names.size(); ++i, count += 2) {
      for (const auto& [kind, own] : {std::pair("first.", group.first[i]), std::pair("second.", group.second[i])}) {
        const std::string name = kind + group.names[i];
        const auto found = given.find(name);
        fail_input_if(found == given.end(), "[resume] the checkpoint has no optimiser moment \"", name, "\"");
        fail_input_if(found->second.sizes() != group.parameters[i].sizes(), "[resume] optimiser moment \"", name,
                      "\": expected shape ", group.parameters[i].sizes(), ", got ", found->second.sizes());
        if (own.defined()) Tensor(own).copy_(found->second);
      }
    }
  }
  fail_input_if(given.size() != count, "[resume] expected ", count, " optimiser moments, got ", given.size());
  steps_ = steps;
}

double clip_divisor(double norm, double clip) { return clip > 0 && norm > clip ? norm / clip : 1.0; }

}  // namespace cortado
