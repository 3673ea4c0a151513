// Base of every module with weights. Each parameter has a role, and its tensor can be replaced for the duration of a
// call.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cortado/primitives/types.h"

namespace cortado {

// The purpose of a parameter. An optimiser's weight decay pulls maps towards zero, where they have no effect. For other
// roles zero is not neutral (a_log = 0 is a decay of 1/e, mix = 0 the previous token).
enum class Role {
  kMatrix,     // maps of channels, tokens or times, including convolution taps
  kEmbedding,  // one vector per token, place or latent
  kGain,       // scales or shifts: of norms, biases, skips, logits of shares
  kDynamics    // how a state changes with time: decays, step sizes, frequencies, bonuses, mixes with the previous token
};
// "matrix", "embedding", "gain", "dynamics"
const char* role_name(Role role);
// Whether weight decay acts on the role: nanoGPT's choice, which also decays embeddings.
inline bool is_decayed(Role role) { return role == Role::kMatrix || role == Role::kEmbedding; }

class Module : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  // The members that hold the module's own weights (not its submodules'), by name.
  const std::vector<std::pair<std::string, Tensor*>>& places() const { return places_; }
  // The roles of the module's own parameters.
  const std::map<std::string, Role>& roles() const { return roles_; }

 protected:
  // torch's registration of a member, recording the member's address. All weights must be registered by these.
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

// A module's parameter and its name within the module.
struct Parameter {
  std::string name;
  Tensor value;
  Role role;
};
using Parameters = std::vector<Parameter>;

// Returns the parameters of the module and its submodules, in the order of named_parameters(). TORCH_CHECK: a parameter
// has no role.
Parameters parameters_of(const torch::nn::Module& module);
// Returns the parameters that require gradients.
Parameters trainable(const torch::nn::Module& module);

// Returns the members that hold the module's weights, in the order of named_weights(). InputError: a weight has none.
std::vector<Tensor*> weight_places(const torch::nn::Module& module);

// Replaces the weights in these members for as long as the object lives.
class Borrowed {
 public:
  // `weights`: one per member.
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
