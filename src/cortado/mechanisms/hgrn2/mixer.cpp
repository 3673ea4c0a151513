// hgrn2: gated linear attention whose key is what its gate forgets.
#include <cmath>

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/norms.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {

namespace {

struct Hgrn2Settings {
  int64_t heads;
  int64_t key_dim;     // of all heads together
  int64_t taps;        // of the short convolutions on q, f and i; 0: none
  double lower_bound;  // l in [0, 1): every gate is in [l, 1]
};

// f = l + (1 - l) σ(W_f x), y = W_o RMSNorm(scan(silu(W_q x), 1 - f, W_i x, log f)).
// State: "scan_state" [rows, H, K, V], with convolutions their tails "q_conv", "f_conv", "i_conv".
class Hgrn2Mixer : public Mixer {
 public:
  Hgrn2Mixer(const Hgrn2Settings& settings, int64_t dim) : Mixer("hgrn2"), settings_(settings), dim_(dim) {
    const auto projection = [&](const std::string& name, int64_t width) {
      ConvolvedLinear made(*this, name, dim, width);
      made.convolve(made.linear(), "conv", settings.taps, name + "_conv", "none");
      return made;
    };
    q_ = projection("q", settings.key_dim);
    f_ = projection("f", settings.key_dim);
    i_ = projection("i", dim);
    norm_ = register_module("norm", std::make_shared<RmsNorm>(dim, 1e-5));
    o_ = register_module("o", make_output_linear(dim, dim));
  }

  // The equations as they stand, and the scan token by token, as its primitive defines it.
  Tensor reference(const Tensor& x) override {
    const Tensor q = q_.reference(x), i = i_.reference(x);
    const Tensor f = settings_.lower_bound + (1 - settings_.lower_bound) * heads(f_.reference(x)).sigmoid();
    return output(std::get<0>(gated_scan_reference(heads(q * q.sigmoid()), 1 - f, heads(i), f.log())));
  }

  StateLayout state_layout() const override {
    StateLayout layout;
    layout.scan("scan_state", {settings_.heads, settings_.key_dim / settings_.heads, dim_ / settings_.heads});
    for (const ConvolvedLinear* part : {&q_, &f_, &i_}) part->declare(layout);
    return layout;
  }

  double flops_per_token(int64_t) const override {
    return weight_flops() + scan_flops(5);  // decay, write and read
  }

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const double bound = settings_.lower_bound;
    const Tensor q = at::silu(q_.forward(x, batch, state)), i = i_.forward(x, batch, state);
    const Tensor logits = heads(widen(f_.forward(x, batch, state)));
    Tensor log_f = at::log_sigmoid(logits);
    // f = σ + l (1 - σ)
    if (bound > 0) log_f = at::logaddexp(log_f, at::log_sigmoid(-logits) + std::log(bound));
    const Tensor k = (1 - bound) * at::sigmoid(-logits);
    std::optional<Tensor> start;
    if (state) start = state->at("scan_state");
    auto [o, last] = gated_scan(heads(q), k, heads(i), log_f, "key", {}, {}, start, batch.cu_seqlens);
    if (state) state->at("scan_state") = last;
    return output(o);
  }

  Tensor heads(const Tensor& x) const { return split_heads(x, settings_.heads); }
  Tensor output(const Tensor& o) const { return o_->forward(norm_->forward(merge_heads(o))); }

  const Hgrn2Settings settings_;
  const int64_t dim_;
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
    .state = "D^2 / H (+ convolution tails)",
    .primitives = {"gated_scan", "short_conv"},
    .bidirectional = false,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          Hgrn2Settings read{};
          read.heads = read_heads(settings, context, context.dim, "dim");
          read.key_dim = settings.integer("key_dim", 1, 1 << 20, context.dim);
          read_heads(settings, context, read.key_dim, "key_dim");
          read.taps = read_taps(settings);
          read.lower_bound = settings.number("lower_bound", 0.0, 0.999, 0.0);
          return std::make_shared<Hgrn2Mixer>(read, context.dim);
        },
};

}  // namespace cortado
