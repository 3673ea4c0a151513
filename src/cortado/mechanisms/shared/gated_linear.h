// The base of `gla`, `retention` and `lightning`: projections, short convolutions, one gated scan, a norm, an output
// gate. They differ in the decay.
#pragma once

#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/part_scan.h"
#include "cortado/nn/norm/norms.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {

struct GatedLinearSettings {
  int64_t heads;
  int64_t key_dim, value_dim;  // summed over the heads
  int64_t taps = 0;            // of a short convolution with silu on each of q, k and v; 0: none
  std::string feature_map;     // of q and k: "none", "silu", "relu", "elu" (elu + 1)
  bool silu_values = false;
  double scale;            // of q
  bool norm_heads = true;  // RMSNorm per head; false: over all heads together
  double norm_eps = 1e-5;
  bool swish = true;             // output gate silu(W_g x); false: σ(W_g x)
  std::optional<Rotary> rotary;  // rotary positions on q and k

  // Reads {"heads", "key_dim", "value_dim", "taps", "feature_map", "norm_eps"}. Sets the scale to K^-1/2.
  static GatedLinearSettings read(JsonReader& settings, const MixerContext& context, int64_t key_dim, int64_t value_dim,
                                  const std::string& feature_map, double norm_eps = 1e-5) {
    GatedLinearSettings read{};
    read.key_dim = settings.integer("key_dim", 1, 1 << 20, key_dim);
    read.value_dim = settings.integer("value_dim", 1, 1 << 20, value_dim);
    read.heads = read_heads(settings, context, read.key_dim, "key_dim");
    read_heads(settings, context, read.value_dim, "value_dim");
    read.taps = read_taps(settings);
    read.feature_map = settings.choice("feature_map", {"none", "silu", "relu", "elu"}, feature_map);
    read.norm_eps = settings.number("norm_eps", 0.0, 1.0, norm_eps);
    const int64_t head_dim = read.key_dim / read.heads;
    read.scale = 1 / std::sqrt(static_cast<double>(head_dim));
    return read;
  }
};

// y = W_o (norm(scan(q, k, v, decay)) ⊙ gate(W_g x)).
// State: "scan_state" [rows, H, K, V]; with rotary positions "position" [rows]; with convolutions "conv_q", "conv_k",
// "conv_v" [rows, taps-1, width].
class GatedLinearMixer : public Mixer {
 public:
  GatedLinearMixer(std::string name, const GatedLinearSettings& settings, int64_t dim)
      : Mixer(std::move(name)), settings_(settings) {
    const int64_t keys = settings.key_dim, values = settings.value_dim;
    maps_ = {{*this, "q", dim, keys}, {*this, "k", dim, keys}, {*this, "v", dim, values}};
    g_ = register_module("g", std::make_shared<Linear>(dim, values));
    o_ = register_module("o", make_output_linear(values, dim));
    maps_.q.convolve(*this, "conv_q", settings.taps, "conv_q");
    maps_.k.convolve(*this, "conv_k", settings.taps, "conv_k");
    maps_.v.convolve(*this, "conv_v", settings.taps, "conv_v");
    const int64_t together = settings.norm_heads ? values / settings.heads : values;
    norm_ = register_module("norm", std::make_shared<RmsNorm>(together, settings.norm_eps));
  }

  // Runs the scan token by token, as the primitive defines it.
  Tensor reference(const Tensor& x) override {
    const Qkv in = operands(maps_.reference(x), Batch{}.positions(x));
    return output(x, std::get<0>(gated_scan_reference(in.q, in.k, in.v, decay(x), "key", settings_.scale)));
  }

  double flops_per_token(int64_t) const override { return weight_flops() + scan_flops(5); }  // decay, write and read

  Joining joining() const override { return {std::max<int64_t>(1, settings_.taps)}; }

 protected:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    Tensor positions;
    if (settings_.rotary) positions = batch.positions(x, start_of(state, "position"));
    const Qkv in = operands(maps_.forward(x, batch, state), positions);
    return output(x, scan_part({in.q, in.k, in.v, decay(x), settings_.scale}, batch, state));
  }

  void declare(StateLayout& layout) const override {
    const int64_t heads = settings_.heads;
    layout.scan("scan_state", {heads, settings_.key_dim / heads, settings_.value_dim / heads});
    if (settings_.rotary) layout.position();
    maps_.declare(layout);
  }

  // The decay's natural log, <= 0, float32 or float64: [B,T,H,K] or [H].
  virtual Tensor decay(const Tensor& x) const = 0;

  const GatedLinearSettings settings_;

 private:
  static Tensor map_features(const Tensor& x, const std::string& name) {
    if (name == "silu") return at::silu(x);
    if (name == "relu") return at::relu(x);
    return name == "elu" ? at::elu(x) + 1 : x;
  }

  Qkv operands(Qkv in, const Tensor& positions) const {
    for (Tensor* part : {&in.q, &in.k}) *part = map_features(*part, settings_.feature_map);
    if (settings_.silu_values) in.v = at::silu(in.v);
    for (Tensor* part : {&in.q, &in.k, &in.v}) *part = split_heads(*part, settings_.heads);
    rotate_queries_and_keys(in.q, in.k, positions, settings_.rotary);
    return in;
  }

  Tensor output(const Tensor& x, const Tensor& o) const {
    const Tensor normed = settings_.norm_heads ? merge_heads(norm_->forward(o)) : norm_->forward(merge_heads(o));
    const Tensor gate = g_->forward(x);
    return o_->forward(normed * (settings_.swish ? at::silu(gate) : at::sigmoid(gate)));
  }

  ConvolvedQkv maps_;
  std::shared_ptr<Linear> g_, o_;
  std::shared_ptr<RmsNorm> norm_;
};

// The heads' constant decays as a tensor [H], in the type of a scan over x.
inline Tensor constant_decay(const std::vector<double>& logs, const Tensor& x) {
  return at::tensor(logs, at::TensorOptions().dtype(at::kDouble)).to(scan_options(x.options()));
}

}  // namespace cortado
