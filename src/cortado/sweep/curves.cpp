#include "cortado/sweep/curves.h"

#include <fstream>

#include "cortado/base/chart.h"

namespace cortado {
namespace {

constexpr size_t kMostCurves = 40;  // more can't be told apart
constexpr const char* kLoss = "validation_loss";

LineChart::Series series_of(const Json& result, const std::string& metric) {
  const auto id = result.at("id").get<std::string>();
  LineChart::Series series{id.substr(0, id.rfind('-')), {}};
  const Json curve = result.value("curve", Json::object());
  if (!curve.contains(metric)) return series;
  const auto steps = curve.at("step").get<std::vector<double>>(), values = curve[metric].get<std::vector<double>>();
  for (size_t i = 0; i < std::min(steps.size(), values.size()); ++i) series.points.emplace_back(steps[i], values[i]);
  return series;
}

}  // namespace

Json curve_of(const std::string& folder, const std::string& metric) {
  Json curve = Json::object();
  std::ifstream file(folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json entry = Json::parse(line, nullptr, false);
    const auto has = [&](const std::string& key) { return entry.contains(key) && entry[key].is_number(); };
    if (!entry.is_object() || !has("step") || !has(kLoss)) continue;
    curve["step"].push_back(entry["step"]);
    curve[kLoss].push_back(entry[kLoss]);
    if (metric != kLoss && has(metric)) curve[metric].push_back(entry[metric]);
  }
  return curve;
}

std::string sweep_curves(const SweepPlan& plan, const std::vector<Json>& results) {
  for (const std::string& metric : {plan.metric, std::string(kLoss)}) {
    LineChart chart{.title = plan.about, .x_label = "step", .y_label = metric};
    for (const Json& result : results) {
      auto series = series_of(result, metric);
      if (!series.points.empty() && chart.series.size() < kMostCurves) chart.series.push_back(std::move(series));
    }
    if (!chart.series.empty()) return chart.svg();
  }
  return "";
}

}  // namespace cortado
