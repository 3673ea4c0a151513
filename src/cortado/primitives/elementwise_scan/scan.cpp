#include "cortado/primitives/elementwise_scan/scan.h"

#include "cortado/primitives/common.h"

namespace cortado {
namespace {

// Time cut into `count` chunks of `length` tokens. A loop over the positions inside a chunk works on all chunks at
// once, a second loop carries the chunks' ends: about 2·√T short steps in place of T.
struct Chunks {
  int64_t length, count;
  explicit Chunks(int64_t tokens) {
    length = std::max<int64_t>(1, std::llround(std::sqrt(static_cast<double>(tokens))));
    count = (tokens + length - 1) / length;
  }
  // [B,T,D] -> [B,count,length,D], padded at the end with `fill`.
  Tensor split(const Tensor& x, double fill) const {
    const int64_t missing = count * length - x.size(1);
    const Tensor whole = missing == 0 ? x.contiguous() : at::constant_pad_nd(x, {0, 0, 0, missing}, fill);
    return whole.view({x.size(0), count, length, x.size(2)});
  }
  Tensor join(const Tensor& x, int64_t tokens) const { return x.flatten(1, 2).narrow(1, 0, tokens); }
};

}  // namespace

Tensor scan_dense(const Tensor& log_a, const Tensor& b, const Tensor& initial, bool reverse) {
  const int64_t tokens = b.size(1);
  if (tokens == 0) return b.clone();
  if (tokens == 1) return initial.defined() ? at::addcmul(b, log_a.exp(), initial.unsqueeze(1)) : b.clone();
  const Chunks chunks(tokens);
  // Pads neither decay nor add, so the carried state passes them unchanged, in either direction.
  const Tensor logs = chunks.split(log_a, 0.0), adds = chunks.split(b, 0.0), factors = logs.exp();
  Tensor h = at::empty_like(adds), decay = at::empty_like(logs);
  auto at_step = [&](int64_t i, int64_t steps) { return reverse ? steps - 1 - i : i; };

  // Inside the chunks, from zero. `decay` is the sum of logs from the chunk's start, so that what a chunk passes on
  // carries one rounding a chunk and not one a token.
  Tensor last, last_decay;
  for (int64_t i = 0; i < chunks.length; ++i) {
    const int64_t t = at_step(i, chunks.length);
    Tensor now = h.select(2, t), now_decay = decay.select(2, t);
    if (i == 0) {
      now.copy_(adds.select(2, t));
      now_decay.copy_(logs.select(2, t));
    } else {
      at::addcmul_out(now, adds.select(2, t), factors.select(2, t), last);
      at::add_out(now_decay, last_decay, logs.select(2, t));
    }
    last = now;
    last_decay = now_decay;
  }
  decay.exp_();

  // From chunk to chunk: carry[n] is the state that enters chunk n.
  Tensor carry = at::zeros_like(last);
  Tensor state = initial.defined() ? initial : at::zeros_like(last.select(1, 0));
  const int64_t end = at_step(chunks.length - 1, chunks.length);
  for (int64_t i = 0; i < chunks.count; ++i) {
    const int64_t n = at_step(i, chunks.count);
    carry.select(1, n).copy_(state);
    state = at::addcmul(h.select(1, n).select(1, end), decay.select(1, n).select(1, end), state);
  }
  h.addcmul_(decay, carry.unsqueeze(2));
  return chunks.join(h, tokens);
}

Tensor running_max_dense(const Tensor& x, const Tensor& initial, const Tensor& decay) {
  const int64_t tokens = x.size(1);
  if (tokens == 0) return x.clone();
  const Chunks chunks(tokens);
  Tensor m = chunks.split(x, -kInfinity).clone();
  for (int64_t i = 1; i < chunks.length; ++i) {
    Tensor now = m.select(2, i);
    const Tensor before = m.select(2, i - 1);
    at::maximum_out(now, now, decay.defined() ? before - decay : before);
  }
  Tensor lost;  // what the maximum at a chunk's start has lost at each of its tokens [length,D]
  if (decay.defined()) lost = decay * at::arange(1, chunks.length + 1, x.options()).unsqueeze(1);
  for (int64_t n = 0; n < chunks.count; ++n) {
    if (n == 0 && !initial.defined()) continue;
    const Tensor state = n == 0 ? initial : m.select(1, n - 1).select(1, chunks.length - 1);
    Tensor now = m.select(1, n);
    at::maximum_out(now, now, decay.defined() ? state.unsqueeze(1) - lost : state.unsqueeze(1));
  }
  return chunks.join(m, tokens);
}

}  // namespace cortado
