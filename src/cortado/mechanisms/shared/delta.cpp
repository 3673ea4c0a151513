#include "cortado/mechanisms/shared/delta.h"

#include "cortado/primitives/delta_scan/op.h"

namespace cortado {
namespace {

// x·rsqrt(Σx² + 1e-6), in float32 at least.
Tensor l2_normalized(const Tensor& x) {
  const Tensor wide = widen(x);
  return wide * (wide.square().sum(-1, true) + 1e-6).rsqrt();
}

}  // namespace

DeltaSettings read_delta_settings(JsonReader& settings, const MixerContext& context, double key_share,
                                  int64_t value_share, const std::string& output_gate) {
  constexpr int64_t kMost = 65536;
  DeltaSettings read{};
  read.heads = settings.integer("heads", 1, kMost, context.heads);
  read.key_heads = settings.integer("key_heads", 1, kMost, read.heads);
  if (read.heads % read.key_heads != 0) {
    settings.fail(concat("heads (", read.heads, ") is not divisible by key_heads (", read.key_heads, ")"));
  }
  const auto share =
      static_cast<int64_t>(key_share * static_cast<double>(context.dim) / static_cast<double>(read.heads));
  if (!settings.has("head_dim") && share < 1) {
    settings.fail(concat("heads (", read.heads, ") are too many for a width of ", context.dim, "; give head_dim"));
  }
  read.head_dim = settings.integer("head_dim", 1, kMost, share);
  read.value_head_dim = settings.integer("value_head_dim", 1, kMost, value_share * read.head_dim);
  read.taps = read_taps(settings, 4);
  read.reflect = settings.boolean("reflect", false);
  settings.renamed("epsilon", "norm_eps");
  read.norm_eps = settings.number("norm_eps", 0.0, 1.0, 1e-5);
  read.output_gate = settings.choice("output_gate", {"none", "silu", "sigmoid"}, output_gate);
  return read;
}

DeltaMixer::DeltaMixer(const std::string& name, const DeltaSettings& settings, int64_t dim)
    : Mixer(name), settings_(settings) {
  const auto branch = [&](const std::string& name, int64_t width) {
    ConvolvedLinear made(*this, name, dim, width);
    made.convolve(*this, name + "_conv", settings.taps, name + "_tail");
    return made;
  };
  q_ = branch("q", settings.key_width());
  k_ = branch("k", settings.key_width());
  v_ = branch("v", settings.value_width());
  beta_ = register_module("beta", std::make_shared<Linear>(dim, settings.heads));
  if (settings.output_gate != "none") {
    const bool full = settings.gate_rank == 0;
    if (!full) gate_in_ = register_module("gate_in", std::make_shared<Linear>(dim, settings.gate_rank));
    gate_ = register_module("gate", std::make_shared<Linear>(full ? dim : settings.gate_rank, settings.value_width()));
  }
  norm_ = register_module("norm", std::make_shared<RmsNorm>(settings.value_head_dim, settings.norm_eps));
  o_ = register_module("o", make_output_linear(settings.value_width(), dim));
}

Tensor DeltaMixer::beta(const Tensor& x) const {
  const Tensor beta = widen(beta_->forward(x)).sigmoid();
  return settings_.reflect ? beta * 2 : beta;
}

Tensor DeltaMixer::output(const Tensor& x, const Tensor& mixed) const {
  Tensor y = merge_heads(norm_->forward(mixed));
  if (gate_) {
    const Tensor gate = gate_->forward(gate_in_ ? gate_in_->forward(x) : x);
    y = y * (settings_.output_gate == "silu" ? at::silu(gate) : at::sigmoid(gate));
  }
  return o_->forward(y);
}

Tensor DeltaMixer::mix(const Tensor& x, const Batch& batch, SequenceState* state) {
  const auto branch = [&](const ConvolvedLinear& of, int64_t heads) {
    const Tensor y = of.forward(x, batch, state);
    return split_heads(of.convolved() ? y : at::silu(y), heads);
  };
  auto [o, last] = delta_scan(l2_normalized(branch(q_, settings_.key_heads)),
                              l2_normalized(branch(k_, settings_.key_heads)), branch(v_, settings_.heads), beta(x),
                              log_decay(x), {}, start_of(state, "scan_state"), batch.cu_seqlens);
  keep(state, {{"scan_state", last}});
  return output(x, o);
}

Tensor DeltaMixer::reference(const Tensor& x) {
  const auto branch = [&](const ConvolvedLinear& of, int64_t heads) {
    const Tensor y = of.reference(x);
    return split_heads(of.convolved() ? y : y * y.sigmoid(), heads);
  };
  const auto unit = [](const Tensor& y) { return y / (y.square().sum(-1, true) + 1e-6).sqrt(); };
  return output(
      x, std::get<0>(delta_scan_reference(unit(branch(q_, settings_.key_heads)), unit(branch(k_, settings_.key_heads)),
                                          branch(v_, settings_.heads), beta(x), log_decay(x))));
}

StateLayout DeltaMixer::state_layout() const {
  StateLayout layout;
  layout.scan("scan_state", {settings_.heads, settings_.head_dim, settings_.value_head_dim});
  for (const auto* part : {&q_, &k_, &v_}) part->declare(layout);
  return layout;
}

double DeltaMixer::flops_per_token(int64_t) const {
  return weight_flops() + scan_flops(7);  // decay, the answer to k, the correction and the answer to q
}

Tensor softplus_decay(const Tensor& logits, const Tensor& a_log, const Tensor& dt_bias) {
  return widen(a_log).exp().neg() * at::softplus(widen(logits) + widen(dt_bias));
}

Tensor draw_a_log(int64_t heads, double least) { return at::empty({heads}).uniform_(least, 16.0).log(); }

}  // namespace cortado
