// How the runs of a sweep learned.
#pragma once

#include <string>

#include "cortado/sweep/plan.h"

namespace cortado {

// The metric at every validation against the step, a line for each run whose folder has its metrics.jsonl, as an SVG;
// the validation loss where validations don't have the metric. Empty: there is nothing to draw.
std::string sweep_curves(const SweepPlan& plan, const std::string& out);

}  // namespace cortado
