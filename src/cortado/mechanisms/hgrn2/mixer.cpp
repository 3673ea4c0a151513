// hgrn2: gated linear attention with k = 1 - f, f the forget gate.
#include <cmath>

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/part_scan.h"
#include "cortado/nn/norm/norms.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {
namespace {

// f = l + (1 - l) σ(W_f x), where l is a constant or σ(b) per key channel; y = W_o RMSNorm(scan(silu(W_q x), 1 - f, W_i
// x, log f)). State: "scan_state" [rows, H, K, V]; with convolutions also their tails "q_conv", "f_conv", "i_conv".
class Hgrn2Mixer : public Mixer {
 public:
  Hgrn2Mixer(JsonReader& settings, const MixerContext& context)
      : Mixer("hgrn2"),
        dim_(context.dim),
        heads_(read_heads(settings, context, dim_, "dim")),
        key_dim_(settings.integer("key_dim", 1, 1 << 20, dim_)) {
    read_heads(settings, context, key_dim_, "key_dim");
    const int64_t taps = read_taps(settings);
    bound_ = settings.number("lower_bound", 0.0, 0.999, 0.0);
    if (settings.boolean("learned_bound", false)) {
      const double start = std::max(bound_, kLeastStart);
      register_parameter(bound_logit_, "bound", at::full({key_dim_}, std::log(start / (1 - start)), at::kFloat),
                         Role::kDynamics);
    }
    q_ = ConvolvedLinear::within(*this, "q", dim_, key_dim_, taps, "none");
    f_ = ConvolvedLinear::within(*this, "f", dim_, key_dim_, taps, "none");
    i_ = ConvolvedLinear::within(*this, "i", dim_, dim_, taps, "none");
    norm_ = register_module("norm", std::make_shared<RmsNorm>(dim_, settings.number("norm_eps", 0.0, 1.0, 1e-5)));
    o_ = register_module("o", make_output_linear(dim_, dim_));
  }

  // The equations as written, with the scan token by token as its primitive defines it.
  Tensor reference(const Tensor& x) override {
    const Tensor q = q_.reference(x), i = i_.reference(x);
    const Tensor l = bound_logit_ ? bound_logit_->sigmoid() : at::full({key_dim_}, bound_, x.options());
    const Tensor f = heads(l + (1 - l) * f_.reference(x).sigmoid());
    return output(std::get<0>(gated_scan_reference(heads(q * q.sigmoid()), 1 - f, heads(i), f.log())));
  }

  double flops_per_token(int64_t) const override { return weight_flops() + scan_flops(5); }  // decay, write and read

  Joining joining() const override { return {std::max<int64_t>(1, q_.taps())}; }

 private:
  // least start of a learned bound: the logit of 0 is -inf
  static constexpr double kLeastStart = 0.01;

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Tensor q = at::silu(q_.forward(x, batch, state)), i = i_.forward(x, batch, state);
    const Tensor logits = heads(widen(f_.forward(x, batch, state)));
    Tensor log_f = at::log_sigmoid(logits), k = at::sigmoid(-logits);
    // f = σ + l (1 - σ), k = (1 - l)(1 - σ)
    if (bound_logit_) {
      const Tensor b = widen(*bound_logit_).view({heads_, -1});
      log_f = at::logaddexp(log_f, at::log_sigmoid(-logits) + at::log_sigmoid(b));
      k = k * at::sigmoid(-b);
    } else if (bound_ > 0) {
      log_f = at::logaddexp(log_f, at::log_sigmoid(-logits) + std::log(bound_));
      k = k * (1 - bound_);
    }
    return output(scan_part({heads(q), k, heads(i), log_f}, batch, state));
  }

  void declare(StateLayout& layout) const override {
    layout.scan("scan_state", {heads_, key_dim_ / heads_, dim_ / heads_});
    for (const ConvolvedLinear* part : {&q_, &f_, &i_}) part->declare(layout);
  }

  Tensor heads(const Tensor& x) const { return split_heads(x, heads_); }
  Tensor output(const Tensor& o) const { return o_->forward(norm_->forward(merge_heads(o))); }

  int64_t dim_, heads_;
  int64_t key_dim_;             // summed over the heads
  double bound_;                // l in [0, 1): all gates lie in [l, 1]
  OptionalTensor bound_logit_;  // b [key_dim], if the bound is learned
  ConvolvedLinear q_, f_, i_;
  std::shared_ptr<RmsNorm> norm_;
  std::shared_ptr<Linear> o_;
};

}  // namespace

extern const Mechanism kHgrn2 = {
    .name = "hgrn2",
    .family = "linear attention",
    .paper = "HGRN2 (Qin et al. 2024)",
    .equation =
        "S_t = diag(f_t) S_{t-1} + (1 - f_t) i_t', f_t = l + (1 - l) sigmoid(W_f x_t), o_t = S_t' silu(W_q x_t)",
    .state = "H K V, K = V = d",
    .primitives = {"gated_scan", "short_conv"},
    .make = construct<Hgrn2Mixer>,
};

}  // namespace cortado
