// How the runs of a sweep learned.
#pragma once

#include <string>
#include <vector>

#include "cortado/sweep/plan.h"

namespace cortado {

// Of a run's folder: {"step": [...], METRIC: [...], "validation_loss": [...]} at its validations; without what they
// don't have. Empty: there are none.
Json curve_of(const std::string& folder, const std::string& metric);

// The results' curves as an SVG, a line each: the metric against the step; the validation loss where validations don't
// have the metric. Empty: there is nothing to draw.
std::string sweep_curves(const SweepPlan& plan, const std::vector<Json>& results);

}  // namespace cortado
