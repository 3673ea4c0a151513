// The base of every module with weights: they can be others' tensors for the time of a call.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "cortado/primitives/types.h"

namespace cortado {

class Module : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  // Where the module keeps each weight of its own (not of its submodules), by name.
  const std::vector<std::pair<std::string, Tensor*>>& places() const { return places_; }

 protected:
  // torch's, of a member, whose place is remembered. All weights are registered by these.
  void register_parameter(Tensor& member, const std::string& name, Tensor value) {
    member = torch::nn::Module::register_parameter(name, std::move(value));
    places_.emplace_back(name, &member);
  }
  void register_parameter(OptionalTensor& member, const std::string& name, Tensor value) {
    register_parameter(member.emplace(), name, std::move(value));
  }
  void register_buffer(Tensor& member, const std::string& name, Tensor value) {
    member = torch::nn::Module::register_buffer(name, std::move(value));
    places_.emplace_back(name, &member);
  }

 private:
  std::vector<std::pair<std::string, Tensor*>> places_;
};

// Every place of `module` in the order of named_weights(); InputError if it has a weight without one.
std::vector<Tensor*> weight_places(const torch::nn::Module& module);

// As long as this lives, the weights in these places are others.
class Borrowed {
 public:
  // `weights`: one a place.
  Borrowed(const std::vector<Tensor*>& places, const std::vector<Tensor>& weights) : places_(places), own_(weights) {
    exchange();
  }
  ~Borrowed() { exchange(); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

 private:
  void exchange() {
    for (size_t i = 0; i < places_.size(); ++i) std::swap(*places_[i], own_[i]);
  }

  const std::vector<Tensor*>& places_;
  std::vector<Tensor> own_;
};

}  // namespace cortado
