#include "cortado/nn/diagonal_ssm.h"

#include <cmath>

#include "cortado/primitives/common.h"

namespace cortado {
namespace {

// Longer chunks mean larger Toeplitz matrices and fewer states.
constexpr int64_t kChunk = 64;

// In the matrices a state is S real numbers: N, or 2N if complex, as (real, imaginary). x [D,N,C] -> [D,S,C].
Tensor state_rows(const Tensor& x) { return x.is_complex() ? at::view_as_real(x).transpose(2, 3).flatten(1, 2) : x; }

// Returns the S factors of a state's real numbers that give Re(x h). x [D,N,C] -> [D,C,S].
Tensor reading_rows(const Tensor& x) { return state_rows(at::conj_physical(x)).transpose(1, 2); }

// e^z, by parts: ATen's complex exponential calls the C library per element and is ten times slower.
Tensor exp_of(const Tensor& z) {
  if (!z.is_complex()) return z.exp();
  const Tensor size = at::real(z).exp(), angle = at::imag(z);
  return at::complex(size * angle.cos(), size * angle.sin());
}

// Returns a^0 .. a^{count-1} [D,N,count] for a = exp(rate), as a^{rm} a^j with r about √count: one exponential costs as
// much as many products.
Tensor powers_of(const Tensor& rate, int64_t count) {
  const auto r = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(count))));
  const auto type = at::toRealValueType(rate.scalar_type());
  const Tensor lags = rate.unsqueeze(2) * at::arange(r, at::TensorOptions(rate.device()).dtype(type));
  return (exp_of(lags * r).unsqueeze(3) * exp_of(lags).unsqueeze(2)).flatten(2).narrow(2, 0, count);
}

// The matrices for `length` tokens of every channel.
struct ChunkMatrices {
  int64_t length;  // C
  Tensor log_a;    // per token, [D·N]
  Tensor inside;   // [D,C,C]: y_i from u_s, K_{i-s}
  Tensor writes;   // [D,S,C]: the state after the chunk from u_s, input a^{C-1-s}
  Tensor reads;    // [D,C,S]: y_i from the state before the chunk, read a^{i+1}

  ChunkMatrices(const ChannelSystem& system, int64_t tokens) : length(tokens) {
    // exp(-1e6) is 0, too; -inf times the lag 0 would be nan.
    const Tensor rate = system.log_a.is_complex() ? system.log_a : system.log_a.clamp_min(-1e6);
    const Tensor powers = powers_of(rate, length + 1);
    const Tensor read = system.read.unsqueeze(2), falling = powers.narrow(2, 0, length).flip(2);
    log_a = rate.flatten();
    writes = state_rows(system.input.defined() ? falling * system.input.unsqueeze(2) : falling);
    reads = reading_rows(powers.narrow(2, 1, length) * read);
    // K_{C-1} .. K_0 followed by C-1 zeros: its C windows are the rows of the Toeplitz matrix, the last one first.
    const Tensor response = at::bmm(reading_rows(read), writes).squeeze(1);
    inside = at::constant_pad_nd(response, {0, length - 1}).unfold(1, length, 1).flip(1);
  }

  // The matrices for only the first `tokens` tokens of the chunk.
  ChunkMatrices first(int64_t tokens) const {
    ChunkMatrices part = *this;
    part.length = tokens;
    part.inside = inside.narrow(1, 0, tokens).narrow(2, 0, tokens);
    part.writes = writes.narrow(2, length - tokens, tokens);
    part.reads = reads.narrow(1, 0, tokens);
    return part;
  }
};

// Computes u [B,n·C,D] in n chunks. `state` [B,D·N] is updated to its last value.
Tensor run_chunks(const ChunkMatrices& chunk, const Tensor& u, Tensor& state) {
  const int64_t batch = u.size(0), dim = u.size(2), count = u.size(1) / chunk.length;
  const Tensor columns =
      u.unflatten(1, {count, chunk.length}).permute({3, 2, 0, 1}).reshape({dim, chunk.length, batch * count});
  const bool complex = state.is_complex();
  Tensor ends = at::bmm(chunk.writes, columns).view({dim, -1, batch, count}).permute({2, 3, 0, 1}).contiguous();
  ends = complex ? at::view_as_complex(ends.view({batch, count, -1, 2})) : ends.view({batch, count, -1});
  // The exponential of a sum of logs, so that the state is rounded once per chunk instead of once per token.
  const Tensor decay = exp_of(chunk.log_a * chunk.length);
  std::vector<Tensor> starts;
  for (const Tensor& end : ends.unbind(1)) {
    starts.push_back(state);
    state = at::addcmul(end, decay, state);
  }
  Tensor before = at::stack(starts, 1);
  if (complex) before = at::view_as_real(before);
  before = before.reshape({batch * count, dim, -1}).permute({1, 2, 0});
  const Tensor y = at::baddbmm(at::bmm(chunk.inside, columns), chunk.reads, before);
  return y.view({dim, chunk.length, batch, count}).permute({2, 3, 1, 0}).flatten(1, 2);
}

Tensor run_dense(const ChunkMatrices& chunk, const Tensor& u, Tensor& state) {
  const int64_t tokens = u.size(1), rest = tokens % chunk.length, whole = tokens - rest;
  if (rest == 0) return run_chunks(chunk, u, state);
  const Tensor before = whole > 0 ? run_chunks(chunk, u.narrow(1, 0, whole), state) : u.narrow(1, 0, 0);
  return at::cat({before, run_chunks(chunk.first(rest), u.narrow(1, whole, rest), state)}, 1);
}

// Computes one token by the recurrence.
Tensor run_step(const ChannelSystem& system, const Tensor& u, Tensor& state) {
  const Tensor inputs = u.transpose(1, 2), before = state.unflatten(1, system.log_a.sizes());  // [B,D,1], [B,D,N]
  const Tensor h = before * exp_of(system.log_a) + (system.input.defined() ? inputs * system.input : inputs);
  state = h.flatten(1);
  return at::real((h * system.read).sum(2)).unsqueeze(1);
}

// Computes every sequence from its row of h, which is updated to its last value.
Tensor run_sequences(const ChannelSystem& system, const Tensor& u, const Batch& batch, Tensor& h, bool reverse) {
  if (u.size(1) == 0) return u;
  if (u.size(1) == 1 && !batch.cu_seqlens) return run_step(system, u, h);
  const ChunkMatrices chunk(system, std::min(kChunk, u.size(1)));
  auto dense = [&](const std::vector<Tensor>& timed, const std::vector<Tensor>& rows) -> PackedResult {
    if (timed[0].size(1) == 0) return {timed, rows};
    Tensor now = rows[0];
    const Tensor y = run_dense(chunk, reverse ? timed[0].flip(1) : timed[0], now);
    return {{reverse ? y.flip(1) : y}, {now}};
  };
  const PackedResult result =
      batch.cu_seqlens
          ? for_each_sequence(sequence_bounds("channel_ssm", *batch.cu_seqlens, u.size(1)), {u}, {h}, dense)
          : dense({u}, {h});
  h = result.rows[0];
  return result.timed[0];
}

}  // namespace

Tensor channel_ssm(const ChannelSystem& system, const Tensor& u, const Batch& batch, SequenceState* state,
                   const std::string& name, bool reverse) {
  const NoAutocast as_given;
  const bool complex = system.log_a.is_complex();
  if (!state) {
    Tensor h = at::zeros({batch.rows(u), system.log_a.numel()}, system.log_a.options());
    return run_sequences(system, u, batch, h, reverse);
  }
  Tensor h = complex ? at::view_as_complex(state->at(name)) : state->at(name);
  const Tensor y = run_sequences(system, u, batch, h, reverse);
  state->at(name) = complex ? at::view_as_real(h) : h;
  return y;
}

Discretized discretize(const Tensor& log_step, const Tensor& log_decay, const Tensor& frequency, at::ScalarType type) {
  const Tensor step = log_step.to(type).exp(), decay = log_decay.to(type).exp(), turn = frequency.to(type);
  const Tensor shrink = -decay * step, angle = turn * step;  // ΔΛ
  // e^{ΔΛ} - 1, in a form that does not cancel for small ΔΛ: cos(y) - 1 = -2 sin²(y/2).
  const Tensor real = shrink.expm1() * angle.cos() - 2 * (angle / 2).sin().square();
  const Tensor imaginary = shrink.exp() * angle.sin();
  return {at::complex(shrink, angle), at::complex(real, imaginary) / at::complex(-decay, turn)};
}

Tensor log_uniform(at::IntArrayRef shape, double low, double high) {
  return at::empty(shape).uniform_(std::log(low), std::log(high));
}

Tensor initial_step_bias(at::IntArrayRef shape) {
  const Tensor step = log_uniform(shape, 0.001, 0.1).exp();
  return step + (-at::expm1(-step)).log();
}

Tensor convolve_reference(const Tensor& kernel, const Tensor& u) {
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < u.size(1); ++t) {
    outputs.push_back((kernel.narrow(0, 0, t + 1).flip(0) * u.narrow(1, 0, t + 1)).sum(1));
  }
  return at::stack(outputs, 1);
}

}  // namespace cortado
