// gated_short_conv: a short convolution between two gates that are linear in the layer's input (LFM2).
#include "cortado/mechanisms/mechanism.h"
#include "cortado/nn/linear.h"
#include "cortado/nn/short_convolution.h"

namespace cortado {
namespace {

// State: "conv" [rows, taps - 1, D], the last gated inputs.
class GatedShortConvMixer : public Mixer {
 public:
  GatedShortConvMixer(JsonReader& settings, const MixerContext& context)
      : Mixer("gated_short_conv"), dim_(context.dim), taps_(settings.integer("taps", 1, 64, 3)) {
    const bool bias = settings.boolean("bias", false);
    in_ = register_module("in", std::make_shared<Linear>(dim_, 3 * dim_, bias));
    conv_ = register_module("conv", std::make_shared<ShortConvolution>(dim_, taps_, bias, "none"));
    out_ = register_module("out", make_output_linear(dim_, dim_, bias));
  }

  Tensor reference(const Tensor& x) override {
    const auto parts = in_->forward(x).chunk(3, -1);
    return out_->forward(parts[1] * conv_->reference(parts[0] * parts[2]));
  }

  double flops_per_token(int64_t) const override {
    return weight_flops() + 2.0 * static_cast<double>(dim_);  // the two gates
  }

  Joining joining() const override { return {taps_, 0}; }

 private:
  void declare(StateLayout& layout) const override { conv_->declare(layout, "conv"); }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const auto parts = in_->forward(x).chunk(3, -1);  // the gates b and c, and the input
    return out_->forward(parts[1] * conv_->forward(parts[0] * parts[2], batch, state, "conv"));
  }

  int64_t dim_, taps_;
  std::shared_ptr<Linear> in_, out_;
  std::shared_ptr<ShortConvolution> conv_;
};

}  // namespace

extern const Mechanism kGatedShortConv = {
    .name = "gated_short_conv",
    .family = "convolution",
    .paper = "LFM2 (Liquid AI 2025)",
    .equation = "o_t = W_o (c_t * conv(b * u)_t), with b, c and u linear in x",
    .state = "(taps-1) D",
    .primitives = {"short_conv"},
    .make = construct<GatedShortConvMixer>,
};

}  // namespace cortado
