#include "cortado/mechanisms/shared/delta_one_token.h"

#include "cortado/mechanisms/shared/one_token.h"
#include "cortado/primitives/delta_scan/kernel.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado {
namespace {

// Scales every head of x [heads, size] to length 1, as x·rsqrt(Σx² + 1e-6).
void normalize_heads(float* x, int64_t heads, int64_t size) {
  for (int64_t head = 0; head < heads; ++head, x += size) {
    float squares = 0;
    for (int64_t i = 0; i < size; ++i) squares += x[i] * x[i];
    const float scale = 1 / std::sqrt(squares + 1e-6F);
    for (int64_t i = 0; i < size; ++i) x[i] *= scale;
  }
}

}  // namespace

bool delta_takes_one_token(const DeltaHeads& heads, const OptionalTensor& g) {
  return heads.keys <= gated::kStepWidth && heads.values <= gated::kStepWidth &&
         (!g || (g->scalar_type() == at::kFloat && kernels::usable({*g})));
}

Tensor delta_one_token(const DeltaHeads& heads, const ConvolvedQkv& maps, const Qkv& in, const Tensor& beta,
                       const OptionalTensor& g, SequenceState& state) {
  const int64_t rows = in.q.size(0), key_width = heads.key_heads * heads.keys, width = heads.heads * heads.values;
  float *q = one_token::scratch(rows * (2 * key_width + width + heads.heads)), *k = q + rows * key_width,
        *v = k + rows * key_width, *rate = v + rows * width;
  maps.q.convolve_one(in.q.const_data_ptr<float>(), key_width, state, q);
  maps.k.convolve_one(in.k.const_data_ptr<float>(), key_width, state, k);
  maps.v.convolve_one(in.v.const_data_ptr<float>(), width, state, v);
  normalize_heads(q, 2 * rows * heads.key_heads, heads.keys);
  const auto* logits = beta.const_data_ptr<float>();
  for (int64_t i = 0; i < rows * heads.heads; ++i) {
    rate[i] = one_token::sigmoid(logits[i]) * (heads.reflect ? 2.0F : 1.0F);
  }
  Tensor& start = state.at("scan_state");
  const Tensor last = kernels::room(start.sizes(), start.options());
  const Tensor o = at::empty({rows, 1, heads.heads, heads.values}, in.v.options());
  delta::ScanKernel scan;
  scan.rows = rows;
  scan.tokens = 1;
  scan.heads = heads.heads;
  scan.keys = heads.keys;
  scan.values = heads.values;
  const int64_t repeat = heads.heads / heads.key_heads;
  scan.y = {.data = q, .row = key_width, .head = heads.keys, .repeat = repeat};
  scan.y_factor = 1 / std::sqrt(static_cast<float>(heads.keys));
  scan.x = {.data = k, .row = key_width, .head = heads.keys, .repeat = repeat};
  scan.v = {.data = v, .row = width, .head = heads.values};
  scan.beta = {.data = rate, .row = heads.heads, .head = 1};
  if (g) scan.g = kernels::timed(*g, heads.heads);
  scan.gate_per_channel = g && g->dim() == 4;
  scan.initial = kernels::states(start, heads.heads);
  scan.final_state = kernels::states(last, heads.heads);
  scan.dw = kernels::timed(o, heads.heads);
  delta::run_step(scan, kernels::parallel(rows * width * heads.keys));
  start = last;
  return o;
}

}  // namespace cortado
