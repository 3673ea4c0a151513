#include "cortado/mechanisms/gated_linear.h"

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
  q_ = register_module("q", std::make_shared<Linear>(dim, keys));
  k_ = register_module("k", std::make_shared<Linear>(dim, keys));
  v_ = register_module("v", std::make_shared<Linear>(dim, values));
  g_ = register_module("g", std::make_shared<Linear>(dim, values));
  o_ = register_module("o", make_output_linear(values, dim));
  if (settings.conv) {
    conv_q_ = register_module("conv_q", std::make_shared<ShortConvolution>(keys, *settings.conv));
    conv_k_ = register_module("conv_k", std::make_shared<ShortConvolution>(keys, *settings.conv));
    conv_v_ = register_module("conv_v", std::make_shared<ShortConvolution>(values, *settings.conv));
  }
  const int64_t together = settings.norm_heads ? values / settings.heads : values;
  norm_ = register_module("norm", std::make_shared<RmsNorm>(together, settings.norm_eps));
}

template <typename Convolve>
GatedLinearMixer::Operands GatedLinearMixer::operands(const Tensor& x, const Tensor& positions,
                                                      const Convolve& convolve) const {
  Tensor q = q_->forward(x), k = k_->forward(x), v = v_->forward(x);
  if (settings_.conv) {
    q = convolve(*conv_q_, q, "conv_q");
    k = convolve(*conv_k_, k, "conv_k");
    v = convolve(*conv_v_, v, "conv_v");
  }
  if (settings_.silu_values) v = at::silu(v);
  q = split_heads(map_features(q, settings_.feature_map), settings_.heads);
  k = split_heads(map_features(k, settings_.feature_map), settings_.heads);
  if (settings_.rope_theta) {
    const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const RotaryTable table = rotary_table(positions, q.size(-1), *settings_.rope_theta, type);
    q = rotate(q, table);
    k = rotate(k, table);
  }
  return {q, k, split_heads(v, settings_.heads)};
}

Tensor GatedLinearMixer::output(const Tensor& x, const Tensor& o) const {
  const Tensor normed = settings_.norm_heads ? merge_heads(norm_->forward(o)) : norm_->forward(merge_heads(o));
  const Tensor gate = g_->forward(x);
  return o_->forward(normed * (settings_.swish ? at::silu(gate) : at::sigmoid(gate)));
}

Tensor GatedLinearMixer::forward(const Tensor& x, const Batch& batch, SequenceState* state) {
  std::optional<Tensor> start, position;
  if (state) start = state->at("scan_state");
  if (state && settings_.rope_theta) position = state->at("position");
  const auto in = operands(x, settings_.rope_theta ? batch.positions(x, position) : Tensor(),
                           [&](const ShortConvolution& convolution, const Tensor& y, const char* name) {
                             return convolution.forward(y, batch, state, name);
                           });
  auto [o, last] = gated_scan(in.q, in.k, in.v, decay(x), "key", settings_.scale, {}, start, batch.cu_seqlens);
  if (state) state->at("scan_state") = last;
  if (position) state->at("position") = *position + batch.lengths(x);
  return output(x, o);
}

// The scan token by token, as its primitive defines it.
Tensor GatedLinearMixer::reference(const Tensor& x) {
  const auto in = operands(
      x, Batch{}.positions(x),
      [](const ShortConvolution& convolution, const Tensor& y, const char*) { return convolution.reference(y); });
  return output(x, std::get<0>(gated_scan_reference(in.q, in.k, in.v, decay(x), "key", settings_.scale)));
}

SequenceState GatedLinearMixer::zero_state(int64_t rows, const at::TensorOptions& options) const {
  SequenceState state(name());
  const int64_t heads = settings_.heads;
  state.add("scan_state",
            at::zeros({rows, heads, settings_.key_dim / heads, settings_.value_dim / heads}, scan_options(options)));
  if (settings_.rope_theta) state.add("position", at::zeros({rows}, position_options(options)));
  if (settings_.conv) {
    conv_q_->add_state(state, "conv_q", rows, options);
    conv_k_->add_state(state, "conv_k", rows, options);
    conv_v_->add_state(state, "conv_v", rows, options);
  }
  return state;
}

int64_t GatedLinearMixer::state_bytes(int64_t) const {
  int64_t bytes = settings_.key_dim * settings_.value_dim / settings_.heads * 4;
  if (settings_.rope_theta) bytes += 8;
  if (settings_.conv) bytes += conv_q_->state_bytes() + conv_k_->state_bytes() + conv_v_->state_bytes();
  return bytes;
}

double GatedLinearMixer::flops_per_token(int64_t) const {
  // decay, write and read: five operations for each number of the state
  double flops = linear_flops({q_.get(), k_.get(), v_.get(), g_.get(), o_.get()}) + decay_flops() +
                 5.0 * static_cast<double>(settings_.key_dim * settings_.value_dim / settings_.heads);
  if (settings_.conv) {
    flops += conv_q_->flops_per_token() + conv_k_->flops_per_token() + conv_v_->flops_per_token();
  }
  return flops;
}

Tensor constant_decay(const std::vector<double>& logs, const Tensor& x) {
  return at::tensor(logs, at::TensorOptions().dtype(at::kDouble)).to(scan_options(x.options()));
}

}  // namespace cortado
