#include "cortado/mechanisms/rg_lru/mixer.h"

namespace cortado {

RgLruMixer::RgLruMixer(int64_t dim, int64_t heads, bool causal) : Mixer("rg_lru"), dim_(dim), causal_(causal) {
  rg_lru_ = register_module("rg_lru", std::make_shared<RgLru>(dim, heads));
  o_ = register_module("o", make_output_linear(dim, dim));
}

Tensor RgLruMixer::mix(const Tensor& x, const Batch& batch, SequenceState* state) {
  if (!causal_) return o_->forward(rg_lru_->bidirectional(x, batch));
  return o_->forward(rg_lru_->forward(x, batch, state, "h"));
}

Tensor RgLruMixer::reference(const Tensor& x) { return o_->forward(rg_lru_->reference(x, causal_)); }

StateLayout RgLruMixer::state_layout() const {
  StateLayout layout;
  rg_lru_->declare(layout, "h");
  layout.position();
  return layout;
}

double RgLruMixer::flops_per_token(int64_t) const { return weight_flops() + rg_lru_->flops_per_token(); }

const Mechanism kRgLru = {
    .name = "rg_lru",
    .family = "recurrence",
    .paper = "Griffin (De et al. 2024) eq. 1-4; Latte-Macchiato §4.1",
    .equation = "h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t x_t), log a_t = -8 r_t softplus(Lambda)",
    .state = "D",
    .primitives = {"elementwise_scan"},
    .bidirectional = true,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          const int64_t heads = read_heads(settings, context, context.dim, "dim");
          return std::make_shared<RgLruMixer>(context.dim, heads, context.causal);
        },
};

}  // namespace cortado
