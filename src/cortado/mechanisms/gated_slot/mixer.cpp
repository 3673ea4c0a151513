// gated_slot: gated slot attention (GSA), softmax attention over M slots with a data-dependent forget gate a slot.
#include "cortado/mechanisms/gated_slot/op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/slot_state.h"
#include "cortado/nn/norms.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {

namespace {

struct GatedSlotSettings {
  int64_t heads, slots;
  double temperature;  // τ: log α = logsigmoid(W_f x) / τ
  int64_t taps;        // of the short convolutions on q, k, v; 0: none
};

// State: declare_slots', and the convolutions' tails "q_conv", "k_conv", "v_conv".
class GatedSlotMixer : public Mixer {
 public:
  GatedSlotMixer(const GatedSlotSettings& settings, int64_t dim)
      : Mixer("gated_slot"), settings_(settings), head_dim_(dim / settings.heads) {
    // The convolutions have no activation of their own: the silu of q, k and v comes after them.
    const auto projection = [&](const std::string& name) {
      ConvolvedLinear made(*this, name, dim, dim);
      made.convolve(made.linear(), "conv", settings.taps, name + "_conv", "none");
      return made;
    };
    q_ = projection("q");
    k_ = projection("k");
    v_ = projection("v");
    f_ = register_module("f", std::make_shared<Linear>(dim, settings.heads * settings.slots));
    o_ = register_module("o", make_output_linear(dim, dim));
    norm_ = register_module("norm", std::make_shared<RmsNorm>(dim, 1e-5));
  }

  Tensor reference(const Tensor& x) override {
    const auto project = [&](const ConvolvedLinear& linear) {
      return split_heads(at::silu(linear.reference(x)), settings_.heads);
    };
    const Tensor g = log_gate(x);
    return output(gated_slot_reference(project(q_), project(k_), project(v_), 1 - g.exp(), g, 1.0));
  }

  StateLayout state_layout() const override {
    StateLayout layout;
    declare_slots(layout, settings_.heads, settings_.slots, head_dim_);
    for (const auto* part : {&q_, &k_, &v_}) part->declare(layout);
    return layout;
  }

  double flops_per_token(int64_t) const override {
    return weight_flops() + scan_flops(4);  // written and read
  }

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const auto project = [&](const ConvolvedLinear& linear) {
      return split_heads(at::silu(linear.forward(x, batch, state)), settings_.heads);
    };
    const Tensor g = log_gate(x);
    const SlotResult result =
        gated_slot(project(q_), project(k_), project(v_), -at::expm1(g), g, 1.0, start_of(state, "key_state"),
                   start_of(state, "value_state"), batch.cu_seqlens);
    keep_slots(state, result);
    return output(result.o);
  }

  // log α_t [B,T,H,M]
  Tensor log_gate(const Tensor& x) const {
    return at::log_sigmoid(split_heads(f_->forward(x), settings_.heads)) / settings_.temperature;
  }

  Tensor output(const Tensor& o) const { return o_->forward(norm_->forward(at::silu(merge_heads(o)))); }

  GatedSlotSettings settings_;
  int64_t head_dim_;
  ConvolvedLinear q_, k_, v_;
  std::shared_ptr<Linear> f_, o_;
  std::shared_ptr<RmsNorm> norm_;
};

// What is measured of the operator.
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
    const double scale = 1 / std::sqrt(static_cast<double>(in[0].size(3)));
    return Tensors{gated_slot_reference(in[0], in[1], in[2], in[3], in[4], scale)};
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
    .state = "2 M D",
    .primitives = {"gated_scan", "short_conv"},
    .bidirectional = false,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          GatedSlotSettings read{};
          read.heads = read_heads(settings, context, context.dim, "dim");
          read.slots = settings.integer("slots", 1, 1 << 20, 64);
          read.temperature = settings.number("temperature", 1e-3, 1e6, 8.0);
          read.taps = read_taps(settings);
          return std::make_shared<GatedSlotMixer>(read, context.dim);
        },
    .operation = gated_slot_case,
};

}  // namespace cortado
