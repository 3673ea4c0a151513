#include "cortado/mechanisms/rg_lru/mixer.h"

namespace cortado {

RgLruMixer::RgLruMixer(int64_t dim, int64_t heads, bool causal) : Mixer("rg_lru"), dim_(dim), causal_(causal) {
  rg_lru_ = register_module("rg_lru", std::make_shared<RgLru>(dim, heads));
  o_ = register_module("o", make_output_linear(dim, dim));
}

Tensor RgLruMixer::forward(const Tensor& x, const Batch& batch, SequenceState* state) {
  if (!causal_) return o_->forward(rg_lru_->bidirectional(x, batch));
  if (!state) return o_->forward(std::get<0>(rg_lru_->forward(x, batch)));
  auto [h, last] = rg_lru_->forward(x, batch, state->at("position"), state->at("h"));
  state->at("h") = last;
  state->at("position") = state->at("position") + batch.lengths(x);
  return o_->forward(h);
}

Tensor RgLruMixer::reference(const Tensor& x) { return o_->forward(rg_lru_->reference(x, causal_)); }

SequenceState RgLruMixer::zero_state(int64_t rows, const at::TensorOptions& options) const {
  SequenceState state(name());
  state.add("h", at::zeros({rows, dim_}, scan_options(options)));
  state.add("position", at::zeros({rows}, position_options(options)));
  return state;
}

int64_t RgLruMixer::state_bytes(int64_t) const { return dim_ * 4 + 8; }

double RgLruMixer::flops_per_token(int64_t) const { return rg_lru_->flops_per_token() + linear_flops({o_.get()}); }

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
    .examples = {R"({})", R"({"heads": 1})"},
};

}  // namespace cortado
