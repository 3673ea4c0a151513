#include <algorithm>
#include <cmath>
#include <limits>

#include "cortado/analyze/analyze.h"
#include "cortado/analyze/capture.h"
#include "cortado/base/chart.h"
#include "cortado/base/error.h"

namespace cortado {
namespace {

// Returns the mixer's stored pairs, or those of its ungated scan.
StoredPairs pairs_of(Mixer& mixer, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  if (const auto own = mixer.stored_pairs(x)) return *own;
  StoredPairs pairs;
  for (const OperatorCall& call : captured([&] { mixer.forward(x, Batch{}, nullptr); })) {
    if (call.name != "cortado::gated_scan" || call.tensor("g").defined()) continue;
    pairs = {call.tensor("k")[0], call.tensor("v")[0]};
  }
  fail_input_if(!pairs.keys.defined(), "[analyze] ", mixer.name(),
                " has no linear state without decay: nothing collides there as in LoLA's figure 3");
  return pairs;
}

// Returns |phi(k_j)'H / phi(k_j)'s - v_j| for every j.
at::Tensor errors_now(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& state) {
  const at::Tensor read = at::matmul(keys, state);  // [T, V+1]
  const at::Tensor total = read.narrow(1, values.size(1), 1);
  const at::Tensor answer = at::where(total == 0, at::zeros_like(total), 1 / total) * read.narrow(1, 0, values.size(1));
  return (answer - values).norm(2, -1);
}

struct Regime {
  std::string name;
  int64_t window, cache;
};

double mean_of(const at::Tensor& errors) {
  const at::Tensor known = errors.masked_select(errors.isfinite());
  return known.numel() ? known.mean().item<double>() : std::nan("");
}

// Subtracts each pair's error at the moment when it entered the state.
at::Tensor relative_to_the_first(const at::Tensor& errors) {
  at::Tensor relative = errors.clone();
  for (int64_t j = 0; j < errors.size(1); ++j) {
    const at::Tensor known = errors.select(1, j).isfinite().nonzero();
    if (known.numel()) relative.select(1, j).sub_(errors[known[0].item<int64_t>()][j].item<double>());
  }
  return relative;
}

double largest_of(const at::Tensor& matrix) { return matrix.nan_to_num(0.0).max().item<double>(); }

}  // namespace

at::Tensor recall_errors(const at::Tensor& keys, const at::Tensor& values, int64_t window, int64_t cache) {
  const int64_t tokens = keys.size(0);
  const at::Tensor phi = keys.to(at::kDouble), v = values.to(at::kDouble);
  const at::Tensor extended = at::cat({v, at::ones({tokens, 1}, v.options())}, 1);
  at::Tensor state = at::zeros({phi.size(1), v.size(1) + 1}, v.options());
  at::Tensor found = at::full({tokens, tokens}, std::numeric_limits<double>::quiet_NaN(), v.options());
  std::vector<int64_t> kept, stored;
  for (int64_t t = 0; t < tokens; ++t) {
    if (t >= window) kept.push_back(t - window);
    if (int64_t(kept.size()) > cache) {
      const at::Tensor error = errors_now(phi, v, state);
      const auto least = std::min_element(kept.begin(), kept.end(), [&](int64_t a, int64_t b) {
        return error[a].item<double>() < error[b].item<double>();
      });
      state = state + at::outer(phi[*least], extended[*least]);
      stored.push_back(*least);
      kept.erase(least);
    }
    if (stored.empty()) continue;
    const at::Tensor places = at::tensor(stored, at::kLong);
    found[t].index_copy_(0, places, errors_now(phi, v, state).index_select(0, places));
  }
  return found;
}

namespace {

// The pictures of one layer. Every head and memory adds its own panels and lines.
struct LayerPictures {
  HeatMap errors, relative;
  LineChart curves;

  LayerPictures(int64_t layer, const std::vector<std::string>& names) {
    errors = {.title = concat("Self-recall error of the pairs in the state, layer ", layer),
              .x_label = "stored pair",
              .y_label = "token",
              .x_names = names,
              .y_names = names};
    errors.high = 0;
    relative = errors;
    relative.title += ", less that when it was stored";
    curves = {.title = concat("Mean self-recall error, layer ", layer), .x_label = "token", .y_label = "error"};
  }

  void add(const std::string& title, const at::Tensor& found, const at::Tensor& grown) {
    errors.panels.push_back({title, rows_of(found)});
    relative.panels.push_back({title, rows_of(grown)});
    errors.high = std::max(errors.high, largest_of(found));
    relative.high = std::max(relative.high, largest_of(grown));
    LineChart::Series series{title, {}};
    for (int64_t t = 0; t < found.size(0); ++t) series.points.emplace_back(double(t), mean_of(found[t]));
    curves.series.push_back(series);
  }
};

Json summary_at_the_end(const at::Tensor& errors, const at::Tensor& grown) {
  const int64_t last = errors.size(0) - 1;
  Json row = {{"stored", errors[last].isfinite().sum().item<int64_t>()}};
  const double end = mean_of(errors[last]), growth = mean_of(grown[last]);
  if (std::isfinite(end)) row["error"] = end;
  if (std::isfinite(growth)) row["growth"] = growth;
  return row;
}

}  // namespace

Finding analyze_collisions(const Reading& reading, const CollisionOptions& options) {
  const std::vector<Regime> regimes = {
      {"linear state", 0, 0},
      {concat("window of ", options.window), options.window, 0},
      {concat("window of ", options.window, ", cache of ", options.cache), options.window, options.cache}};
  Finding finding;
  finding.json = {{"tokens", reading.names}, {"layers", Json::array()}};
  Json rows = Json::array();
  for (const LayerReading& layer : read_layers(reading)) {
    const StoredPairs pairs = pairs_of(layer.mixer, layer.x);
    LayerPictures pictures(layer.layer, reading.names);
    Json entry = {{"layer", layer.layer}, {"mixer", layer.mixer.name()}, {"heads", Json::array()}};
    for (int64_t head = 0; head < std::min(options.heads, pairs.values.size(1)); ++head) {
      const int64_t key_head = head * pairs.keys.size(1) / pairs.values.size(1);
      for (const Regime& regime : regimes) {
        const at::Tensor errors =
            recall_errors(pairs.keys.select(1, key_head), pairs.values.select(1, head), regime.window, regime.cache);
        const at::Tensor grown = relative_to_the_first(errors);
        pictures.add(concat("head ", head, ", ", regime.name), errors, grown);
        Json row = {{"layer", layer.layer}, {"head", head}, {"memory", regime.name}};
        row.update(summary_at_the_end(errors, grown));
        rows.push_back(row);
        entry["heads"].push_back({{"head", head}, {"memory", regime.name}, {"errors", rows_of(errors)}});
      }
    }
    finding.json["layers"].push_back(entry);
    finding.pictures.emplace_back(concat("collisions-", layer.layer), pictures.errors.svg());
    finding.pictures.emplace_back(concat("collisions-relative-", layer.layer), pictures.relative.svg());
    finding.pictures.emplace_back(concat("collisions-mean-", layer.layer), pictures.curves.svg());
  }
  finding.json["summary"] = rows;
  finding.table = table_of(rows, {{"layer", "/layer"},
                                  {"head", "/head"},
                                  {"memory", "/memory"},
                                  {"pairs in the state", "/stored"},
                                  {"mean error", "/error", decimals(4)},
                                  {"since stored", "/growth", decimals(4)}});
  return finding;
}

}  // namespace cortado
