#include "cortado/mechanisms/abc/mixer.h"

#include "cortado/mechanisms/gated_slot/mixer.h"
#include "cortado/nn/rotary.h"

namespace cortado {

AbcMixer::AbcMixer(const AbcSettings& settings, int64_t dim)
    : Mixer("abc"), settings_(settings), head_dim_(dim / settings.heads) {
  const auto projection = [&](const char* tail) {
    return std::make_shared<ConvolvedLinear>(dim, dim, settings.conv, "silu", tail);
  };
  q_ = register_module("q", projection("q_conv"));
  k_ = register_module("k", projection("k_conv"));
  v_ = register_module("v", projection("v_conv"));
  s_ = register_module("s", std::make_shared<Linear>(dim, settings.heads * settings.slots));
  o_ = register_module("o", make_output_linear(dim, dim));
  if (!settings.gate) return;
  g_ = register_module("g", std::make_shared<Linear>(dim, dim));
  norm_ = register_module("norm", std::make_shared<RmsNorm>(head_dim_, 1e-5));
}

Tensor AbcMixer::slot_logits(const Tensor& x) const {
  return split_heads(s_->forward(x), settings_.heads).clamp(-32, 32);
}

Tensor AbcMixer::turned(const Tensor& x, const Tensor& positions) const {
  const Tensor heads = split_heads(x, settings_.heads);
  return settings_.rotary ? apply_rotary(heads, positions, settings_.rope_theta) : heads;
}

Tensor AbcMixer::output(const Tensor& x, const Tensor& o) const {
  if (!g_) return o_->forward(merge_heads(o));
  return o_->forward(merge_heads(norm_->forward(o)) * at::silu(g_->forward(x)));
}

Tensor AbcMixer::forward(const Tensor& x, const Batch& batch, SequenceState* state) {
  Tensor positions;
  if (settings_.rotary) {
    const OptionalTensor start = state ? OptionalTensor(state->at("position")) : std::nullopt;
    positions = batch.positions(x, start);
    if (state) state->at("position") = *start + batch.lengths(x);
  }
  const AbcState start{slot_start(state, "key_state"), slot_start(state, "value_state"),
                       slot_start(state, "normalizer"), slot_start(state, "maximum")};
  const AbcResult result =
      abc(turned(q_->forward(x, batch, state), positions), turned(k_->forward(x, batch, state), positions),
          split_heads(v_->forward(x, batch, state), settings_.heads), slot_logits(x), {}, start, batch.cu_seqlens);
  if (state) {
    state->at("key_state") = result.key_state;
    state->at("value_state") = result.value_state;
    state->at("normalizer") = result.normalizer;
    state->at("maximum") = result.maximum;
  }
  return output(x, result.o);
}

Tensor AbcMixer::reference(const Tensor& x) {
  const Tensor positions = at::arange(x.size(1), x.options().dtype(at::kLong)).unsqueeze(0);
  return output(x, abc_reference(turned(q_->reference(x), positions), turned(k_->reference(x), positions),
                                 split_heads(v_->reference(x), settings_.heads), slot_logits(x),
                                 1 / std::sqrt(static_cast<double>(head_dim_))));
}

SequenceState AbcMixer::zero_state(int64_t rows, const at::TensorOptions& options) const {
  SequenceState state(name());
  const auto wide = scan_options(options);
  add_slot_state(state, rows, settings_.heads, settings_.slots, head_dim_, options);
  state.add("normalizer", at::zeros({rows, settings_.heads, settings_.slots}, wide));
  state.add("maximum", at::full({rows, settings_.heads, settings_.slots}, -kInfinity, wide));
  for (const auto& part : {q_, k_, v_}) part->add_state(state, rows, options);
  if (settings_.rotary) state.add("position", at::zeros({rows}, position_options(options)));
  return state;
}

int64_t AbcMixer::state_bytes(int64_t) const {
  return settings_.heads * settings_.slots * (2 * head_dim_ + 2) * 4 + q_->state_bytes() + k_->state_bytes() +
         v_->state_bytes() + (settings_.rotary ? 8 : 0);
}

double AbcMixer::flops_per_token(int64_t) const {
  return linear_flops({s_.get(), g_.get(), o_.get()}) + q_->flops_per_token() + k_->flops_per_token() +
         v_->flops_per_token() + slot_flops(settings_.heads, settings_.slots, head_dim_);
}

const Mechanism kAbc = {
    .name = "abc",
    .family = "slot attention",
    .paper = "ABC (2022); Blurry Window Attention §2.2 eq. 2",
    .equation = "o_t = V_t' softmax(K_t q_t / sqrt d), K_t[m] = sum_{s<=t} softmax_{s<=t}(theta_sm) k_s",
    .state = "2 M (D + H)",
    .bidirectional = false,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          AbcSettings read{};
          read.heads = read_heads(settings, context, context.dim, "dim");
          read.slots = settings.integer("slots", 1, 1 << 20, 64);
          read.rotary = settings.boolean("rotary", context.rotary);
          if (read.rotary && context.dim / read.heads % 2 != 0) {
            settings.fail(concat("rotary positions need an even head size, got ", context.dim / read.heads));
          }
          read.rope_theta = settings.number("rope_theta", 1.0, 1e12, context.rope_theta);
          read.gate = settings.boolean("gate", true);
          read.conv = settings.integer("conv", 0, 64, 0);
          return std::make_shared<AbcMixer>(read, context.dim);
        },
    .examples = {R"({"slots": 5})",
                 R"({"slots": 3, "heads": 2, "rotary": true, "rope_theta": 100, "gate": false, "conv": 3})"},
    .normalized = {R"({"slots": 5, "gate": false})"},
};

}  // namespace cortado
