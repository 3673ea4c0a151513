#include "cortado/nn/initialization.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <mutex>

#include "cortado/nn/embedding.h"
#include "cortado/nn/linear.h"

namespace cortado {
namespace {

thread_local bool skipping = false;

}  // namespace

SkipInitialization::SkipInitialization() : before_(skipping) { skipping = true; }
SkipInitialization::~SkipInitialization() { skipping = before_; }

KeptGenerator::KeptGenerator() : generator_(at::detail::getDefaultCPUGenerator()) {
  const std::lock_guard lock(generator_.mutex());
  state_ = generator_.get_state();
}
KeptGenerator::~KeptGenerator() {
  const std::lock_guard lock(generator_.mutex());
  generator_.set_state(state_);
}

void draw_normal(Tensor& x, double std) {
  if (skipping) return;
  const at::NoGradGuard no_grad;
  x.normal_(0.0, std);
}

void lecun_normal(Tensor& x, int64_t fan_in) { draw_normal(x, 1.0 / std::sqrt(static_cast<double>(fan_in))); }

void initialize(torch::nn::Module& module, const InitializationOptions& options) {
  if (skipping) return;
  const at::NoGradGuard no_grad;
  const double residual = options.scale_residual ? 1.0 / std::sqrt(2.0 * static_cast<double>(options.layers)) : 1.0;
  module.apply([&](torch::nn::Module& part) {
    if (auto* linear = part.as<Linear>()) {
      if (options.redraw) draw_normal(linear->weight, options.std);
      if (options.redraw && linear->bias) linear->bias->zero_();
      if (linear->residual_output) linear->weight.mul_(residual);
    } else if (auto* embedding = part.as<Embedding>()) {
      if (options.redraw) draw_normal(embedding->weight, options.std);
    }
  });
}

}  // namespace cortado
