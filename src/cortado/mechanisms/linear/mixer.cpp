#include "cortado/mechanisms/linear/mixer.h"

#include "cortado/mechanisms/latte/mixer.h"
#include "cortado/mechanisms/linear/op.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/part_scan.h"
#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/nn/autocast.h"
#include "cortado/nn/feature_map.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {
namespace {

// State: "scan_state" [rows, H, F, d] and "normalizer" [rows, H, F]; feature maps given as logits have Latte's state
// instead. With convolutions also "q_tail", "k_tail", "v_tail" [rows, taps - 1, D].
class LinearMixer : public Mixer {
 public:
  // `feature_map` is one of FeatureMap::kinds(); `gate` is the default of the setting "gate".
  LinearMixer(const std::string& name, JsonReader& settings, const MixerContext& context,
              const std::string& feature_map, bool gate)
      : Mixer(name),
        heads_(read_heads(settings, context, context.dim, "dim")),
        head_dim_(context.dim / heads_),
        logits_(FeatureMap::in_logits(feature_map)),
        causal_(context.causal) {
    const int64_t dim = context.dim;
    // The number of rows of the map's matrix, for maps that have one.
    const int64_t features = FeatureMap::sized(feature_map) ? settings.integer("features", 1, 65536, head_dim_) : 0;
    normalize_ = settings.boolean("normalize", true);
    epsilon_ = settings.number("epsilon", 0.0, 1.0, logits_ ? 0.0 : 1e-6);
    const bool gated = settings.boolean("gate", gate), bias = settings.boolean("bias", true);
    const int64_t taps = read_taps(settings);
    check(settings, feature_map);
    maps_.q = ConvolvedLinear::beside(*this, "q", dim, dim, taps, bias);
    maps_.k = ConvolvedLinear::beside(*this, "k", dim, dim, taps, bias);
    maps_.v = ConvolvedLinear::beside(*this, "v", dim, dim, taps, bias);
    if (gated) g_ = register_module("g", std::make_shared<Linear>(dim, dim, bias));
    o_ = register_module("o", make_output_linear(dim, dim, bias));
    const auto make_map = [&] { return std::make_shared<FeatureMap>(feature_map, heads_, head_dim_, features); };
    if (FeatureMap::learned(feature_map)) {
      q_map_ = register_module("q_map", make_map());
      k_map_ = register_module("k_map", make_map());
    } else {  // random features estimate q·k only if q and k share them
      q_map_ = k_map_ = register_module("map", make_map());
    }
  }

  Tensor reference(const Tensor& x) override {
    const auto [q, k, v] = operands(maps_.reference(x));
    if (logits_) return output(x, exponential_reference(q, k, v, causal_));
    return output(x, linear_reference(q, k, v, causal_, epsilon_, normalize_));
  }

  Joining joining() const override { return {std::max<int64_t>(1, maps_.q.taps())}; }

  double flops_per_token(int64_t) const override {
    // Random features are one map, which is applied to the queries and to the keys.
    const double again = q_map_ == k_map_ ? q_map_->flops_per_token() : 0.0;
    return weight_flops() + again + 4.0 * static_cast<double>(heads_ * q_map_->size() * (head_dim_ + 1));
  }

 private:
  void check(const JsonReader& settings, const std::string& feature_map) const {
    if (!causal_ && !normalize_) settings.fail("normalize false has no bidirectional form");
    settings.fail_if(logits_ && !normalize_, "feature_map \"", feature_map,
                     "\" has no bound, so it needs normalize true");
    settings.fail_if(logits_ && epsilon_ != 0, "epsilon (", epsilon_, ") must be 0 with feature_map \"", feature_map,
                     "\": its sums are kept relative to their largest term");
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const auto [q, k, v] = operands(maps_.forward(x, batch, state));
    return output(x, logits_ ? mix_logits(q, k, v, batch, state) : mix(q, k, v, batch, state));
  }

  void declare(StateLayout& layout) const override {
    const int64_t features = q_map_->size();
    if (logits_) {
      declare_latte(layout, heads_, features, head_dim_);
    } else {
      layout.scan("scan_state", {heads_, features, head_dim_});
      if (normalize_) layout.scan("normalizer", {heads_, features});
    }
    maps_.declare(layout);
  }

  // Splits into heads and maps q and k to features.
  Qkv operands(const Qkv& in) const {
    return {for_products(q_map_->forward(split_heads(in.q, heads_), true)),
            for_products(k_map_->forward(split_heads(in.k, heads_), false)), split_heads(in.v, heads_)};
  }

  // φ = exp(logits), by Latte's scan, which no logit can overflow.
  Tensor mix_logits(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch, SequenceState* state) const {
    const LatteResult result =
        exponential_attention(q, k, v, causal_, latte_start(state, k, v, batch), batch.cu_seqlens);
    keep_latte(state, result);
    return result.o;
  }

  Tensor mix(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch, SequenceState* state) const {
    if (!normalize_) return scan_part({.q = q, .k = k, .v = v, .scale = 1.0}, batch, state);
    OptionalTensor scan = start_of(state, "scan_state"), normalizer = start_of(state, "normalizer");
    if (batch.parts) {  // both come from one sum; the normaliser's values are ones
      const Tensor start = at::cat({*scan, normalizer->unsqueeze(3)}, 3);
      const Tensor sums = state_before_part(k, with_ones(v, start.scalar_type()), {}, start, *batch.parts);
      scan = sums.narrow(3, 0, head_dim_);
      normalizer = sums.select(3, head_dim_);
    }
    const LinearResult result = normalized_linear(q, k, v, causal_, epsilon_, scan, normalizer, batch.cu_seqlens);
    keep(state, {{"scan_state", result.state}, {"normalizer", result.normalizer}});
    return result.o;
  }

  Tensor output(const Tensor& x, const Tensor& mixed) const {
    Tensor y = merge_heads(mixed);
    if (g_) y = y * at::sigmoid(g_->forward(x));
    return o_->forward(y);
  }

  int64_t heads_, head_dim_;
  bool logits_;  // the map returns log φ
  bool causal_;
  bool normalize_;  // divide by φ(q)·z
  double epsilon_;  // added to the denominator
  ConvolvedQkv maps_;
  std::shared_ptr<FeatureMap> q_map_, k_map_;  // one object if nothing is learned
  std::shared_ptr<Linear> g_, o_;              // g_: output gate σ(W_g x), if any
};

// What `cortado bench ops` measures.
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

std::shared_ptr<Mixer> make_linear(const std::string& name, JsonReader& settings, const MixerContext& context,
                                   const std::string& feature_map, bool gate) {
  return std::make_shared<LinearMixer>(name, settings, context, feature_map, gate);
}

extern const Mechanism kLinear = {
    .name = "linear",
    .family = "linear attention",
    .paper = "linear-attention chapter; Latte-Macchiato eq. 4-5",
    .equation = "o_t = S_t' phi(q_t) / (phi(q_t).z_t), S_t = sum phi(k_s) v_s'",
    .state = "H F (d + 1)",
    .primitives = {"gated_scan", "time_softmax", "running_max", "short_conv"},
    .bidirectional = true,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          const std::string map = settings.choice("feature_map", FeatureMap::kinds(), "elu");
          return make_linear("linear", settings, context, map, /*gate=*/true);
        },
    .orderless = true,
    .operation = linear_case,
};

}  // namespace cortado
