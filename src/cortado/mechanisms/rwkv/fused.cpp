#include "cortado/mechanisms/rwkv/fused.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

#include "cortado/mechanisms/rwkv/kernel.h"
#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/operator.h"

namespace cortado::rwkv7 {
namespace {

constexpr const char* kName = "rwkv7";

// A tensor as contiguous float32, and its numbers.
struct Plain {
  Tensor x;
  explicit Plain(const Tensor& given)
      : x(given.defined() && given.scalar_type() == at::kFloat && given.is_contiguous() ? given
                                                                                        : kernels::plain(given)) {}
  const float* numbers() const { return x.defined() ? x.const_data_ptr<float>() : nullptr; }
};

// The tokens of each row, [first, end) within the batch.
struct Spans {
  Bounds bounds;
  int64_t rows, tokens;
  Spans(const Batch& batch, const Tensor& x)
      : bounds(kName, batch.cu_seqlens, x.size(1)), rows(bounds.rows(x.size(0))), tokens(x.size(1)) {}
  int64_t first(int64_t row) const { return bounds.data() ? bounds.data()[row] : row * tokens; }
  int64_t end(int64_t row) const { return bounds.data() ? bounds.data()[row + 1] : (row + 1) * tokens; }
};

// The last token of each row, [rows,1,D]; `start` if the row has none.
Tensor last_tokens(const Tensor& x, const Spans& spans, const Tensor& start) {
  const int64_t width = x.size(2);
  const Tensor last = at::empty({spans.rows, 1, width}, x.options());
  for (int64_t row = 0; row < spans.rows; ++row) {
    const bool any = spans.end(row) > spans.first(row);
    const float* from =
        any ? x.const_data_ptr<float>() + (spans.end(row) - 1) * width : start.const_data_ptr<float>() + row * width;
    std::copy_n(from, width, last.data_ptr<float>() + row * width);
  }
  return last;
}

}  // namespace

bool takes(const Tensor& x, const Batch& batch) {
  return !at::GradMode::is_enabled() && !batch.parts && x.dim() == 3 && x.scalar_type() == at::kFloat &&
         x.is_contiguous() && kernels::usable({x}) && !at::autocast::is_autocast_enabled(at::kCPU);
}

Tensor shifted(const Tensor& x, const Batch& batch, SequenceState* state, std::initializer_list<Tensor> mixes) {
  const int64_t width = x.size(2), tokens = x.numel() / width, count = static_cast<int64_t>(mixes.size());
  const Spans spans(batch, x);
  const Plain start(state ? state->at("shift") : Tensor());
  std::vector<const float*> before(static_cast<size_t>(tokens));
  for (int64_t row = 0; row < spans.rows; ++row) {
    for (int64_t t = spans.first(row); t < spans.end(row); ++t) {
      const bool first = t == spans.first(row);
      before[t] = !first            ? x.const_data_ptr<float>() + (t - 1) * width
                  : start.numbers() ? start.numbers() + row * width
                                    : nullptr;
    }
  }
  const Tensor mixed = kernels::room({count, x.size(0), x.size(1), width}, x.options());
  Shift call{.tokens = tokens,
             .width = width,
             .count = count,
             .x = x.const_data_ptr<float>(),
             .before = before.data(),
             .mixes = {},
             .mixed = mixed.data_ptr<float>()};
  std::vector<Plain> kept(mixes.begin(), mixes.end());
  for (int64_t i = 0; i < count; ++i) call.mixes[i] = kept[i].numbers();
  shift(call, kernels::parallel(count * x.numel()));
  if (state) state->at("shift") = last_tokens(x, spans, start.x);
  return mixed;
}

Tensor read(const Maps& maps, const Parameters& parameters, const Batch& batch, SequenceState* state) {
  const Tensor& bonus = parameters.bonus;
  const int64_t heads = bonus.size(0), size = bonus.size(1);
  const Spans spans(batch, maps.r);
  const Plain r(maps.r), key(maps.key), v(maps.v), decay(maps.decay), rate(maps.rate), gate(maps.gate),
      share(maps.share), first(maps.first), start(state ? state->at("scan_state") : Tensor());
  const Plain channels[] = {Plain(parameters.decay),         Plain(parameters.rate),     Plain(parameters.share),
                            Plain(parameters.removal_scale), Plain(parameters.key_rate), Plain(bonus),
                            Plain(parameters.norm_weight),   Plain(parameters.norm_bias)};
  const Tensor o = kernels::room(r.x.sizes(), r.x.options()),
               last = kernels::room({spans.rows, heads, size, size}, r.x.options());
  const Heads call{.rows = spans.rows,
                   .tokens = spans.tokens,
                   .heads = heads,
                   .size = size,
                   .bounds = spans.bounds.data(),
                   .eps = static_cast<float>(parameters.norm_eps),
                   .r = r.numbers(),
                   .key = key.numbers(),
                   .v = v.numbers(),
                   .decay = decay.numbers(),
                   .rate = rate.numbers(),
                   .gate = gate.numbers(),
                   .share = share.numbers(),
                   .first = first.numbers(),
                   .channels = {.decay = channels[0].numbers(),
                                .rate = channels[1].numbers(),
                                .share = channels[2].numbers(),
                                .removal_scale = channels[3].numbers(),
                                .key_rate = channels[4].numbers(),
                                .bonus = channels[5].numbers(),
                                .norm_weight = channels[6].numbers(),
                                .norm_bias = channels[7].numbers()},
                   .start = start.numbers(),
                   .last = last.data_ptr<float>(),
                   .o = o.data_ptr<float>()};
  rwkv7::heads(call, kernels::parallel(5 * size * o.numel()));
  if (state) state->at("scan_state") = last;
  return o;
}

Tensor squared_relu(const Tensor& x) {
  const Plain in(x);
  const Tensor y = kernels::room(in.x.sizes(), in.x.options());
  rwkv7::squared_relu(
      {.tokens = x.numel() / x.size(-1), .width = x.size(-1), .x = in.numbers(), .y = y.data_ptr<float>()},
      kernels::parallel(x.numel()));
  return y;
}

}  // namespace cortado::rwkv7
