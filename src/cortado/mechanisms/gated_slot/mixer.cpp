// gated_slot: gated slot attention (GSA), softmax attention over M slots with a data-dependent forget gate per slot.
#include "cortado/mechanisms/gated_slot/op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/norm/norms.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {
namespace {

// State: "key_state", "value_state" [rows,H,M,d], and the convolutions' tails "q_conv", "k_conv", "v_conv".
class GatedSlotMixer : public Mixer {
 public:
  GatedSlotMixer(JsonReader& settings, const MixerContext& context)
      : Mixer("gated_slot"),
        heads_(read_heads(settings, context, context.dim, "dim")),
        slots_(settings.integer("slots", 1, 1 << 20, 64)),
        temperature_(settings.number("temperature", 1e-3, 1e6, 8.0)) {
    const int64_t dim = context.dim, taps = read_taps(settings);
    head_dim_ = dim / heads_;
    // The convolutions have no activation because silu follows them.
    maps_.q = ConvolvedLinear::within(*this, "q", dim, dim, taps, "none");
    maps_.k = ConvolvedLinear::within(*this, "k", dim, dim, taps, "none");
    maps_.v = ConvolvedLinear::within(*this, "v", dim, dim, taps, "none");
    f_ = register_module("f", std::make_shared<Linear>(dim, heads_ * slots_));
    o_ = register_module("o", make_output_linear(dim, dim));
    norm_ = register_module("norm", std::make_shared<RmsNorm>(dim, 1e-5));
  }

  Tensor reference(const Tensor& x) override {
    const auto project = [&](const ConvolvedLinear& map) { return heads(at::silu(map.reference(x))); };
    const Tensor g = log_gate(x);
    return output(gated_slot_reference(project(maps_.q), project(maps_.k), project(maps_.v), 1 - g.exp(), g, 1.0));
  }

  double flops_per_token(int64_t) const override { return weight_flops() + scan_flops(4); }  // write and read

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const auto project = [&](const ConvolvedLinear& map) { return heads(at::silu(map.forward(x, batch, state))); };
    const Tensor g = log_gate(x);
    const SlotResult result =
        gated_slot(project(maps_.q), project(maps_.k), project(maps_.v), -at::expm1(g), g, 1.0,
                   start_of(state, "key_state"), start_of(state, "value_state"), batch.cu_seqlens);
    keep_slots(state, result);
    return output(result.o);
  }

  void declare(StateLayout& layout) const override {
    declare_slots(layout, heads_, slots_, head_dim_);
    maps_.declare(layout);
  }

  Tensor heads(const Tensor& x) const { return split_heads(x, heads_); }
  // log α_t [B,T,H,M]
  Tensor log_gate(const Tensor& x) const { return at::log_sigmoid(heads(f_->forward(x))) / temperature_; }

  Tensor output(const Tensor& o) const { return o_->forward(norm_->forward(at::silu(merge_heads(o)))); }

  int64_t heads_, slots_, head_dim_;
  double temperature_;  // τ in log α = logsigmoid(W_f x) / τ
  ConvolvedQkv maps_;
  std::shared_ptr<Linear> f_, o_;
  std::shared_ptr<RmsNorm> norm_;
};

// What `cortado bench ops` measures.
OperatorCase gated_slot_case() {
  OperatorCase c{.name = "gated_slot", .operation = "gated_slot", .note = "as many slots as channels"};
  c.inputs = [](const OperatorSizes& s) {
    const Tensor gate = gates({1, s.tokens, s.heads, s.size});
    return join(qkv(s), {1 - gate.exp(), gate});
  };
  c.call = [](const Tensors& in, const Tensors& carried) {
    return gated_slot(in[0], in[1], in[2], in[3], in[4], {}, part(carried, 0), part(carried, 1)).tensors();
  };
  c.reference = [](const Tensors& in) {
    return Tensors{gated_slot_reference(in[0], in[1], in[2], in[3], in[4], slot_scale({}, in[0]))};
  };
  c.work = [](const OperatorSizes& s) { return Work{8 * state_elements(s), 2 * channels(s)}; };
  return c;
}

}  // namespace

extern const Mechanism kGatedSlotAttention = {
    .name = "gated_slot",
    .family = "slot attention",
    .paper = "Gated Slot Attention (2024); Blurry Window Attention §2.2 eq. 3",
    .equation = "o_t = V_t' softmax(K_t q_t), K_t = diag(a_t) K_{t-1} + (1 - a_t) k_t'",
    .state = "2 H M d",
    .primitives = {"gated_scan", "short_conv"},
    .make = construct<GatedSlotMixer>,
    .operation = gated_slot_case,
};

}  // namespace cortado
