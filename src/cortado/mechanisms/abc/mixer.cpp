// abc: attention with bounded-memory control. Softmax attention over M slots, each a softmax-weighted mean of keys and
// values over time.
#include "cortado/mechanisms/abc/op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/norm/norms.h"
#include "cortado/nn/rotary/rotary.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {
namespace {

// State: "key_state", "value_state" [rows,H,M,d], "normalizer", "maximum" [rows,H,M], the convolutions' tails, and with
// rotary positions "position" [rows].
class AbcMixer : public Mixer {
 public:
  AbcMixer(JsonReader& settings, const MixerContext& context)
      : Mixer("abc"),
        heads_(read_heads(settings, context, context.dim, "dim")),
        slots_(settings.integer("slots", 1, 1 << 20, 64)),
        head_dim_(context.dim / heads_),
        rotary_(read_rotary(settings, context, head_dim_, context.rotary)) {
    const bool gate = settings.boolean("gate", true);
    const int64_t dim = context.dim, taps = read_taps(settings);
    maps_.q = ConvolvedLinear::within(*this, "q", dim, dim, taps, "silu");
    maps_.k = ConvolvedLinear::within(*this, "k", dim, dim, taps, "silu");
    maps_.v = ConvolvedLinear::within(*this, "v", dim, dim, taps, "silu");
    s_ = register_module("s", std::make_shared<Linear>(dim, heads_ * slots_));
    o_ = register_module("o", make_output_linear(dim, dim));
    if (!gate) return;
    g_ = register_module("g", std::make_shared<Linear>(dim, dim));
    norm_ = register_module("norm", std::make_shared<RmsNorm>(head_dim_, 1e-5));
  }

  Tensor reference(const Tensor& x) override {
    const Qkv in = operands(maps_.reference(x), Batch{}.positions(x));
    return output(x, abc_reference(in.q, in.k, in.v, slot_logits(x), slot_scale({}, in.q)));
  }

  double flops_per_token(int64_t) const override {
    return weight_flops() + 8.0 * static_cast<double>(heads_ * slots_ * head_dim_);  // write and read
  }

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    Tensor positions;
    if (rotary_) positions = batch.positions(x, start_of(state, "position"));
    const Qkv in = operands(maps_.forward(x, batch, state), positions);
    const AbcState start{start_of(state, "key_state"), start_of(state, "value_state"), start_of(state, "normalizer"),
                         start_of(state, "maximum")};
    const AbcResult result = abc(in.q, in.k, in.v, slot_logits(x), {}, start, batch.cu_seqlens);
    keep(state, {{"key_state", result.key_state},
                 {"value_state", result.value_state},
                 {"normalizer", result.normalizer},
                 {"maximum", result.maximum}});
    return output(x, result.o);
  }

  void declare(StateLayout& layout) const override {
    declare_slots(layout, heads_, slots_, head_dim_);
    layout.scan("normalizer", {heads_, slots_});
    layout.scan("maximum", {heads_, slots_}, -kInfinity);
    maps_.declare(layout);
    if (rotary_) layout.position();
  }

  Qkv operands(Qkv in, const Tensor& positions) const {
    for (Tensor* part : {&in.q, &in.k, &in.v}) *part = split_heads(*part, heads_);
    rotate_queries_and_keys(in.q, in.k, positions, rotary_);
    return in;
  }

  Tensor slot_logits(const Tensor& x) const { return split_heads(s_->forward(x), heads_).clamp(-32, 32); }

  // With a gate: RMSNorm(o) per head, times silu(W_g x).
  Tensor output(const Tensor& x, const Tensor& o) const {
    if (!g_) return o_->forward(merge_heads(o));
    return o_->forward(merge_heads(norm_->forward(o)) * at::silu(g_->forward(x)));
  }

  int64_t heads_, slots_, head_dim_;
  std::optional<Rotary> rotary_;  // nullopt: no rotary positions
  ConvolvedQkv maps_;
  std::shared_ptr<Linear> s_, g_, o_;
  std::shared_ptr<RmsNorm> norm_;
};

// What `cortado bench ops` measures.
OperatorCase abc_case() {
  OperatorCase c{.name = "abc", .operation = "abc", .note = "as many slots as channels"};
  c.inputs = [](const OperatorSizes& s) { return join(qkv(s), {heads_of(s, s.size)}); };
  c.call = [](const Tensors& in, const Tensors& carried) {
    const AbcState start{part(carried, 0), part(carried, 1), part(carried, 2), part(carried, 3)};
    return abc(in[0], in[1], in[2], in[3], {}, start).tensors();
  };
  c.reference = [](const Tensors& in) {
    return Tensors{abc_reference(in[0], in[1], in[2], in[3], slot_scale({}, in[0]))};
  };
  c.work = [](const OperatorSizes& s) { return Work{8 * state_elements(s), 3 * channels(s)}; };
  return c;
}

}  // namespace

extern const Mechanism kAbc = {
    .name = "abc",
    .family = "slot attention",
    .paper = "ABC (2022); Blurry Window Attention §2.2 eq. 2",
    .equation = "o_t = V_t' softmax(K_t q_t / sqrt d), K_t[m] = sum_{s<=t} softmax_{s<=t}(theta_sm) k_s",
    .state = "2 H M (d + 1)",
    .primitives = {"gated_scan", "time_softmax", "short_conv"},
    .make = construct<AbcMixer>,
    .operation = abc_case,
};

}  // namespace cortado
