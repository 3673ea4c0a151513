#include "cortado/mechanisms/blurry_window/mixer.h"

#include "cortado/mechanisms/gated_slot/mixer.h"
#include "cortado/nn/rotary.h"

namespace cortado {

BlurryWindowMixer::BlurryWindowMixer(const BlurrySettings& settings, int64_t dim)
    : Mixer("blurry_window"), settings_(settings), head_dim_(dim / settings.heads) {
  table_ = blurry_weights(at::arange(settings.sizes.period), settings.sizes, at::kDouble);
  q_ = register_module("q", std::make_shared<Linear>(dim, dim));
  k_ = register_module("k", std::make_shared<Linear>(dim, dim));
  v_ = register_module("v", std::make_shared<Linear>(dim, dim));
  o_ = register_module("o", make_output_linear(dim, dim));
}

Tensor BlurryWindowMixer::turned(const Tensor& x, const Tensor& positions) const {
  const Tensor heads = split_heads(x, settings_.heads);
  return settings_.rotary ? apply_rotary(heads, positions, settings_.rope_theta) : heads;
}

Tensor BlurryWindowMixer::forward(const Tensor& x, const Batch& batch, SequenceState* state) {
  BlurryOptions options{.sizes = settings_.sizes, .decay = settings_.decay, .cu_seqlens = batch.cu_seqlens};
  options.key_state = slot_start(state, "key_state");
  options.value_state = slot_start(state, "value_state");
  options.position = slot_start(state, "position");
  if (table_.device() != x.device()) table_ = table_.to(x.device());
  options.table = table_;
  const Tensor positions = batch.positions(x, options.position);
  const SlotResult result = blurry_window(turned(q_->forward(x), positions), turned(k_->forward(x), positions),
                                          split_heads(v_->forward(x), settings_.heads), options);
  keep_slots(state, result);
  if (state) state->at("position") = *options.position + batch.lengths(x);
  return o_->forward(merge_heads(result.o));
}

Tensor BlurryWindowMixer::reference(const Tensor& x) {
  const Tensor positions = at::arange(x.size(1), x.options().dtype(at::kLong)).unsqueeze(0);
  return o_->forward(
      merge_heads(blurry_window_reference(turned(q_->forward(x), positions), turned(k_->forward(x), positions),
                                          split_heads(v_->forward(x), settings_.heads), settings_.sizes,
                                          settings_.decay, 1 / std::sqrt(static_cast<double>(head_dim_)))));
}

SequenceState BlurryWindowMixer::zero_state(int64_t rows, const at::TensorOptions& options) const {
  SequenceState state(name());
  add_slot_state(state, rows, settings_.heads, settings_.sizes.slots, head_dim_, options);
  state.add("position", at::zeros({rows}, position_options(options)));
  return state;
}

int64_t BlurryWindowMixer::state_bytes(int64_t) const {
  return settings_.heads * settings_.sizes.slots * 2 * head_dim_ * 4 + 8;
}

double BlurryWindowMixer::flops_per_token(int64_t) const {
  return linear_flops({q_.get(), k_.get(), v_.get(), o_.get()}) +
         slot_flops(settings_.heads, settings_.sizes.slots, head_dim_);
}

const Mechanism kBlurryWindow = {
    .name = "blurry_window",
    .family = "slot attention",
    .paper = "Blurry Window Attention (2026) eq. 14-17, §3.3",
    .equation = "o_t = V_t' softmax(K_t q_t / sqrt d), K_t = diag(1 - w_t) K_{t-1} + w_t k_t', w_t[n] = D(t - nP/N)",
    .state = "2 N D",
    .bidirectional = false,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          BlurrySettings read{};
          read.heads = read_heads(settings, context, context.dim, "dim");
          read.sizes.slots = settings.integer("slots", 1, 1 << 20, 33);
          if (read.sizes.slots % 2 == 0) settings.fail(concat("slots must be odd, got ", read.sizes.slots));
          read.sizes.period = settings.integer("period", 1, 1 << 24, read.sizes.slots);
          if (read.sizes.period < read.sizes.slots) {
            settings.fail(concat("period (", read.sizes.period, ") is less than slots (", read.sizes.slots, ")"));
          }
          read.decay = settings.boolean("decay", true);
          read.rotary = settings.boolean("rotary", context.rotary);
          if (read.rotary && context.dim / read.heads % 2 != 0) {
            settings.fail(concat("rotary positions need an even head size, got ", context.dim / read.heads));
          }
          read.rope_theta = settings.number("rope_theta", 1.0, 1e12, context.rope_theta);
          return std::make_shared<BlurryWindowMixer>(read, context.dim);
        },
    .examples = {R"({"slots": 7})", R"({"slots": 5, "period": 13, "rotary": true, "rope_theta": 100})",
                 R"({"slots": 7, "period": 21, "heads": 2, "decay": false})"},
    .normalized = {R"({"slots": 5, "period": 15})"},  // N divides P: w is 1 at a slot's centre, which a token falls on
};

}  // namespace cortado
