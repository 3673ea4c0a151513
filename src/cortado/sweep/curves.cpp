#include "cortado/sweep/curves.h"

#include <fstream>

#include "cortado/base/chart.h"
#include "cortado/base/table.h"
#include "cortado/sweep/run.h"

namespace cortado {
namespace {

constexpr size_t kMostCurves = 40;  // more can't be told apart

LineChart::Series curve_of(const SweepRun& run, const std::string& folder, const std::string& metric) {
  LineChart::Series series{run.id.substr(0, run.id.rfind('-')), {}};
  std::ifstream file(folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json entry = Json::parse(line, nullptr, false);
    if (!entry.is_object() || !entry.contains("step") || !entry.contains(metric) || !entry[metric].is_number())
      continue;
    series.points.emplace_back(entry["step"].get<double>(), entry[metric].get<double>());
  }
  return series;
}

}  // namespace

std::string sweep_curves(const SweepPlan& plan, const std::string& out) {
  for (const std::string& metric : {plan.metric, std::string("validation_loss")}) {
    LineChart chart{.title = plan.about, .x_label = "step", .y_label = metric};
    for (const SweepRun& run : plan.runs) {
      auto series = curve_of(run, SweepPlace{out}.folder(run), metric);
      if (!series.points.empty() && chart.series.size() < kMostCurves) chart.series.push_back(std::move(series));
    }
    if (!chart.series.empty()) return chart.svg();
  }
  return "";
}

}  // namespace cortado
