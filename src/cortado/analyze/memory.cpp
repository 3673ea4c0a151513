#include <map>

#include "cortado/analyze/analyze.h"
#include "cortado/base/chart.h"
#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/models/backbone.h"

namespace cortado {
namespace {

// Layers with equal mixers: one of these mixers and the number of layers.
struct LayerKind {
  std::shared_ptr<Mixer> mixer;
  int64_t layers;
};

std::vector<LayerKind> layer_kinds(const ModelConfig& config) {
  std::map<std::string, LayerKind> kinds;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    auto [found, added] = kinds.try_emplace(config.layers[i].dump());
    if (added) found->second = {make_layer_mixer(config, int64_t(i)), 0};
    ++found->second.layers;
  }
  std::vector<LayerKind> list;
  for (const auto& [settings, kind] : kinds) list.push_back(kind);
  return list;
}

Json kept_by(const std::string& name, const std::vector<LayerKind>& kinds, int64_t length) {
  Json row = {{"model", name}, {"tokens", length}};
  int64_t bytes = 0, layers = 0;
  double pairs = 0;
  bool has_pairs = true;
  for (const LayerKind& kind : kinds) {
    bytes += kind.layers * kind.mixer->state_bytes(length);
    layers += kind.layers;
    const auto held = kind.mixer->pairs(length);
    has_pairs = has_pairs && held;
    if (held) pairs += double(kind.layers) * held->total();
  }
  row["bytes"] = bytes;
  row["floats"] = bytes / 4;
  if (has_pairs) {
    row["pairs"] = pairs / double(layers);
    row["compression"] = double(length) * double(layers) / pairs;
  }
  return row;
}

}  // namespace

Finding analyze_memory(const MemoryComparison& options) {
  Finding finding;
  LineChart chart{.title = "Memory of a sequence, float32, all layers", .x_label = "tokens read", .y_label = "bytes"};
  chart.log_x = chart.log_y = true;
  Json rows = Json::array();
  for (const auto& [name, json] : options.configs) {
    Json with_vocabulary = json;
    if (!with_vocabulary.contains("vocabulary")) with_vocabulary["vocabulary"] = options.vocabulary;
    const ModelConfig config = ModelConfig::from_json(with_vocabulary, name);
    fail_input_if(!config.causal, "[", name, "] a bidirectional model keeps no state");
    const auto kinds = layer_kinds(config);
    LineChart::Series series{name, {}};
    for (const int64_t length : options.lengths) {
      rows.push_back(kept_by(name, kinds, length));
      series.points.emplace_back(double(length), rows.back()["bytes"].get<double>());
    }
    chart.series.push_back(series);
  }
  finding.json = {{"rows", rows}};
  finding.table = table_of(rows, {{"model", "/model"},
                                  {"tokens", "/tokens", [](const Json& n) { return with_commas(n.get<int64_t>()); }},
                                  {"pairs a head", "/pairs", decimals(1)},
                                  {"compression", "/compression", decimals(2)},
                                  {"floats", "/floats", [](const Json& n) { return with_commas(n.get<int64_t>()); }},
                                  {"bytes", "/bytes", [](const Json& n) { return with_commas(n.get<int64_t>()); }}});
  finding.pictures = {{"memory", chart.svg()}};
  return finding;
}

}  // namespace cortado
