#include "cortado/mechanisms/linear/mixer.h"

#include "cortado/mechanisms/latte/mixer.h"
#include "cortado/mechanisms/linear/op.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {

LinearSettings LinearSettings::read(JsonReader& settings, const MixerContext& context, const std::string& feature_map,
                                    bool gate) {
  LinearSettings read{};
  read.heads = read_heads(settings, context, context.dim, "dim");
  read.feature_map = feature_map;
  const int64_t head_dim = context.dim / read.heads;
  if (FeatureMap::sized(feature_map)) read.features = settings.integer("features", 1, 65536, head_dim);
  const bool logits = FeatureMap::in_logits(feature_map);
  read.normalize = settings.boolean("normalize", true);
  read.epsilon = settings.number("epsilon", 0.0, 1.0, logits ? 0.0 : 1e-6);
  read.gate = settings.boolean("gate", gate);
  read.bias = settings.boolean("bias", true);
  read.taps = read_taps(settings);
  read.causal = context.causal;
  if (!read.causal && !read.normalize) settings.fail("normalize false has no bidirectional form");
  if (logits && !read.normalize) {
    settings.fail(concat("feature_map \"", feature_map, "\" has no bound, so it needs normalize true"));
  }
  if (logits && read.epsilon != 0) {
    settings.fail(concat("epsilon (", read.epsilon, ") must be 0 with feature_map \"", feature_map,
                         "\": its sums are kept relative to their largest term"));
  }
  return read;
}

LinearMixer::LinearMixer(std::string name, const LinearSettings& settings, int64_t dim)
    : Mixer(std::move(name)),
      settings_(settings),
      head_dim_(dim / settings.heads),
      logits_(FeatureMap::in_logits(settings.feature_map)) {
  const auto branch = [&](const std::string& name) {
    ConvolvedLinear made(*this, name, dim, dim, settings.bias);
    made.convolve(*this, name + "_conv", settings.taps, name + "_tail");
    return made;
  };
  q_ = branch("q");
  k_ = branch("k");
  v_ = branch("v");
  if (settings.gate) g_ = register_module("g", std::make_shared<Linear>(dim, dim, settings.bias));
  o_ = register_module("o", make_output_linear(dim, dim, settings.bias));
  auto make_map = [&] {
    return std::make_shared<FeatureMap>(settings.feature_map, settings.heads, head_dim_, settings.features);
  };
  if (FeatureMap::learned(settings.feature_map)) {
    q_map_ = register_module("q_map", make_map());
    k_map_ = register_module("k_map", make_map());
  } else {  // random features estimate q·k only if q and k have the same ones
    q_map_ = k_map_ = register_module("map", make_map());
  }
}

template <typename Project>
LinearMixer::Operands LinearMixer::operands(const Project& project) const {
  return {q_map_->forward(split_heads(project(q_), settings_.heads), true),
          k_map_->forward(split_heads(project(k_), settings_.heads), false), split_heads(project(v_), settings_.heads)};
}

Tensor LinearMixer::output(const Tensor& x, const Tensor& mixed) const {
  Tensor y = merge_heads(mixed);
  if (g_) y = y * at::sigmoid(g_->forward(x));
  return o_->forward(y);
}

// φ = exp(logits): Latte's scan, so that no logit is too large.
Tensor LinearMixer::mix_logits(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch,
                               SequenceState* state) const {
  const LatteResult result = exponential_attention(q, k, v, settings_.causal, latte_start(state), batch.cu_seqlens);
  keep_latte(state, result);
  return result.o;
}

Tensor LinearMixer::mix(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch,
                        SequenceState* state) const {
  const std::optional<Tensor> scan = start_of(state, "scan_state");
  if (!settings_.normalize) {
    auto [o, last] = gated_scan(q, k, v, {}, "key", 1.0, {}, scan, batch.cu_seqlens);
    keep(state, {{"scan_state", last}});
    return o;
  }
  const LinearResult result = normalized_linear(q, k, v, settings_.causal, settings_.epsilon, scan,
                                                start_of(state, "normalizer"), batch.cu_seqlens);
  keep(state, {{"scan_state", result.state}, {"normalizer", result.normalizer}});
  return result.o;
}

Tensor LinearMixer::mix(const Tensor& x, const Batch& batch, SequenceState* state) {
  const auto [q, k, v] = operands([&](const ConvolvedLinear& map) { return map.forward(x, batch, state); });
  return output(x, logits_ ? mix_logits(q, k, v, batch, state) : mix(q, k, v, batch, state));
}

Tensor LinearMixer::reference(const Tensor& x) {
  const auto [q, k, v] = operands([&](const ConvolvedLinear& map) { return map.reference(x); });
  if (logits_) return output(x, exponential_reference(q, k, v, settings_.causal));
  return output(x, linear_reference(q, k, v, settings_.causal, settings_.epsilon, settings_.normalize));
}

StateLayout LinearMixer::state_layout() const {
  StateLayout layout;
  const int64_t heads = settings_.heads, features = q_map_->size();
  if (logits_) {
    declare_latte(layout, heads, features, head_dim_);
  } else {
    layout.scan("scan_state", {heads, features, head_dim_});
    if (settings_.normalize) layout.scan("normalizer", {heads, features});
  }
  for (const auto* part : {&q_, &k_, &v_}) part->declare(layout);
  return layout;
}

double LinearMixer::flops_per_token(int64_t) const {
  // Random features are the same map for queries and keys, and made twice.
  const double again = q_map_ == k_map_ ? q_map_->flops_per_token() : 0.0;
  return weight_flops() + again + 4.0 * static_cast<double>(settings_.heads * q_map_->size() * (head_dim_ + 1));
}

namespace {

// What is measured of the operator.
OperatorCase linear_case() {
  OperatorCase c{.name = "normalized_linear", .operation = "normalized_linear", .note = "queries and keys positive"};
  c.inputs = [](const OperatorSizes& s) { return Tensors{positive(s), positive(s), heads_of(s, s.size)}; };
  c.call = [](const Tensors& in, const Tensors& carried) {
    return normalized_linear(in[0], in[1], in[2], true, 0, part(carried, 0), part(carried, 1)).tensors();
  };
  c.reference = [](const Tensors& in) { return Tensors{linear_reference(in[0], in[1], in[2], true, 0)}; };
  c.work = [](const OperatorSizes& s) { return Work{4 * state_elements(s) + 4 * channels(s), 0}; };
  return c;
}

}  // namespace

extern const Mechanism kLinear = {
    .name = "linear",
    .family = "linear attention",
    .paper = "linear-attention chapter; Latte-Macchiato eq. 4-5",
    .equation = "o_t = S_t' phi(q_t) / (phi(q_t).z_t), S_t = sum phi(k_s) v_s'",
    .state = "H F (D/H + 1)",
    .primitives = {"gated_scan", "time_softmax", "running_max", "short_conv"},
    .bidirectional = true,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          const std::string map = settings.choice("feature_map", FeatureMap::kinds(), "elu");
          return std::make_shared<LinearMixer>("linear", LinearSettings::read(settings, context, map, true),
                                               context.dim);
        },
    .orderless = true,
    .operation = linear_case,
};

}  // namespace cortado
