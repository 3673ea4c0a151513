#include "cortado/mechanisms/griffin/mixer.h"

namespace cortado {

GriffinMixer::GriffinMixer(int64_t dim, int64_t width, int64_t heads, int64_t taps) : Mixer("griffin"), width_(width) {
  x_ = register_module("x", std::make_shared<Linear>(dim, width, true));
  y_ = register_module("y", std::make_shared<Linear>(dim, width, true));
  conv_ = register_module("conv", std::make_shared<ShortConvolution>(width, taps, true, "none"));
  rg_lru_ = register_module("rg_lru", std::make_shared<RgLru>(width, heads));
  o_ = register_module("o", make_output_linear(width, dim, true));
}

Tensor GriffinMixer::output(const Tensor& x, const Tensor& h) const {
  return o_->forward(h * at::gelu(y_->forward(x), "tanh"));
}

Tensor GriffinMixer::mix(const Tensor& x, const Batch& batch, SequenceState* state) {
  const Tensor u = conv_->forward(x_->forward(x), batch, state, "tail");
  return output(x, rg_lru_->forward(u, batch, state, "h"));
}

Tensor GriffinMixer::reference(const Tensor& x) {
  return output(x, rg_lru_->reference(conv_->reference(x_->forward(x)), /*causal=*/true));
}

StateLayout GriffinMixer::state_layout() const {
  StateLayout layout;
  conv_->declare(layout, "tail");
  rg_lru_->declare(layout, "h");
  layout.position();
  return layout;
}

double GriffinMixer::flops_per_token(int64_t) const {
  return weight_flops() + rg_lru_->flops_per_token() + 10.0 * static_cast<double>(width_);  // the gate
}

const Mechanism kGriffin = {
    .name = "griffin",
    .family = "recurrence",
    .paper = "Griffin (De et al. 2024) §2.3-2.4 eq. 1-4",
    .equation = "o_t = W_o (gelu(W_y x_t) * RGLRU(conv(W_x x))_t)",
    .state = "taps R",
    .primitives = {"elementwise_scan", "short_conv"},
    .bidirectional = false,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          const int64_t width = settings.integer("width", 1, 1 << 20, context.dim);
          const int64_t heads = read_heads(settings, context, width, "width");
          return std::make_shared<GriffinMixer>(context.dim, width, heads, settings.integer("taps", 1, 64, 4));
        },
};

}  // namespace cortado
