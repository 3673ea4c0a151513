// The results of a sweep: rows, tables, pictures and learning curves.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cortado/base/chart.h"
#include "cortado/base/table.h"
#include "cortado/sweep/plan.h"

namespace cortado {

// Returns one row per combination of varied settings other than "best_over": {..settings, METRIC: mean over seeds or
// the best seed, "spread": largest minus smallest over seeds, "seeds": number of successful seeds, "failed": number of
// others, the means over seeds of the other numbers, "best": {key: value} of "best_over"}. A row is for the values of
// "best_over" with the best metric. Runs without a result are ignored, and combinations without any result get no row.
Json sweep_rows(const SweepPlan& plan, const std::vector<Json>& results);

// Returns the table of the rows that sweep_rows() gives.
Table sweep_table(const SweepPlan& plan, const Json& rows);
// A table of every run, successful or not.
Table sweep_runs_table(const SweepPlan& plan, const std::vector<Json>& results);
std::string sweep_csv(const SweepPlan& plan, const std::vector<Json>& results);
// Returns pictures by file name: the metric against each of plan.x ("state_bytes", "tokens" or a varied number), one
// line per value of plan.series; and for "state_bytes" the Pareto front of all points.
std::map<std::string, std::string> sweep_pictures(const SweepPlan& plan, const Json& rows);

// Returns a run's learning curve from its folder: {"step": [...], METRIC: [...], "validation_loss": [...]}, one entry
// per validation, without the metrics that they lack. Empty if there are no validations.
Json curve_of(const std::string& folder, const std::string& metric);

// Returns the learning curves as an SVG, one line per result: the metric against the step, or the validation loss if
// validations lack the metric. Returns "" if there is nothing to draw.
std::string sweep_curves(const SweepPlan& plan, const std::vector<Json>& results);

}  // namespace cortado
