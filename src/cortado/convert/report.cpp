#include "cortado/convert/report.h"

#include "cortado/base/chart.h"
#include "cortado/base/files.h"

namespace cortado {
namespace {

// The number in "layer 12".
double layer_number(const std::string& part) { return std::stod(part.substr(part.find_last_of(' ') + 1)); }

std::string picture(const StageReport& stage) {
  LineChart chart{.title = "Attention transfer: error of the layers' outputs",
                  .x_label = "layer",
                  .y_label = "mean square before the output projection",
                  .log_y = true};
  for (const auto& [name, loss] :
       {std::pair("before", &StageReport::Loss::before), std::pair("after", &StageReport::Loss::after)}) {
    LineChart::Series series{name, {}};
    for (const auto& losses : stage.losses) series.points.emplace_back(layer_number(losses.part), losses.*loss);
    chart.series.push_back(series);
  }
  return chart.svg();
}

}  // namespace

StageReport report_of(const Stage& stage) {
  const TrainerState& state = stage.state();
  const Objective& objective = stage.objective();
  StageReport report;
  report.name = stage.name();
  const auto parts = objective.parts();
  for (size_t i = 0; i < parts.size(); ++i) report.losses.push_back({parts[i], stage.before()[i], stage.best()[i]});
  report.total_before = objective.total(stage.before());
  report.total_after = objective.total(stage.best());
  report.steps = state.step;
  report.best_step = state.best_step;
  report.tokens = stage.tokens();
  report.seconds = state.seconds;
  return report;
}

void write_report(const std::string& folder, const LinearizePlan& plan, const LinearizeResult& result) {
  Json stages = Json::array();
  for (const StageReport& stage : result.stages) {
    stages.push_back(json_of(stage));
    if (stage.losses.size() > 1) write_file(folder + "/report.svg", picture(stage));
  }
  Json report = {{"plan", json_of(plan)}, {"stages", stages}};
  if (result.cache) report["cache"] = json_of(*result.cache);
  if (result.sinks) report["sinks"] = *result.sinks;
  write_file(folder + "/report.json", report.dump(2) + "\n");
}

}  // namespace cortado
