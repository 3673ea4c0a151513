#include "cortado/mechanisms/shared/gated_linear.h"

#include "cortado/nn/rotary.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {
namespace {

Tensor map_features(const Tensor& x, const std::string& name) {
  if (name == "silu") return at::silu(x);
  if (name == "relu") return at::relu(x);
  return name == "elu" ? at::elu(x) + 1 : x;
}

}  // namespace

GatedLinearSettings GatedLinearSettings::read(JsonReader& settings, const MixerContext& context, int64_t key_dim,
                                              int64_t value_dim, const std::string& feature_map) {
  GatedLinearSettings read{};
  read.key_dim = settings.integer("key_dim", 1, 1 << 20, key_dim);
  read.value_dim = settings.integer("value_dim", 1, 1 << 20, value_dim);
  read.heads = read_heads(settings, context, read.key_dim, "key_dim");
  read_heads(settings, context, read.value_dim, "value_dim");
  read.taps = read_taps(settings);
  read.feature_map = settings.choice("feature_map", {"none", "silu", "relu", "elu"}, feature_map);
  read.scale = 1 / std::sqrt(static_cast<double>(read.key_dim / read.heads));
  return read;
}

GatedLinearMixer::GatedLinearMixer(std::string name, const GatedLinearSettings& settings, int64_t dim)
    : Mixer(std::move(name)), settings_(settings) {
  const int64_t keys = settings.key_dim, values = settings.value_dim;
  q_ = ConvolvedLinear(*this, "q", dim, keys);
  k_ = ConvolvedLinear(*this, "k", dim, keys);
  v_ = ConvolvedLinear(*this, "v", dim, values);
  g_ = register_module("g", std::make_shared<Linear>(dim, values));
  o_ = register_module("o", make_output_linear(values, dim));
  q_.convolve(*this, "conv_q", settings.taps, "conv_q");
  k_.convolve(*this, "conv_k", settings.taps, "conv_k");
  v_.convolve(*this, "conv_v", settings.taps, "conv_v");
  const int64_t together = settings.norm_heads ? values / settings.heads : values;
  norm_ = register_module("norm", std::make_shared<RmsNorm>(together, settings.norm_eps));
}

template <typename Project>
GatedLinearMixer::Operands GatedLinearMixer::operands(const Tensor& positions, const Project& project) const {
  const auto part = [&](const ConvolvedLinear& map, const std::string& function) {
    return split_heads(map_features(project(map), function), settings_.heads);
  };
  Operands in{part(q_, settings_.feature_map), part(k_, settings_.feature_map),
              part(v_, settings_.silu_values ? "silu" : "none")};
  rotate_queries_and_keys(in.q, in.k, positions, settings_.rotary);
  return in;
}

Tensor GatedLinearMixer::output(const Tensor& x, const Tensor& o) const {
  const Tensor normed = settings_.norm_heads ? merge_heads(norm_->forward(o)) : norm_->forward(merge_heads(o));
  const Tensor gate = g_->forward(x);
  return o_->forward(normed * (settings_.swish ? at::silu(gate) : at::sigmoid(gate)));
}

Tensor GatedLinearMixer::mix(const Tensor& x, const Batch& batch, SequenceState* state) {
  Tensor positions;
  if (settings_.rotary) positions = batch.positions(x, start_of(state, "position"));
  const auto in = operands(positions, [&](const ConvolvedLinear& map) { return map.forward(x, batch, state); });
  auto [o, last] = gated_scan(in.q, in.k, in.v, decay(x), "key", settings_.scale, {}, start_of(state, "scan_state"),
                              batch.cu_seqlens);
  keep(state, {{"scan_state", last}});
  return output(x, o);
}

// The scan token by token, as its primitive defines it.
Tensor GatedLinearMixer::reference(const Tensor& x) {
  const auto in = operands(Batch{}.positions(x), [&](const ConvolvedLinear& map) { return map.reference(x); });
  return output(x, std::get<0>(gated_scan_reference(in.q, in.k, in.v, decay(x), "key", settings_.scale)));
}

StateLayout GatedLinearMixer::state_layout() const {
  StateLayout layout;
  const int64_t heads = settings_.heads;
  layout.scan("scan_state", {heads, settings_.key_dim / heads, settings_.value_dim / heads});
  if (settings_.rotary) layout.position();
  for (const auto* part : {&q_, &k_, &v_}) part->declare(layout);
  return layout;
}

double GatedLinearMixer::flops_per_token(int64_t) const {
  return weight_flops() + scan_flops(5);  // decay, write and read
}

Tensor constant_decay(const std::vector<double>& logs, const Tensor& x) {
  return at::tensor(logs, at::TensorOptions().dtype(at::kDouble)).to(scan_options(x.options()));
}

}  // namespace cortado
