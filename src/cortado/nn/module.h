// The base of every module with weights: each says what it is for, and can be another's tensor for the time of a call.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cortado/primitives/types.h"

namespace cortado {

// What a parameter is for. An optimiser's weight decay pulls maps towards zero, where they do nothing; zero is nothing
// of the kind for the others (a_log = 0 is a decay of 1/e, mix = 0 the token before).
enum class Role {
  kMatrix,     // a map of channels, tokens or times, convolutions' taps among them
  kEmbedding,  // a vector for each token, place or latent
  kGain,       // a scale or a shift: of norms, biases, skips, logits of shares
  kDynamics    // what a state does with time: decays, step sizes, frequencies, bonuses, mixes with the token before
};
// "matrix", "embedding", "gain", "dynamics"
const char* role_name(Role role);
// Whether weight decay acts on it: nanoGPT's choice, which decays embeddings too.
inline bool is_decayed(Role role) { return role == Role::kMatrix || role == Role::kEmbedding; }

class Module : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  // Where the module keeps each weight of its own (not of its submodules), by name.
  const std::vector<std::pair<std::string, Tensor*>>& places() const { return places_; }
  // What each of its own parameters is for.
  const std::map<std::string, Role>& roles() const { return roles_; }

 protected:
  // torch's, of a member, whose place is remembered. All weights are registered by these.
  void register_parameter(Tensor& member, const std::string& name, Tensor value, Role role) {
    member = torch::nn::Module::register_parameter(name, std::move(value));
    places_.emplace_back(name, &member);
    roles_.emplace(name, role);
  }
  void register_parameter(OptionalTensor& member, const std::string& name, Tensor value, Role role) {
    register_parameter(member.emplace(), name, std::move(value), role);
  }
  void register_buffer(Tensor& member, const std::string& name, Tensor value) {
    member = torch::nn::Module::register_buffer(name, std::move(value));
    places_.emplace_back(name, &member);
  }

 private:
  std::vector<std::pair<std::string, Tensor*>> places_;
  std::map<std::string, Role> roles_;
};

// A parameter of a module by its name within it.
struct Parameter {
  std::string name;
  Tensor value;
  Role role;
};
using Parameters = std::vector<Parameter>;

// Of the module and its submodules, in the order of named_parameters(); TORCH_CHECK: one has no role.
Parameters parameters_of(const torch::nn::Module& module);
// Those that require gradients.
Parameters trainable(const torch::nn::Module& module);

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
