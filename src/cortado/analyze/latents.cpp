#include <algorithm>
#include <cmath>

#include "cortado/analyze/analyze.h"
#include "cortado/analyze/traces.h"
#include "cortado/base/chart.h"
#include "cortado/base/error.h"

namespace cortado {

at::Tensor latent_weights(const std::vector<OperatorCall>& calls) {
  at::Tensor weights;
  for (const OperatorCall& call : calls) {
    if (call.name != "cortado::_latte_scan") continue;
    const at::Tensor query = call.tensor("query")[0].to(at::kDouble);
    // The operator's only bool argument tells whether `query` holds logits, which still need a softmax.
    const auto flag = std::find_if(call.inputs.begin(), call.inputs.end(), [](const auto& x) { return x.isBool(); });
    const bool logits = flag != call.inputs.end() && flag->toBool();
    weights = logits ? at::softmax(query, -1) : query;
  }
  if (!weights.defined()) return weights;
  return at::cat({(1 - weights.sum(-1, true)).clamp_min(0), weights}, -1);
}

namespace {

double entropy_of(const at::Tensor& p) { return -(p * p.clamp_min(1e-30).log()).sum().item<double>(); }

}  // namespace

Finding analyze_latents(const Reading& reading, int64_t heads) {
  Finding finding;
  finding.json = {{"tokens", reading.names}, {"layers", Json::array()}};
  Json rows = Json::array();
  for (const LayerReading& layer : read_layers(reading)) {
    const at::Tensor weights = latent_weights(calls_of(layer.mixer, layer.x));
    if (!weights.defined()) continue;
    const bool window = weights.select(2, 0).max().item<double>() > 1e-5;
    HeatMap map{.title = concat("p(l|t), layer ", layer.layer, window ? " (state 0 is the window)" : ""),
                .x_label = "token",
                .y_label = "state l",
                .x_names = reading.names,
                .y_names = {}};
    Json entry = {{"layer", layer.layer}, {"mixer", layer.mixer.name()}, {"heads", Json::array()}};
    for (int64_t head = 0; head < weights.size(1); ++head) {
      const at::Tensor all = weights.select(1, head), p = window ? all : all.narrow(1, 1, all.size(1) - 1);
      const at::Tensor mean = p.mean(0);
      const double usage = entropy_of(mean);
      rows.push_back({{"layer", layer.layer},
                      {"head", head},
                      {"states", p.size(1)},
                      {"window", window ? mean[0].item<double>() : 0.0},
                      {"usage", p.size(1) > 1 ? usage / std::log(double(p.size(1))) : 1.0},
                      {"used", std::exp(usage)},
                      {"largest", mean.max().item<double>()}});
      if (head >= heads) continue;
      const auto matrix = rows_of(p.transpose(0, 1));
      entry["heads"].push_back({{"head", head}, {"p", matrix}});
      map.panels.push_back({concat("head ", head), matrix});
    }
    finding.json["layers"].push_back(entry);
    finding.pictures.emplace_back(concat("latents-", layer.layer), map.svg());
  }
  fail_input_if(rows.empty(), "[analyze] none of these layers has latents");
  finding.json["summary"] = rows;
  finding.table = table_of(rows, {{"layer", "/layer"},
                                  {"head", "/head"},
                                  {"states", "/states"},
                                  {"p(window)", "/window", decimals(3)},
                                  {"usage entropy", "/usage", decimals(3)},
                                  {"states used", "/used", decimals(1)},
                                  {"largest mean p", "/largest", decimals(3)}});
  return finding;
}

}  // namespace cortado
