// What a sweep has found: rows, tables, pictures; and how its runs learned.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cortado/base/chart.h"
#include "cortado/base/table.h"
#include "cortado/sweep/plan.h"

namespace cortado {

// A row for every combination of what is varied but for "best_over": {..settings, METRIC: mean over seeds (or the best
// seed), "spread": largest minus smallest over seeds, "seeds": how many have ended well, "failed": how many have not,
// the other numbers of the seeds' runs as means, "best": {key: value} of "best_over"}. Of the values of "best_over" the
// one with the best metric counts; runs without a result count for nothing. Combinations without any result: no row.
Json sweep_rows(const SweepPlan& plan, const std::vector<Json>& results);

Table sweep_table(const SweepPlan& plan, const Json& rows);
// Every run, ended well or not.
Table sweep_runs_table(const SweepPlan& plan, const std::vector<Json>& results);
std::string sweep_csv(const SweepPlan& plan, const std::vector<Json>& results);
// The metric against each of plan.x ("state_bytes", "tokens", or a varied number), a line for every value of
// plan.series; and of "state_bytes" the best of all at most so large. By file name.
std::map<std::string, std::string> sweep_pictures(const SweepPlan& plan, const Json& rows);

// Of a run's folder: {"step": [...], METRIC: [...], "validation_loss": [...]} at its validations; without what they
// don't have. Empty: there are none.
Json curve_of(const std::string& folder, const std::string& metric);

// The results' curves as an SVG, a line each: the metric against the step; the validation loss where validations don't
// have the metric. Empty: there is nothing to draw.
std::string sweep_curves(const SweepPlan& plan, const std::vector<Json>& results);

}  // namespace cortado
