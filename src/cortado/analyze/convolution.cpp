#include "cortado/analyze/analyze.h"
#include "cortado/base/chart.h"
#include "cortado/base/error.h"
#include "cortado/base/words.h"
#include "cortado/mechanisms/registry.h"

namespace cortado {

static std::vector<std::string> mechanisms_with_slot_contents() {
  std::vector<std::string> names;
  for (const Mechanism* mechanism : mechanisms()) {
    if (mechanism->slot_contents) names.push_back(mechanism->name);
  }
  return names;
}

Finding analyze_convolution(const std::string& mechanism, const Json& settings, int64_t tokens) {
  const auto known = mechanisms_with_slot_contents();
  fail_input_if(known.empty(), "[analyze] no mechanism here has slots that don't depend on what they hold");
  const Mechanism& chosen = find_mechanism(mechanism.empty() ? known.front() : mechanism);
  fail_input_if(!chosen.slot_contents, "[analyze] what the slots of ", chosen.name,
                " hold depends on the tokens; known in advance it is for ", alternatives(known));
  const at::Tensor contents = chosen.slot_contents(settings, tokens);
  Finding finding;
  HeatMap map{.title = concat("What the slots hold after ", tokens, " tokens"),
              .x_label = "token",
              .y_label = "slot",
              .y_names = {}};
  LineChart chart{.title = "What some slots hold of each token", .x_label = "token", .y_label = "weight", .series = {}};
  map.low = contents.min().item<double>();
  map.high = contents.max().item<double>();
  const auto matrix = rows_of(contents);
  map.panels.push_back({chosen.name, matrix});
  Json rows = Json::array();
  const auto slots = int64_t(matrix.size());
  for (int64_t slot = 0; slot < slots; ++slot) {
    const at::Tensor row = contents[slot];
    rows.push_back({{"slot", slot},
                    {"largest_at", row.argmax().item<int64_t>()},
                    {"largest", row.max().item<double>()},
                    {"least", row.min().item<double>()},
                    {"sum", row.sum().item<double>()},
                    {"squares", row.square().sum().item<double>()}});
    if (slot % std::max<int64_t>(1, slots / 5) != 0) continue;
    LineChart::Series series{concat("slot ", slot), {}};
    for (int64_t t = 0; t < tokens; ++t) series.points.emplace_back(double(t), matrix[size_t(slot)][size_t(t)]);
    chart.series.push_back(series);
  }
  finding.json = {{"mixer", chosen.name}, {"tokens", tokens}, {"contents", matrix}, {"summary", rows}};
  finding.table = table_of(rows, {{"slot", "/slot"},
                                  {"largest at token", "/largest_at"},
                                  {"largest", "/largest", decimals(4)},
                                  {"least", "/least", decimals(4)},
                                  {"sum", "/sum", decimals(4)},
                                  {"sum of squares", "/squares", decimals(4)}});
  finding.pictures = {{"contents", map.svg()}, {"slots", chart.svg()}};
  return finding;
}

}  // namespace cortado
