#include "cortado/nn/module.h"

#include <unordered_map>

#include "cortado/base/error.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

// Calls `visit` with every module in the tree that has weights, and the prefix of its weights' names.
template <typename Visit>
void visit_parts(const torch::nn::Module& module, Visit visit) {
  if (const auto* own = dynamic_cast<const Module*>(&module)) visit(*own, "");
  // The root is visited separately, because torch lists it only if a shared_ptr owns it.
  for (const auto& part : module.named_modules("", /*include_self=*/false)) {
    if (const auto* own = dynamic_cast<const Module*>(part.value().get())) visit(*own, part.key() + ".");
  }
}

}  // namespace

const char* role_name(Role role) {
  constexpr const char* kNames[] = {"matrix", "embedding", "gain", "dynamics"};
  return kNames[static_cast<size_t>(role)];
}

Parameters parameters_of(const torch::nn::Module& module) {
  std::unordered_map<std::string, Role> roles;
  visit_parts(module, [&](const Module& part, const std::string& prefix) {
    for (const auto& [name, role] : part.roles()) roles.emplace(prefix + name, role);
  });
  Parameters parameters;
  for (const auto& entry : module.named_parameters()) {
    const auto role = roles.find(entry.key());
    TORCH_CHECK(role != roles.end(), "[module] the parameter ", entry.key(), " was registered without a role");
    parameters.push_back({entry.key(), entry.value(), role->second});
  }
  return parameters;
}

Parameters trainable(const torch::nn::Module& module) {
  Parameters parameters = parameters_of(module);
  std::erase_if(parameters, [](const Parameter& parameter) { return !parameter.value.requires_grad(); });
  return parameters;
}

std::vector<Tensor*> weight_places(const torch::nn::Module& module) {
  std::unordered_map<std::string, Tensor*> found;
  visit_parts(module, [&](const Module& part, const std::string& prefix) {
    for (const auto& [name, place] : part.places()) found[prefix + name] = place;
  });
  std::vector<Tensor*> places;
  for (const auto& weight : named_weights(module)) {
    const auto place = found.find(weight.key());
    fail_input_if(place == found.end() || !place->second->is_same(weight.value()), "[module] the weight ", weight.key(),
                  " was registered without its place (nn/module.h)");
    places.push_back(place->second);
  }
  return places;
}

}  // namespace cortado
