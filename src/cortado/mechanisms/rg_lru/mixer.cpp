// rg_lru: Griffin's recurrent unit as a mixer of its own, followed by an output projection.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/rg_lru/rg_lru.h"

namespace cortado {
namespace {

// State: "h" [rows, D], "position" [rows].
class RgLruMixer : public Mixer {
 public:
  RgLruMixer(JsonReader& settings, const MixerContext& context) : Mixer("rg_lru"), causal_(context.causal) {
    const int64_t dim = context.dim, heads = read_heads(settings, context, dim, "dim");
    rg_lru_ = register_module("rg_lru", std::make_shared<RgLru>(dim, heads));
    o_ = register_module("o", make_output_linear(dim, dim));
  }

  Tensor reference(const Tensor& x) override { return o_->forward(rg_lru_->reference(x, causal_)); }

  double flops_per_token(int64_t) const override { return weight_flops() + rg_lru_->flops_per_token(); }

  Joining joining() const override { return {1}; }

 private:
  void declare(StateLayout& layout) const override {
    rg_lru_->declare(layout, "h");
    layout.position();
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    if (!causal_) return o_->forward(rg_lru_->bidirectional(x, batch));
    return o_->forward(rg_lru_->forward(x, batch, state, "h"));
  }

  bool causal_;
  std::shared_ptr<RgLru> rg_lru_;
  std::shared_ptr<Linear> o_;
};

}  // namespace

extern const Mechanism kRgLru = {
    .name = "rg_lru",
    .family = "recurrence",
    .paper = "Griffin (De et al. 2024) eq. 1-4; Latte-Macchiato §4.1",
    .equation = "h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t x_t), log a_t = -8 r_t softplus(Lambda)",
    .state = "D",
    .primitives = {"elementwise_scan"},
    .bidirectional = true,
    .make = construct<RgLruMixer>,
};

}  // namespace cortado
