// mamba2: state-space duality, a gated scan with one decay a head.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/state_space.h"
#include "cortado/nn/diagonal_ssm.h"
#include "cortado/nn/norms.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {

namespace {

struct Mamba2Settings {
  int64_t inner;          // channels of x and z, all heads together
  int64_t heads, groups;  // groups of heads share B and C
  int64_t state;          // N
  int64_t taps;           // of the short convolution; 0: none
  bool conv_bias, bias;
  double norm_eps;
};

// State: "scan_state" [rows, H, N, P], "conv" [rows, taps-1, inner + 2·groups·N].
class Mamba2Mixer : public Mixer {
 public:
  Mamba2Mixer(const Mamba2Settings& settings, int64_t dim) : Mixer("mamba2"), settings_(settings) {
    const int64_t inner = settings.inner, mixed = inner + 2 * settings.groups * settings.state, heads = settings.heads;
    in_ = register_module("in", std::make_shared<Linear>(dim, inner + mixed + heads, settings.bias));
    if (settings.taps > 0) {
      conv_ = register_module("conv", std::make_shared<ShortConvolution>(mixed, settings.taps, settings.conv_bias));
    }
    a_log_ = register_parameter("a_log", at::empty({heads}).uniform_(1, 16).log());
    skip_ = register_parameter("skip", at::ones({heads}));
    step_bias_ = register_parameter("step_bias", initial_step_bias({heads}));
    norm_ = register_module("norm", std::make_shared<RmsNorm>(inner, settings.norm_eps, settings.groups));
    out_ = register_module("out", make_output_linear(inner, dim, settings.bias));
  }

  Tensor reference(const Tensor& x) override {
    const Projected in = project(x);
    const Operands now = operands(convolve_reference(conv_, in.mixed), in.step);
    return output(std::get<0>(gated_scan_reference(now.q, now.k, now.v, now.g, "key", 1.0)), now.x, in.z);
  }

  StateLayout state_layout() const override {
    StateLayout layout;
    layout.scan("scan_state", {settings_.heads, settings_.state, settings_.inner / settings_.heads});
    if (conv_) conv_->declare(layout, "conv");
    return layout;
  }

  double flops_per_token(int64_t) const override { return weight_flops() + scan_flops(5); }

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Projected in = project(x);
    const Operands now = operands(convolve(conv_, in.mixed, batch, state), in.step);
    std::optional<Tensor> start;
    if (state) start = state->at("scan_state");
    auto [o, last] = gated_scan(now.q, now.k, now.v, now.g, "key", 1.0, {}, start, batch.cu_seqlens);
    if (state) state->at("scan_state") = last;
    return output(o, now.x, in.z);
  }

  struct Projected {
    Tensor z, mixed, step;  // mixed: x, B and C before the convolution
  };
  struct Operands {
    Tensor x, q, k, v, g;
  };

  Projected project(const Tensor& x) const {
    const int64_t mixed = settings_.inner + 2 * settings_.groups * settings_.state;
    const auto parts = in_->forward(x).split_with_sizes({settings_.inner, mixed, settings_.heads}, -1);
    return {parts[0], parts[1], parts[2]};
  }

  // q = C, k = B, v = Δ x, g = -exp(A_log) Δ with Δ = softplus(step + bias).
  Operands operands(const Tensor& convolved, const Tensor& step) const {
    const int64_t shared = settings_.groups * settings_.state;
    const auto parts = convolved.split_with_sizes({settings_.inner, shared, shared}, -1);
    const Tensor x = split_heads(parts[0], settings_.heads), delta = at::softplus(widen(step) + widen(step_bias_));
    return {x, split_heads(parts[2], settings_.groups), split_heads(parts[1], settings_.groups),
            widen(x) * delta.unsqueeze(-1), -widen(a_log_).exp() * delta};
  }

  // RMSNorm((o + D x) ⊙ silu(z))
  Tensor output(const Tensor& o, const Tensor& x, const Tensor& z) const {
    const Tensor y = merge_heads(o + widen(skip_).unsqueeze(-1) * x);
    return out_->forward(norm_->forward((y * at::silu(z)).to(z.scalar_type())));
  }

  Mamba2Settings settings_;
  std::shared_ptr<Linear> in_, out_;
  std::shared_ptr<ShortConvolution> conv_;
  std::shared_ptr<RmsNorm> norm_;
  Tensor a_log_, skip_, step_bias_;  // [H]
};

}  // namespace

extern const Mechanism kMamba2 = {
    .name = "mamba2",
    .family = "state space",
    .paper = "Mamba-2 (Dao & Gu 2024) eq. 1-2, §6-7",
    .equation = "S_t = exp(-A dt_t) S_{t-1} + dt_t B_t x_t', y_t = S_t' C_t + D x_t",
    .state = "2 D N + (taps - 1)(2 D + 2 groups N)",
    .primitives = {"gated_scan", "short_conv"},
    .bidirectional = false,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          Mamba2Settings read{};
          read.inner = settings.integer("expand", 1, 64, 2) * context.dim;
          read.heads = read_heads(settings, context, read.inner, "expand times dim");
          read.groups = settings.integer("groups", 1, 65536, 1);
          if (read.heads % read.groups != 0) {
            settings.fail(concat("heads (", read.heads, ") is not divisible by groups (", read.groups, ")"));
          }
          read.state = settings.integer("state", 1, 1 << 16, 128);
          read.taps = read_taps(settings, 4);
          read.conv_bias = settings.boolean("conv_bias", true);
          read.bias = settings.boolean("bias", false);
          read.norm_eps = settings.number("norm_eps", 0.0, 1.0, 1e-5);
          return std::make_shared<Mamba2Mixer>(read, context.dim);
        },
};

}  // namespace cortado
