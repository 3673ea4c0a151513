#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "cortado/analyze/analyze.h"
#include "cortado/analyze/capture.h"
#include "cortado/base/chart.h"
#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/base/words.h"
#include "cortado/mechanisms/shared/heads.h"

namespace cortado {
namespace {

// Two tensors of a computation, the second of which is a weighted sum of the first. Both are [B,T,H,V], each with its
// own number of heads H.
struct ValuePath {
  at::Tensor values, out;
  bool defined() const { return values.defined() && out.defined(); }
};

at::Tensor parameter(const Mixer& mixer, const std::string& name) {
  const auto all = mixer.named_parameters();
  const auto* found = all.find(name);
  return found ? *found : at::Tensor();
}

// Returns the output of projection "v" and the input of projection "o", before the output gate if there is one.
ValuePath between_projections(const Mixer& mixer, const std::vector<OperatorCall>& calls) {
  const at::Tensor v = parameter(mixer, "v.weight"), o = parameter(mixer, "o.weight");
  ValuePath path;
  for (const OperatorCall& call : calls) {
    if (call.name != "aten::linear") continue;
    if (v.defined() && call.takes(v)) path.values = call.outputs[0].toTensor();
    if (o.defined() && call.takes(o)) path.out = call.inputs[0].toTensor();
  }
  const bool gated = parameter(mixer, "gate.weight").defined() && path.out.defined();
  const auto made = std::ranges::find_if(calls, [&](const OperatorCall& call) {
    return gated && call.name == "aten::mul" && call.outputs[0].toTensor().is_same(path.out);
  });
  if (made != calls.end()) path.out = made->inputs[0].toTensor();
  return path;
}

// Returns the argument of that name and the output of the last operator that has such an argument.
ValuePath through(const std::string& argument, const std::vector<OperatorCall>& calls) {
  ValuePath path;
  for (const OperatorCall& call : calls) {
    if (!call.name.starts_with("cortado::") || !call.has(argument) || call.name.ends_with("short_conv")) continue;
    path = {call.tensor(argument), call.outputs[0].toTensor()};
  }
  return path;
}

at::Tensor by_heads(const at::Tensor& x, int64_t heads) {
  return x.dim() == 4 ? x : split_heads(x, x.size(-1) % heads == 0 ? heads : 1);
}

// Returns the number of value heads.
int64_t value_heads(const ValuePath& path, const at::Tensor& out) {
  return path.values.dim() == 4 ? path.values.size(2) : std::max<int64_t>(1, path.values.size(-1) / out.size(3));
}

at::Tensor gradient_of_values(const ValuePath& path, const at::Tensor& out, const at::Tensor& seed, int64_t heads) {
  const auto gradient = torch::autograd::grad({out}, {path.values}, {seed}, /*retain_graph=*/true,
                                              /*create_graph=*/false, /*allow_unused=*/true)[0];
  return gradient.defined() ? by_heads(gradient, heads)[0] : at::Tensor();  // [T, heads of values, V]
}

// Returns d out_t / d values_s averaged over the channels. Takes one backward pass per token t.
at::Tensor mean_derivative(const ValuePath& path, int64_t heads) {
  const at::Tensor out = by_heads(path.out, heads);
  const int64_t tokens = out.size(1), all = out.size(2);
  const at::Tensor weights = at::zeros({all, tokens, tokens}, out.options().requires_grad(false));
  for (int64_t t = 0; t < tokens; ++t) {
    const at::Tensor seed = at::zeros_like(out);
    seed.select(1, t).fill_(1);
    const at::Tensor gradient = gradient_of_values(path, out, seed, value_heads(path, out));
    if (gradient.defined()) weights.select(1, t).copy_(gradient.mean(-1).transpose(0, 1));
  }
  return weights;  // [H, T, T]
}

// Returns d out_t / d values_s for heads whose weights are equal in all of their V channels; the caller must check
// this. Each channel is seeded for another row t, so one backward pass gives V rows for every value head at once.
at::Tensor derivative_by_channels(const ValuePath& path, int64_t heads) {
  const at::Tensor out = by_heads(path.out, heads);
  const int64_t tokens = out.size(1), all = out.size(2), channels = out.size(3), shared = value_heads(path, out);
  if (all % shared != 0) return {};
  const int64_t group = all / shared;  // output heads per value head
  at::Tensor weights = at::zeros({all, tokens, tokens}, out.options().requires_grad(false));
  for (int64_t first = 0; first < tokens * group; first += channels) {
    const at::Tensor seed = at::zeros_like(out);
    const int64_t count = std::min(channels, tokens * group - first);
    // The entries of x [H, T, ...] that channel c gives.
    const auto asked = [&](int64_t c, const at::Tensor& x) {
      return x.slice(0, (first + c) % group, all, group).select(1, (first + c) / group);
    };
    for (int64_t c = 0; c < count; ++c) asked(c, seed[0].select(2, c).transpose(0, 1)).fill_(1);
    const at::Tensor gradient = gradient_of_values(path, out, seed, shared);
    if (!gradient.defined()) continue;
    if (gradient.size(1) != shared || gradient.size(2) != channels) return {};
    for (int64_t c = 0; c < count; ++c) asked(c, weights).copy_(gradient.select(2, c).transpose(0, 1));
  }
  return weights;
}

// Whether the weights reproduce the output if every channel uses them.
bool explains(const ValuePath& path, const at::Tensor& weights, int64_t heads) {
  const at::Tensor out = by_heads(path.out.detach(), heads)[0].transpose(0, 1).to(at::kFloat);  // [H, T, V]
  const int64_t channels = path.values.dim() == 4 ? path.values.size(3) : out.size(2);
  if (path.values.size(-1) % channels != 0) return false;
  at::Tensor values = path.values.dim() == 4 ? path.values : split_heads(path.values, path.values.size(-1) / channels);
  values = values.detach()[0].transpose(0, 1).to(at::kFloat);
  if (weights.size(0) % values.size(0) != 0 || values.size(2) != out.size(2)) return false;
  values = values.repeat_interleave(weights.size(0) / values.size(0), 0);
  const at::Tensor given = at::matmul(weights.to(at::kFloat), values);
  return (given - out).abs().max().item<double>() <= 2e-3 * (1e-6 + out.abs().max().item<double>());
}

struct HeadSummary {
  double last, near, far, distance, entropy;
};

double at_most(const at::Tensor& weights, int64_t last) {
  // The share of |A| at distances below `last`, averaged over the queries.
  const int64_t tokens = weights.size(0);
  const at::Tensor size = weights.abs(), near = size.tril() - size.tril(-last);
  const at::Tensor total = size.tril().sum(1).clamp_min(1e-30);
  return (near.sum(1) / total).narrow(0, 0, tokens).mean().item<double>();
}

HeadSummary summary_of(const at::Tensor& weights) {
  const at::Tensor share = weights.abs().tril() / weights.abs().tril().sum(1, true).clamp_min(1e-30);
  const at::Tensor place = at::arange(weights.size(0), share.options());
  const at::Tensor distance = (place.unsqueeze(1) - place.unsqueeze(0)).clamp_min(0);
  return {at_most(weights, 1), at_most(weights, 16), at_most(weights, 64),
          (share * distance).sum(1).mean().item<double>(),
          -(share * share.clamp_min(1e-30).log()).sum(1).mean().item<double>()};
}

// Returns the share of the weight on each of the mechanism's memories.
Json shares_of(const at::Tensor& weights, const at::Tensor& held, const std::vector<std::string>& memories) {
  Json shares = Json::object();
  const at::Tensor size = weights.abs(), total = size.sum().clamp_min(1e-30);
  for (size_t i = 0; i < memories.size(); ++i) {
    shares[memories[i]] = ((size * (held == int64_t(i))).sum() / total).item<double>();
  }
  return shares;
}

}  // namespace

PairWeights pair_weights(Mixer& mixer, const at::Tensor& x, int64_t heads) {
  for (const auto& part : mixer.children()) {
    fail_input_if(dynamic_cast<const Mixer*>(part.get()) != nullptr, "[analyze] ", mixer.name(),
                  " gives its values no weights of tokens: it adds the outputs of several mixers");
  }
  fail_input_if(
      mixer.name() == "mamba3",
      "[analyze] mamba3 gives its values no weights of tokens: each step of its scan writes the token before");
  const at::AutoGradMode grad(true);
  const at::Tensor input = x.detach().requires_grad_(true);
  const auto calls = captured([&] { mixer.forward(input, Batch{}, nullptr); });
  for (const ValuePath& path : {between_projections(mixer, calls), through("v", calls), through("x", calls)}) {
    if (!path.defined() || !path.values.requires_grad() || path.values.size(1) != x.size(1)) continue;
    const at::Tensor weights = derivative_by_channels(path, heads);
    if (weights.defined() && explains(path, weights, heads)) return {weights, true};
  }
  const ValuePath path = through("b", calls);
  fail_input_if(
      !path.defined() || path.values.dim() != 3 || path.values.is_complex() || path.values.size(1) != x.size(1),
      "[analyze] ", mixer.name(), " gives its values no weights of tokens");
  return {mean_derivative(path, heads), false};
}

Finding analyze_attention(const Reading& reading, int64_t heads) {
  Finding finding;
  finding.json = {{"tokens", reading.names}, {"layers", Json::array()}};
  Json rows = Json::array();
  for (const LayerReading& layer : read_layers(reading)) {
    const PairWeights found = pair_weights(layer.mixer, layer.x, layer.heads);
    const at::Tensor weights = found.weights.to(at::kDouble);
    const auto memories = layer.mixer.memories();
    const at::Tensor held = memories.empty() ? at::Tensor() : layer.mixer.held(layer.x).places;
    HeatMap map{.title = concat("Weights of past tokens, layer ", layer.layer, " (", layer.mixer.name(), ")"),
                .x_label = "past token",
                .y_label = "token",
                .x_names = reading.names,
                .y_names = reading.names};
    HeatMap places = map;
    places.low = -1;
    places.high = std::max<double>(0, double(memories.size()) - 1);
    places.title = concat("Where past tokens are held, layer ", layer.layer, ": ", alternatives(memories));
    Json entry = {{"layer", layer.layer},
                  {"mixer", layer.mixer.name()},
                  {"same_for_channels", found.same_for_channels},
                  {"heads", Json::array()}};
    double highest = 0;
    for (int64_t head = 0; head < weights.size(0); ++head) {
      const HeadSummary s = summary_of(weights[head]);
      Json row = {{"layer", layer.layer}, {"head", head},           {"self", s.last},      {"last_16", s.near},
                  {"last_64", s.far},     {"distance", s.distance}, {"entropy", s.entropy}};
      if (held.defined()) row["memories"] = shares_of(weights[head], held[head], memories);
      rows.push_back(row);
      if (head >= heads) continue;
      const auto matrix = rows_of(weights[head]);
      entry["heads"].push_back({{"head", head}, {"weights", matrix}});
      map.panels.push_back({concat("head ", head), matrix});
      highest = std::max(highest, weights[head].max().item<double>());
      if (held.defined()) places.panels.push_back({concat("head ", head), rows_of(held[head].to(at::kDouble))});
    }
    map.high = highest > 0 ? highest : 1;
    finding.json["layers"].push_back(entry);
    finding.pictures.emplace_back(concat("attention-", layer.layer), map.svg());
    if (held.defined()) finding.pictures.emplace_back(concat("memories-", layer.layer), places.svg());
  }
  finding.json["summary"] = rows;
  std::vector<Column> columns = {{"layer", "/layer"},
                                 {"head", "/head"},
                                 {"itself", "/self", decimals(3)},
                                 {"last 16", "/last_16", decimals(3)},
                                 {"last 64", "/last_64", decimals(3)},
                                 {"distance", "/distance", decimals(1)},
                                 {"entropy, nats", "/entropy", decimals(2)}};
  if (!rows.empty() && rows[0].contains("memories")) {
    for (const auto& entry : rows[0]["memories"].items()) {
      columns.push_back({entry.key(), "/memories/" + entry.key(), decimals(3)});
    }
  }
  finding.table = table_of(rows, columns);
  return finding;
}

}  // namespace cortado
