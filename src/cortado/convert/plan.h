// The stages of a plan.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cortado/convert/linearize.h"

namespace cortado {

struct PlannedStage {
  std::string name;
  StageOptions options;
  std::function<std::shared_ptr<Objective>(const std::shared_ptr<LanguageModel>&)> objective;
  WeightFormat frozen = WeightFormat::kPlain;  // what it can have the layers' frozen matrices in
};

// In their order; stages of no tokens are left out.
std::vector<PlannedStage> planned_stages(const LinearizePlan& plan);

// Fills in what the plan leaves to the text: how long stages are.
void set_default_tokens(LinearizePlan& plan, int64_t tokens);

}  // namespace cortado
