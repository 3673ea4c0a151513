#include "cortado/convert/report.h"

#include "cortado/base/chart.h"
#include "cortado/base/files.h"

namespace cortado {
namespace {

// The number of "layer 12".
double layer_number(const std::string& part) { return std::stod(part.substr(part.find_last_of(' ') + 1)); }

std::string picture(const StageReport& stage) {
  LineChart chart;
  chart.title = "Attention transfer: error of the layers' outputs";
  chart.x_label = "layer";
  chart.y_label = "mean square before the output projection";
  chart.log_y = true;
  for (const auto& [name, losses] : {std::pair("before", stage.before), std::pair("after", stage.after)}) {
    LineChart::Series series{name, {}};
    for (size_t i = 0; i < losses.size(); ++i) series.points.emplace_back(layer_number(stage.parts[i]), losses[i]);
    chart.series.push_back(series);
  }
  return chart.svg();
}

}  // namespace

StageReport report_of(const Stage& stage) {
  const StageState& state = stage.state();
  StageReport report;
  report.name = stage.name();
  report.parts = stage.objective().parts();
  report.before = state.before;
  report.after = state.best;
  report.total_before = stage.objective().total(state.before);
  report.total_after = stage.objective().total(state.best);
  report.steps = state.step;
  report.best_step = state.best_step;
  report.tokens = stage.tokens();
  report.seconds = state.seconds;
  return report;
}

Json StageReport::to_json() const {
  Json losses = Json::array();
  for (size_t i = 0; i < parts.size(); ++i) {
    losses.push_back({{"part", parts[i]}, {"before", before[i]}, {"after", after[i]}});
  }
  return {{"stage", name},
          {"steps", steps},
          {"best_step", best_step},
          {"tokens", tokens},
          {"seconds", seconds},
          {"loss_before", total_before},
          {"loss_after", total_after},
          {"losses", losses}};
}

StageReport StageReport::from_json(const Json& json, const std::string& place) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr double kLargest = std::numeric_limits<double>::max();
  JsonReader reader(json, place);
  StageReport report;
  report.name = reader.text("stage");
  report.steps = reader.integer("steps", 0, kMost);
  report.best_step = reader.integer("best_step", 0, kMost);
  report.tokens = reader.integer("tokens", 0, kMost);
  report.seconds = reader.number("seconds", 0, kLargest);
  report.total_before = reader.number("loss_before", -kLargest, kLargest);
  report.total_after = reader.number("loss_after", -kLargest, kLargest);
  for (const Json& entry : reader.any("losses")) {
    JsonReader losses(entry, place + ".losses");
    report.parts.push_back(losses.text("part"));
    report.before.push_back(losses.number("before", -kLargest, kLargest));
    report.after.push_back(losses.number("after", -kLargest, kLargest));
    losses.finish();
  }
  reader.finish();
  return report;
}

void write_report(const std::string& folder, const LinearizePlan& plan, const LinearizeResult& result) {
  Json stages = Json::array();
  for (const StageReport& stage : result.stages) {
    stages.push_back(stage.to_json());
    if (stage.parts.size() > 1) write_file(folder + "/report.svg", picture(stage));
  }
  write_file(folder + "/report.json", Json{{"plan", plan.to_json()}, {"stages", stages}}.dump(2) + "\n");
}

}  // namespace cortado
