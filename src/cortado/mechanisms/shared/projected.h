// The base of mixers with one query, key and value per token: projections, grouped heads, rotary positions.
#pragma once

#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/linear/op.h"
#include "cortado/nn/norm/norms.h"

namespace cortado {

// A factor of queries that grows with their position t: 1 + scale · ln(1 + ⌊(t + 1) / period⌋), as in Llama 4.
struct QueryTemperature {
  int64_t period;
  double scale;

  // q [B,T,H,d] times the factors of `positions`, int64 [B|1,T].
  Tensor times(const Tensor& q, const Tensor& positions) const {
    const Tensor wide = widen(q);
    const Tensor factors = (positions + 1).div(period, "floor").to(wide.scalar_type()).log1p() * scale + 1;
    return (wide * factors.unsqueeze(-1).unsqueeze(-1)).to(q.scalar_type());
  }
};

struct ProjectionSettings {
  int64_t heads, kv_heads, head_dim;
  std::optional<Rotary> rotary;        // nullopt: no rotary positions
  bool bias = false;                   // of q, k and v
  bool output_bias = false;            // of o
  std::optional<double> qk_norm = {};  // epsilon of an RMSNorm over each head of q and k; nullopt: no norms
  bool joint_qk_norm = false;          // these norms are over all heads together
  bool output_gate = false;            // multiplies each head's output by σ(W_g x) before o
  int64_t taps = 0;                    // of a short convolution after each of q, k and v; 0: none
  bool taps_identity = false;          // the convolution starts as the identity
  std::optional<QueryTemperature> temperature = {};
  int64_t output_dim = 0;  // channels of o's output; 0: as many as x has

  // Reads {"heads", "kv_heads", "head_dim", "bias", "output_bias", "qk_norm", "qk_norm_type", "norm_eps",
  // "output_gate"}, the last four named as in Qwen3-Next and MiniMax-M2, and the rotary settings.
  static ProjectionSettings read(JsonReader& settings, const MixerContext& context) {
    ProjectionSettings read = read_without_rotary(settings, context);
    read.rotary = read_rotary(settings, context, read.head_dim, context.rotary);
    return read;
  }
  static ProjectionSettings read_without_rotary(JsonReader& settings, const MixerContext& context) {
    ProjectionSettings read{};
    read.heads = settings.integer("heads", 1, 65536, context.heads);
    read.kv_heads = settings.integer("kv_heads", 1, 65536, read.heads);
    settings.fail_if(read.heads % read.kv_heads != 0, "heads (", read.heads, ") is not a multiple of kv_heads (",
                     read.kv_heads, ")");
    settings.fail_if(!settings.has("head_dim") && context.dim % read.heads != 0, "dim (", context.dim,
                     ") is not divisible by heads (", read.heads, ")");
    read.head_dim = settings.integer("head_dim", 1, 65536, std::max<int64_t>(1, context.dim / read.heads));
    read.bias = settings.boolean("bias", false);
    read.output_bias = settings.boolean("output_bias", read.bias);
    if (settings.boolean("qk_norm", false)) {
      read.joint_qk_norm = settings.choice("qk_norm_type", {"per_head", "per_layer"}, "per_head") == "per_layer";
      read.qk_norm = settings.number("norm_eps", 0.0, 1.0, 1e-6);
    }
    read.output_gate = settings.boolean("output_gate", false);
    return read;
  }

  // Reads {"taps", "taps_start"}.
  void read_convolutions(JsonReader& settings) {
    taps = read_taps(settings);
    taps_identity = read_taps_identity(settings);
  }

  // Reads {"temperature_period", "temperature_scale"}.
  void read_temperature(JsonReader& settings) {
    const int64_t period = settings.integer("temperature_period", 0, int64_t{1} << 40, 0);
    const double scale = settings.number("temperature_scale", 0.0, 1e3, 0.1);
    settings.fail_if(period == 0 && settings.has("temperature_scale"),
                     "unknown key \"temperature_scale\": it goes with \"temperature_period\"");
    if (period > 0) temperature = {period, scale};
  }

  int64_t width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

// RMSNorms "q_norm" and "k_norm" over each head of queries and keys, or over all heads together, if the settings want
// them.
class QkNorms {
 public:
  QkNorms(Module& layer, const ProjectionSettings& settings) : joint_(settings.joint_qk_norm) {
    if (!settings.qk_norm) return;
    const auto norm = [&](const char* name, int64_t width) {
      return layer.register_module(name,
                                   std::make_shared<RmsNorm>(joint_ ? width : settings.head_dim, *settings.qk_norm));
    };
    q_ = norm("q_norm", settings.width());
    k_ = norm("k_norm", settings.kv_width());
  }

  // Normalizes q [B,T,H,d] and k [B,T,Hkv,d] in place.
  void normalize(Tensor& q, Tensor& k) const {
    if (!q_) return;
    q = normalized(*q_, q);
    k = normalized(*k_, k);
  }

 private:
  Tensor normalized(const RmsNorm& norm, const Tensor& x) const {
    return joint_ ? split_heads(norm.forward(merge_heads(x)), x.size(2)) : norm.forward(x);
  }

  bool joint_;
  std::shared_ptr<RmsNorm> q_, k_;
};

// The output projection "o", after the output gate "gate" if the settings want one.
class OutputProjection {
 public:
  OutputProjection(Module& layer, const ProjectionSettings& settings, int64_t dim)
      : o_(layer.register_module(
            "o", make_output_linear(settings.width(), settings.output_dim > 0 ? settings.output_dim : dim,
                                    settings.output_bias))) {
    if (settings.output_gate) gate_ = layer.register_module("gate", std::make_shared<Linear>(dim, settings.width()));
  }

  // mixed [B,T,H,d] and the layer's input x [B,T,D] -> [B,T,D].
  Tensor forward(const Tensor& mixed, const Tensor& x) const {
    const Tensor merged = merge_heads(mixed);
    return o_->forward(gate_ ? merged * at::sigmoid(gate_->forward(x)) : merged);
  }

 private:
  std::shared_ptr<Linear> o_, gate_;
};

// Query head i uses key head i·Hkv/H (rounded down).
class ProjectedMixer : public Mixer {
 protected:
  ProjectedMixer(std::string name, const ProjectionSettings& settings, int64_t dim)
      : Mixer(std::move(name)),
        projections_(settings),
        maps_(make_maps(settings, dim)),
        o_(*this, settings, dim),
        norms_(*this, settings) {}

  struct Projected {
    Tensor q, k, v;  // [B,T,H,d], [B,T,Hkv,d], [B,T,Hkv,d]; q and k rotated
  };
  // Projects x, continuing from the state's "position" and convolution tails.
  Projected project(const Tensor& x, const Batch& batch, SequenceState* state) const {
    return in_heads(maps_.forward(x, batch, state), batch.positions(x, start_of(state, "position")));
  }
  // The definition: dense, from the zero state.
  Projected project_reference(const Tensor& x) const { return in_heads(maps_.reference(x), Batch{}.positions(x)); }
  // Projects by other maps of the same sizes.
  Projected project(const Tensor& x, const Tensor& positions, const Linear& q, const Linear& k, const Linear& v) const {
    const auto all = forward_all(x, {&q, &k, &v});
    return in_heads({all[0], all[1], all[2]}, positions);
  }
  Tensor output(const Tensor& mixed, const Tensor& x) const { return o_.forward(mixed, x); }

  // The shape of one token's keys or values, [Hkv, d].
  std::vector<int64_t> pair_shape() const { return {projections_.kv_heads, projections_.head_dim}; }
  // Adds the convolutions' tails "q_conv", "k_conv" and "v_conv" to the state.
  void declare_tails(StateLayout& layout) const { maps_.declare(layout); }
  // Adds the rings "keys" and "values" to the state.
  void declare_ring(StateLayout& layout, const StateLayout::Places& places) const {
    for (const char* name : {"keys", "values"}) layout.ring(name, pair_shape(), places);
  }

  const ProjectionSettings projections_;

 private:
  ConvolvedQkv make_maps(const ProjectionSettings& settings, int64_t dim) {
    const auto map = [&](const std::string& name, int64_t width) {
      return ConvolvedLinear::within(*this, name, dim, width, settings.taps, "none", settings.bias);
    };
    ConvolvedQkv maps{map("q", settings.width()), map("k", settings.kv_width()), map("v", settings.kv_width())};
    if (settings.taps_identity) maps.start_as_identity();
    return maps;
  }
  Projected in_heads(const Qkv& mapped, const Tensor& positions) const {
    Projected p{split_heads(mapped.q, projections_.heads), split_heads(mapped.k, projections_.kv_heads),
                split_heads(mapped.v, projections_.kv_heads)};
    norms_.normalize(p.q, p.k);
    rotate_queries_and_keys(p.q, p.k, positions, projections_.rotary);
    if (projections_.temperature) p.q = projections_.temperature->times(p.q, positions);
    return p;
  }

  ConvolvedQkv maps_;
  OutputProjection o_;
  QkNorms norms_;
};

}  // namespace cortado
