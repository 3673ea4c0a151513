// The RG-LRU's gates on a GPU; see rg_lru_gpu.h. A thread has two channels of kRgLruRows rows.
#pragma once

#include "cortado/nn/rg_lru/rg_lru_gpu.h"
#include "cortado/primitives/cuda/device.h"

namespace cortado::elementwise {

using device::exponential;
using device::reciprocal;
using device::sigmoid;
using device::Two;

// 1 - e^x for x <= 0; a series near 0.
DEV float one_minus_exp(float x) {
  if (x < -0.25f) return 1 - exponential(x);
  return -x * (1 + x * (0.5f + x * (1.0f / 6 + x * (1.0f / 24 + x * (1.0f / 120 + x * (1.0f / 720))))));
}

struct RgLruPlace {
  int channel, begin, end;
  bool there;
  DEV explicit RgLruPlace(const GpuRgLru& in) {
    channel = 2 * (blockIdx.x * kRgLruThreads + CORTADO_THREAD);
    begin = blockIdx.y * kRgLruRows;
    end = begin + kRgLruRows < in.rows ? begin + kRgLruRows : in.rows;
    there = channel < in.width;
  }
};

// This thread's two channels.
struct TwoChannels {
  unsigned char* data;
  int is_short, size;

  DEV TwoChannels(const GpuNumbers& x, int channel) : is_short(x.is_short), size(x.size) {
    const int block = channel / x.size;
    data = static_cast<unsigned char*>(x.data) + (block * x.far + channel - block * x.size) * (is_short ? 2 : 4);
  }
  DEV unsigned char* at(int row) const { return data + device::times(row, size) * (is_short ? 2 : 4); }

  DEV Two read(int row) const {
    if (!is_short) return *reinterpret_cast<const Two*>(at(row));
    const u32 both = *reinterpret_cast<const u32*>(at(row));
    return {device::unpack_low(both), device::unpack_high(both)};
  }
  DEV void write(int row, Two value) const {
    if (!is_short) *reinterpret_cast<Two*>(at(row)) = value;
    if (is_short) *reinterpret_cast<u32*>(at(row)) = device::pack(value.x[0], value.x[1]);
  }
};

DEV Two two(const float* numbers, long long at) { return *reinterpret_cast<const Two*>(numbers + at); }
DEV Two& two(float* numbers, long long at) { return *reinterpret_cast<Two*>(numbers + at); }

// Reads the inputs of a row's two channels.
struct RgLruReader {
  const TwoChannels r, i, x;
  const Two slope, r_bias, i_bias;
  const unsigned char* first;

  DEV RgLruReader(const GpuRgLru& in, int channel)
      : r(in.r, channel),
        i(in.i, channel),
        x(in.x, channel),
        slope(two(in.slope, channel)),
        r_bias(two(in.r_bias, channel)),
        i_bias(two(in.i_bias, channel)),
        first(in.first) {}

  struct Row {
    Two r, i, x;
    bool first;
  };
  DEV Row read(int row) const {
    Row all = {r.read(row), i.read(row), x.read(row), first[row] != 0};
    UNROLL for (int c = 0; c < 2; ++c) {
      all.r.x[c] += r_bias.x[c];
      all.i.x[c] += i_bias.x[c];
    }
    return all;
  }
};

constexpr int kRgLruAhead = 4;  // rows that are fetched before the first is written

DEV void rg_lru_gates(const GpuRgLru& in) {
  const RgLruPlace place(in);
  if (!place.there) return;
  const RgLruReader inputs(in, place.channel);
  UNROLL_BY(1) for (int row = place.begin; row < place.end; row += kRgLruAhead) {
    RgLruReader::Row rows[kRgLruAhead];
    UNROLL for (int n = 0; n < kRgLruAhead; ++n) rows[n] = inputs.read(row + n < place.end ? row + n : place.end - 1);
    UNROLL for (int n = 0; n < kRgLruAhead; ++n) {
      if (row + n >= place.end) continue;
      Two log_a, b;
      UNROLL for (int c = 0; c < 2; ++c) {
        log_a.x[c] = sigmoid(rows[n].r.x[c]) * inputs.slope.x[c];
        const float keep = rows[n].first ? 1.0f : device::square_root(one_minus_exp(2 * log_a.x[c]));
        b.x[c] = keep * sigmoid(rows[n].i.x[c]) * rows[n].x.x[c];
      }
      const long long at = device::times(row + n, in.width) + place.channel;
      two(in.log_a, at) = log_a;
      two(in.b, at) = b;
    }
  }
}

// One channel of a row; also its gradients.
struct RgLruChannel {
  float r, i, x, slope;
};

DEV RgLruChannel rg_lru_gradients(const GpuRgLru& in, const RgLruChannel& at, bool first, float dlog_a, float db) {
  const float r = at.r, i = at.i, x = at.x, slope = at.slope;
  const float open = sigmoid(r), let = sigmoid(i), twice = 2 * open * slope, rest = one_minus_exp(twice);
  const float keep = first ? 1.0f : device::square_root(rest);
  if (!first) {  // d sqrt(1 - a^2) / d log a = -2 a^2 / (2 sqrt(1 - a^2))
    const float least = 1 / (in.largest_slope * in.largest_slope), wide = 4 * rest > least ? 4 * rest : least;
    dlog_a += db * let * x * (-2 * exponential(twice) * reciprocal(device::square_root(wide)));
  }
  const float dinput = db * keep, dopen = dlog_a * open;
  return {dopen * slope * (1 - open), dinput * x * let * (1 - let), dinput * let, dopen};
}

DEV void rg_lru_gates_gradient(const GpuRgLru& in) {
  const RgLruPlace place(in);
  if (!place.there) return;
  const RgLruReader inputs(in, place.channel);
  const TwoChannels to_r(in.dr, place.channel), to_i(in.di, place.channel), to_x(in.dx, place.channel);
  Two dslope = {0, 0}, dr_bias = {0, 0}, di_bias = {0, 0};
  UNROLL_BY(1) for (int row = place.begin; row < place.end; row += kRgLruAhead) {
    RgLruReader::Row rows[kRgLruAhead];
    Two dlog_a[kRgLruAhead], db[kRgLruAhead];
    UNROLL for (int n = 0; n < kRgLruAhead; ++n) {
      const int own = row + n < place.end ? row + n : place.end - 1;
      const long long at = device::times(own, in.width) + place.channel;
      rows[n] = inputs.read(own);
      dlog_a[n] = two(in.dlog_a, at);
      db[n] = two(in.db, at);
    }
    UNROLL for (int n = 0; n < kRgLruAhead; ++n) {
      if (row + n >= place.end) continue;
      Two dr, di, dx;
      UNROLL for (int c = 0; c < 2; ++c) {
        const RgLruChannel channel{rows[n].r.x[c], rows[n].i.x[c], rows[n].x.x[c], inputs.slope.x[c]};
        const RgLruChannel found = rg_lru_gradients(in, channel, rows[n].first, dlog_a[n].x[c], db[n].x[c]);
        dr.x[c] = found.r;
        di.x[c] = found.i;
        dx.x[c] = found.x;
        dslope.x[c] += found.slope;
        dr_bias.x[c] += found.r;
        di_bias.x[c] += found.i;
      }
      to_r.write(row + n, dr);
      to_i.write(row + n, di);
      to_x.write(row + n, dx);
    }
  }
  const long long at = device::times(blockIdx.y, in.width) + place.channel;
  two(in.dslope, at) = dslope;
  two(in.dr_bias, at) = dr_bias;
  two(in.di_bias, at) = di_bias;
}

}  // namespace cortado::elementwise
