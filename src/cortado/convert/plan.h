// The stages of a plan, and the report of what they came to.
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

StageReport report_of(const Stage& stage);
// report.json and report.svg of the stages of `result` into `folder`; the picture is of the first stage that has losses
// of several layers.
void write_report(const std::string& folder, const LinearizePlan& plan, const LinearizeResult& result);

}  // namespace cortado
