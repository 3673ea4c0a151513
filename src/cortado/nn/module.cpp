#include "cortado/nn/module.h"

#include <unordered_map>

#include "cortado/base/error.h"
#include "cortado/nn/weights.h"

namespace cortado {

std::vector<Tensor*> weight_places(const torch::nn::Module& module) {
  std::unordered_map<std::string, Tensor*> found;
  for (const auto& part : module.named_modules()) {
    const auto* own = dynamic_cast<const Module*>(part.value().get());
    if (!own) continue;
    for (const auto& [name, place] : own->places()) found[part.key().empty() ? name : part.key() + "." + name] = place;
  }
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
