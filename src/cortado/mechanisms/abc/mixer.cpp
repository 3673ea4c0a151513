// abc: attention with bounded-memory control, softmax attention over M slots that hold softmax-weighted means over
// time.
#include "cortado/mechanisms/abc/op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/slot_state.h"
#include "cortado/nn/norms.h"
#include "cortado/nn/rotary.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {

namespace {

struct AbcSettings {
  int64_t heads, slots;
  std::optional<Rotary> rotary;  // none: no rotary positions
  bool gate;                     // output: RMSNorm(o) per head, times silu(W_g x)
  int64_t taps;                  // of the short convolutions on q, k, v; 0: none
};

// State: "key_state", "value_state" [rows,H,M,d], "normalizer", "maximum" [rows,H,M], the convolutions' tails, and with
// rotary positions "position" [rows].
class AbcMixer : public Mixer {
 public:
  AbcMixer(const AbcSettings& settings, int64_t dim)
      : Mixer("abc"), settings_(settings), head_dim_(dim / settings.heads) {
    const auto projection = [&](const std::string& name) {
      ConvolvedLinear made(*this, name, dim, dim);
      made.convolve(made.linear(), "conv", settings.taps, name + "_conv");
      return made;
    };
    q_ = projection("q");
    k_ = projection("k");
    v_ = projection("v");
    s_ = register_module("s", std::make_shared<Linear>(dim, settings.heads * settings.slots));
    o_ = register_module("o", make_output_linear(dim, dim));
    if (!settings.gate) return;
    g_ = register_module("g", std::make_shared<Linear>(dim, dim));
    norm_ = register_module("norm", std::make_shared<RmsNorm>(head_dim_, 1e-5));
  }

  Tensor reference(const Tensor& x) override {
    const auto in = operands(Batch{}.positions(x), [&](const ConvolvedLinear& map) { return map.reference(x); });
    return output(x, abc_reference(in.q, in.k, in.v, slot_logits(x), 1 / std::sqrt(static_cast<double>(head_dim_))));
  }

  StateLayout state_layout() const override {
    StateLayout layout;
    const int64_t heads = settings_.heads, slots = settings_.slots;
    declare_slots(layout, heads, slots, head_dim_);
    layout.scan("normalizer", {heads, slots});
    layout.scan("maximum", {heads, slots}, -kInfinity);
    for (const auto* part : {&q_, &k_, &v_}) part->declare(layout);
    if (settings_.rotary) layout.position();
    return layout;
  }

  double flops_per_token(int64_t) const override {
    return weight_flops() +
           8.0 * static_cast<double>(settings_.heads * settings_.slots * head_dim_);  // written and read
  }

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    Tensor positions;
    if (settings_.rotary) positions = batch.positions(x, start_of(state, "position"));
    const auto in = operands(positions, [&](const ConvolvedLinear& map) { return map.forward(x, batch, state); });
    const AbcState start{start_of(state, "key_state"), start_of(state, "value_state"), start_of(state, "normalizer"),
                         start_of(state, "maximum")};
    const AbcResult result = abc(in.q, in.k, in.v, slot_logits(x), {}, start, batch.cu_seqlens);
    keep(state, {{"key_state", result.key_state},
                 {"value_state", result.value_state},
                 {"normalizer", result.normalizer},
                 {"maximum", result.maximum}});
    return output(x, result.o);
  }

  struct Operands {
    Tensor q, k, v;
  };
  // `project(map)` is one of the map's forms on x.
  template <typename Project>

  Operands operands(const Tensor& positions, const Project& project) const {
    Operands in{split_heads(project(q_), settings_.heads), split_heads(project(k_), settings_.heads),
                split_heads(project(v_), settings_.heads)};
    rotate_queries_and_keys(in.q, in.k, positions, settings_.rotary);
    return in;
  }

  Tensor slot_logits(const Tensor& x) const { return split_heads(s_->forward(x), settings_.heads).clamp(-32, 32); }

  Tensor output(const Tensor& x, const Tensor& o) const {
    if (!g_) return o_->forward(merge_heads(o));
    return o_->forward(merge_heads(norm_->forward(o)) * at::silu(g_->forward(x)));
  }

  AbcSettings settings_;
  int64_t head_dim_;
  ConvolvedLinear q_, k_, v_;
  std::shared_ptr<Linear> s_, g_, o_;
  std::shared_ptr<RmsNorm> norm_;
};

// What is measured of the operator.
OperatorCase abc_case() {
  OperatorCase c{.name = "abc", .operation = "abc", .note = "as many slots as channels"};
  c.inputs = [](const OperatorSizes& s) { return join(qkv(s), {heads_of(s, s.size)}); };
  c.call = [](const Tensors& in, const Tensors& carried) {
    const AbcState start{part(carried, 0), part(carried, 1), part(carried, 2), part(carried, 3)};
    return abc(in[0], in[1], in[2], in[3], {}, start).tensors();
  };
  c.reference = [](const Tensors& in) {
    return Tensors{abc_reference(in[0], in[1], in[2], in[3], 1 / std::sqrt(static_cast<double>(in[0].size(3))))};
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
    .state = "2 M (D + H)",
    .primitives = {"gated_scan", "time_softmax", "short_conv"},
    .bidirectional = false,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          AbcSettings read{};
          read.heads = read_heads(settings, context, context.dim, "dim");
          read.slots = settings.integer("slots", 1, 1 << 20, 64);
          read.rotary = read_rotary(settings, context, context.dim / read.heads, context.rotary);
          read.gate = settings.boolean("gate", true);
          read.taps = read_taps(settings);
          return std::make_shared<AbcMixer>(read, context.dim);
        },
    .operation = abc_case,
};

}  // namespace cortado
