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
  read.conv = read_taps(settings, std::nullopt);
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
  const int64_t taps = settings.conv.value_or(0);
  q_.convolve(*this, "conv_q", taps, "conv_q");
  k_.convolve(*this, "conv_k", taps, "conv_k");
  v_.convolve(*this, "conv_v", taps, "conv_v");
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

Tensor GatedLinearMixer::forward(const Tensor& x, const Batch& batch, SequenceState* state) {
  std::optional<Tensor> position;
  Tensor positions;
  if (settings_.rotary) {
    position = start_of(state, "position");
    positions = batch.positions(x, position);
  }
  const auto in = operands(positions, [&](const ConvolvedLinear& map) { return map.forward(x, batch, state); });
  auto [o, last] = gated_scan(in.q, in.k, in.v, decay(x), "key", settings_.scale, {}, start_of(state, "scan_state"),
                              batch.cu_seqlens);
  if (state) state->at("scan_state") = last;
  if (position) state->at("position") = *position + batch.lengths(x);
  return output(x, o);
}

// The scan token by token, as its primitive defines it.
Tensor GatedLinearMixer::reference(const Tensor& x) {
  const auto in = operands(Batch{}.positions(x), [&](const ConvolvedLinear& map) { return map.reference(x); });
  return output(x, std::get<0>(gated_scan_reference(in.q, in.k, in.v, decay(x), "key", settings_.scale)));
}

SequenceState GatedLinearMixer::zero_state(int64_t rows, const at::TensorOptions& options) const {
  SequenceState state(name());
  const int64_t heads = settings_.heads;
  state.add("scan_state",
            at::zeros({rows, heads, settings_.key_dim / heads, settings_.value_dim / heads}, scan_options(options)));
  if (settings_.rotary) state.add("position", at::zeros({rows}, position_options(options)));
  for (const auto* part : {&q_, &k_, &v_}) part->add_state(state, rows, options);
  return state;
}

int64_t GatedLinearMixer::state_bytes(int64_t) const {
  int64_t bytes = settings_.key_dim * settings_.value_dim / settings_.heads * 4;
  if (settings_.rotary) bytes += 8;
  for (const auto* part : {&q_, &k_, &v_}) bytes += part->state_bytes();
  return bytes;
}

double GatedLinearMixer::flops_per_token(int64_t) const {
  // decay, write and read: five operations for each number of the state
  double flops = linear_flops({g_.get(), o_.get()}) + decay_flops() +
                 5.0 * static_cast<double>(settings_.key_dim * settings_.value_dim / settings_.heads);
  for (const auto* part : {&q_, &k_, &v_}) flops += part->flops_per_token();
  return flops;
}

Tensor constant_decay(const std::vector<double>& logs, const Tensor& x) {
  return at::tensor(logs, at::TensorOptions().dtype(at::kDouble)).to(scan_options(x.options()));
}

}  // namespace cortado
