// griffin: the recurrent block of Griffin and Hawk, a gelu gate times a short convolution with an RG-LRU.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/rg_lru/rg_lru.h"
#include "cortado/nn/short_convolution.h"

namespace cortado {
namespace {

// State: "tail" [rows, taps - 1, R], "h" [rows, R], "position" [rows]; R is the recurrence's width.
class GriffinMixer : public Mixer {
 public:
  GriffinMixer(JsonReader& settings, const MixerContext& context)
      : Mixer("griffin"), width_(settings.integer("width", 1, 1 << 20, context.dim)) {
    const int64_t heads = read_heads(settings, context, width_, "width"), taps = settings.integer("taps", 1, 64, 4);
    x_ = register_module("x", std::make_shared<Linear>(context.dim, width_, true));
    y_ = register_module("y", std::make_shared<Linear>(context.dim, width_, true));
    conv_ = register_module("conv", std::make_shared<ShortConvolution>(width_, taps, true, "none"));
    rg_lru_ = register_module("rg_lru", std::make_shared<RgLru>(width_, heads));
    o_ = register_module("o", make_output_linear(width_, context.dim, true));
  }

  Tensor reference(const Tensor& x) override {
    return output(x, rg_lru_->reference(conv_->reference(x_->forward(x)), /*causal=*/true));
  }

  double flops_per_token(int64_t) const override {
    return weight_flops() + rg_lru_->flops_per_token() + 10.0 * static_cast<double>(width_);  // the gelu gate
  }

 private:
  void declare(StateLayout& layout) const override {
    conv_->declare(layout, "tail");
    rg_lru_->declare(layout, "h");
    layout.position();
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Tensor u = conv_->forward(x_->forward(x), batch, state, "tail");
    return output(x, rg_lru_->forward(u, batch, state, "h"));
  }

  Tensor output(const Tensor& x, const Tensor& h) const { return o_->forward(h * at::gelu(y_->forward(x), "tanh")); }

  int64_t width_;
  std::shared_ptr<Linear> x_, y_, o_;
  std::shared_ptr<ShortConvolution> conv_;
  std::shared_ptr<RgLru> rg_lru_;
};

}  // namespace

extern const Mechanism kGriffin = {
    .name = "griffin",
    .family = "recurrence",
    .paper = "Griffin (De et al. 2024) §2.3-2.4 eq. 1-4",
    .equation = "o_t = W_o (gelu(W_y x_t) * RGLRU(conv(W_x x))_t)",
    .state = "E taps, E = D",
    .primitives = {"elementwise_scan", "short_conv"},
    .make = construct<GriffinMixer>,
};

}  // namespace cortado
