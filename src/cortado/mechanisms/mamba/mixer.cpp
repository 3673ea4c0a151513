// mamba: the selective state space, a small state for every channel.
#include "cortado/mechanisms/mamba/scan.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/state_space.h"
#include "cortado/nn/diagonal_ssm.h"

namespace cortado {

namespace {

struct MambaSettings {
  int64_t inner;  // E: channels of x and z
  int64_t state;  // N
  int64_t rank;   // of the step size's projection
  int64_t taps;   // of the short convolution; 0: none
  bool conv_bias, bias;
};

// State: "scan_state" [rows, E, N], "conv" [rows, taps-1, E].
class MambaMixer : public Mixer {
 public:
  MambaMixer(const MambaSettings& settings, int64_t dim) : Mixer("mamba"), settings_(settings) {
    const int64_t inner = settings.inner;
    in_ = register_module("in", std::make_shared<Linear>(dim, 2 * inner, settings.bias));
    if (settings.taps > 0) {
      conv_ = register_module("conv", std::make_shared<ShortConvolution>(inner, settings.taps, settings.conv_bias));
    }
    select_ = register_module("select", std::make_shared<Linear>(inner, settings.rank + 2 * settings.state));
    step_ = register_module("step", std::make_shared<Linear>(settings.rank, inner));
    step_bias_ = register_parameter("step_bias", initial_step_bias({inner}));
    const Tensor count = at::arange(1, settings.state + 1, at::TensorOptions().dtype(at::kFloat));
    a_log_ = register_parameter("a_log", count.log().repeat({inner, 1}));
    skip_ = register_parameter("skip", at::ones({inner}));
    out_ = register_module("out", make_output_linear(inner, dim, settings.bias));
  }

  Tensor reference(const Tensor& x) override {
    const auto halves = in_->forward(x).chunk(2, -1);
    const Tensor convolved = convolve_reference(conv_, halves[0]);
    return output(selective_scan_reference(operands(convolved)), convolved, halves[1]);
  }

  StateLayout state_layout() const override {
    StateLayout layout;
    layout.scan("scan_state", {settings_.inner, settings_.state});
    if (conv_) conv_->declare(layout, "conv");
    return layout;
  }

  double flops_per_token(int64_t) const override { return weight_flops() + scan_flops(7); }

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const auto halves = in_->forward(x).chunk(2, -1);
    const Tensor convolved = convolve(conv_, halves[0], batch, state);
    const Tensor start =
        state ? state->at("scan_state")
              : at::zeros({batch.rows(x), settings_.inner, settings_.state}, scan_options(convolved.options()));
    auto [y, last] = selective_scan(operands(convolved), start, batch.cu_seqlens);
    if (state) state->at("scan_state") = last;
    return output(y, convolved, halves[1]);
  }

  SelectiveScan operands(const Tensor& convolved) const {
    const auto parts =
        select_->forward(convolved).split_with_sizes({settings_.rank, settings_.state, settings_.state}, -1);
    const Tensor step = at::softplus(widen(step_->forward(parts[0])) + widen(step_bias_));
    return {widen(convolved), step, -widen(a_log_).exp(), widen(parts[1]), widen(parts[2])};
  }

  // (y + D x) ⊙ silu(z)
  Tensor output(const Tensor& y, const Tensor& x, const Tensor& z) const {
    return out_->forward(((y + widen(skip_) * x) * at::silu(z)).to(z.scalar_type()));
  }

  MambaSettings settings_;
  std::shared_ptr<Linear> in_, select_, step_, out_;
  std::shared_ptr<ShortConvolution> conv_;
  Tensor a_log_, skip_, step_bias_;  // [E,N], [E], [E]
};

}  // namespace

extern const Mechanism kMamba = {
    .name = "mamba",
    .family = "state space",
    .paper = "Mamba (Gu & Dao 2023) eq. 2, algorithm 2",
    .equation = "h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t, y_t = h_t C_t + D x_t",
    .state = "2 D N + (taps - 1) 2 D",
    .primitives = {"short_conv"},
    .bidirectional = false,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          MambaSettings read{};
          read.inner = settings.integer("expand", 1, 64, 2) * context.dim;
          read.state = settings.integer("state", 1, 1 << 16, 16);
          read.rank = settings.integer("step_rank", 1, 1 << 20, (context.dim + 15) / 16);
          read.taps = read_taps(settings, 4);
          read.conv_bias = settings.boolean("conv_bias", true);
          read.bias = settings.boolean("bias", false);
          return std::make_shared<MambaMixer>(read, context.dim);
        },
};

}  // namespace cortado
