// mamba3: a gated scan whose keys and queries turn, with the trapezoid's two writes per token.
#include "cortado/mechanisms/mamba3/scan.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/inner_width.h"
#include "cortado/nn/diagonal_ssm.h"
#include "cortado/nn/gated_silu/op.h"
#include "cortado/nn/norm/norms.h"

namespace cortado {
namespace {

constexpr double kMamba3NormEps = 1e-5;  // of B and C

// State: "scan_state" [rows,H,N,P]; "angle" [rows,H,S], the sum of all turns; "last" [rows,1,R·H·N + inner + H], the
// last token's turned B, its x, and λΔ.
class Mamba3Mixer : public Mixer {
 public:
  Mamba3Mixer(JsonReader& settings, const MixerContext& context) : Mixer("mamba3") {
    const int64_t inner = read_inner_width(settings, context);
    const int64_t heads = read_heads(settings, context, inner, "the width");
    const int64_t groups = settings.integer("groups", 1, 65536, 1), state = settings.integer("state", 1, 1 << 16, 128);
    settings.fail_if(heads % groups != 0, "heads (", heads, ") is not divisible by groups (", groups, ")");
    const double fraction = settings.number("rotary_fraction", 0.0, 1.0, 0.5);
    const auto angles = static_cast<int64_t>(fraction * static_cast<double>(state)) / 2;
    settings.fail_if(angles == 0, "rotary_fraction ", fraction, " of state (", state, ") is not one pair");
    sizes_ = {inner, heads, groups, state, settings.integer("rank", 1, 256, 1), angles};
    decay_min_ = settings.number("decay_min", 0.0, 1e3, 1e-4);
    in_ = register_module("in", std::make_shared<Linear>(context.dim, sizes_.projected()));
    b_norm_ = register_module("b_norm", std::make_shared<RmsNorm>(state, kMamba3NormEps));
    c_norm_ = register_module("c_norm", std::make_shared<RmsNorm>(state, kMamba3NormEps));
    const int64_t rank = sizes_.rank;
    register_parameter(b_bias_, "b_bias", at::ones({rank, heads, state}), Role::kGain);
    register_parameter(c_bias_, "c_bias", at::ones({rank, heads, state}), Role::kGain);
    register_parameter(step_bias_, "step_bias", initial_step_bias({heads}), Role::kDynamics);
    register_parameter(skip_, "skip", at::ones({heads}), Role::kGain);
    if (rank > 1) {
      const Shape3 shape = {rank, heads, sizes_.channels()};
      register_parameter(rank_in_, "rank_in", at::full(shape, 1.0 / static_cast<double>(rank)), Role::kGain);
      register_parameter(rank_gate_, "rank_gate", at::ones(shape), Role::kGain);
      register_parameter(rank_out_, "rank_out", at::full(shape, 1.0 / static_cast<double>(rank)), Role::kGain);
    }
    if (settings.choice("norm", {"before_gate", "none"}, "none") == "before_gate") {
      const double norm_eps = settings.number("norm_eps", 0.0, 1.0, 1e-5);
      norm_ = register_module("norm", std::make_shared<RmsNorm>(inner, norm_eps, heads));
    }
    out_ = register_module("out", make_output_linear(inner, context.dim));
  }

  // The recurrence token by token, with two real channels as one complex number.
  Tensor reference(const Tensor& x) override {
    const Projections in = project(x);
    return output(mamba3_reference(sizes_, in.scan), in.z);
  }

  double flops_per_token(int64_t) const override {
    const int64_t inner = sizes_.inner, state = sizes_.state, rank = sizes_.rank, heads = sizes_.heads;
    // Per rank: the scan, six operations per turned pair of B and C; within a token R² products of B with C and of
    // these with x, and R(R-1)/2 with the token before.
    const int64_t products = rank * rank + rank * (rank - 1) / 2;
    const int64_t each =
        rank * (5 * inner * state + 12 * heads * sizes_.angles) + 2 * products * (heads * state + inner);
    return weight_flops() + static_cast<double>(each);
  }

  Joining joining() const override { return {1}; }

 private:
  using Shape3 = std::array<int64_t, 3>;

  struct Projections {
    Mamba3Operands scan;
    Tensor z;  // [B,T,inner]
  };

  void declare(StateLayout& layout) const override {
    layout.scan("scan_state", {sizes_.heads, sizes_.state, sizes_.channels()});
    layout.scan("angle", {sizes_.heads, sizes_.angles});
    layout.tail("last", {1, sizes_.remembered()});
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Projections in = project(x);
    return output(mamba3_scan(in.scan, batch, state), in.z);
  }

  Projections project(const Tensor& x) const {
    const int64_t inner = sizes_.inner, heads = sizes_.heads, keys = sizes_.rank * sizes_.groups * sizes_.state;
    const auto parts =
        in_->forward(x).split_with_sizes({inner, inner, keys, keys, heads, heads, heads, sizes_.angles}, -1);
    const Tensor step = at::softplus(widen(parts[4]) + widen(step_bias_));
    const Tensor decay = at::softplus(widen(parts[5])).clamp_min(decay_min_);
    const Tensor turn = (widen(parts[7]).tanh() * M_PI).unsqueeze(-2) * step.unsqueeze(-1);
    const OptionalTensor rank_in = rank_in_ ? OptionalTensor(widen(*rank_in_)) : std::nullopt;
    return {{widen(split_heads(parts[1], heads)), rank_in, per_head(parts[2], *b_norm_, b_bias_),
             per_head(parts[3], *c_norm_, c_bias_), step, -decay * step, widen(parts[6]), turn, widen(skip_)},
            parts[0]};
  }

  // Norm of B or C [B,T,R·G·N], and the heads' own biases: [B,T,R,H,N].
  Tensor per_head(const Tensor& x, const RmsNorm& norm, const Tensor& bias) const {
    const Tensor normed = widen(norm.forward(x.unflatten(-1, {sizes_.rank, sizes_.groups, sizes_.state})));
    return (normed.unsqueeze(-2) + widen(bias).unflatten(1, {sizes_.groups, -1})).flatten(3, 4);
  }

  // y [B,T,R,H,P]: y ⊙ silu(z), or norm(y) ⊙ silu(z); with ranks each has its own share of z and of the sum.
  Tensor output(const Tensor& y, const Tensor& z) const {
    const Tensor normed = norm_ ? norm_->forward(y.flatten(3)) : y.flatten(3);
    if (!rank_in_) return out_->forward(gated_silu(widen(z), normed.squeeze(2)).to(z.scalar_type()));
    const Tensor gate = widen(z).unsqueeze(2) * widen(*rank_gate_).flatten(1);
    return out_->forward((gated_silu(gate, normed) * widen(*rank_out_).flatten(1)).sum(2).to(z.scalar_type()));
  }

  Mamba3Sizes sizes_;
  double decay_min_;  // least -A
  std::shared_ptr<Linear> in_, out_;
  std::shared_ptr<RmsNorm> b_norm_, c_norm_, norm_;  // norm_ null: none
  Tensor b_bias_, c_bias_;                           // [R,H,N]
  Tensor step_bias_, skip_;                          // [H]
  OptionalTensor rank_in_, rank_gate_, rank_out_;    // [R,H,P], if R > 1
};

}  // namespace

extern const Mechanism kMamba3 = {
    .name = "mamba3",
    .family = "state space",
    .paper = "Mamba-3 (Lahoti et al. 2026)",
    .equation =
        "S_t = a_t S_{t-1} + a_t (1 - l_t) dt_t B_{t-1} x_{t-1}' + l_t dt_t B_t x_t', y_t = S_t' C_t + D x_t, with "
        "turned B, C",
    .state = "E (N + 1) + H (rank N + N/4 + 1), E = 2 D",
    .primitives = {"gated_scan", "short_conv"},
    .make = construct<Mamba3Mixer>,
};

}  // namespace cortado
