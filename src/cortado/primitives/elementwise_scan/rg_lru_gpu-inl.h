// What the RG-LRU's scan takes, on a GPU: rg_lru_gpu.h says what. A thread has two channels of kRgLruRows rows.
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/elementwise_scan/rg_lru_gpu.h"

namespace cortado::elementwise {

using device::exponential;
using device::reciprocal;
using device::Two;

DEV float sigmoid(float x) { return reciprocal(1 + exponential(-x)); }

// 1 - e^x for x <= 0: near 0 by its series.
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

DEV Two read_two(const GpuNumbers& x, long long at) {
  if (!x.is_short) return *reinterpret_cast<const Two*>(static_cast<const float*>(x.data) + at);
  const u32 both = *reinterpret_cast<const u32*>(static_cast<const unsigned short*>(x.data) + at);
  return {device::unpack_low(both), device::unpack_high(both)};
}
DEV void write_two(const GpuNumbers& x, long long at, Two value) {
  if (!x.is_short) {
    *reinterpret_cast<Two*>(static_cast<float*>(x.data) + at) = value;
  } else {
    *reinterpret_cast<u32*>(static_cast<unsigned short*>(x.data) + at) = device::pack(value.x[0], value.x[1]);
  }
}

constexpr int kRgLruAhead = 4;  // rows that are fetched before any is written

DEV void rg_lru_gates(const GpuRgLru& in) {
  const RgLruPlace place(in);
  if (!place.there) return;
  const Two slope = *reinterpret_cast<const Two*>(in.slope + place.channel);
  UNROLL_BY(1) for (int row = place.begin; row < place.end; row += kRgLruAhead) {
    Two r[kRgLruAhead], i[kRgLruAhead], x[kRgLruAhead];
    bool first[kRgLruAhead];
    UNROLL for (int n = 0; n < kRgLruAhead; ++n) {
      const int own = row + n < place.end ? row + n : place.end - 1;
      const long long at = device::times(own, in.width) + place.channel;
      r[n] = read_two(in.r, at);
      i[n] = read_two(in.i, at);
      x[n] = read_two(in.x, at);
      first[n] = in.first[own] != 0;
    }
    UNROLL for (int n = 0; n < kRgLruAhead; ++n) {
      if (row + n >= place.end) continue;
      Two log_a, b;
      UNROLL for (int c = 0; c < 2; ++c) {
        log_a.x[c] = sigmoid(r[n].x[c]) * slope.x[c];
        const float keep = first[n] ? 1.0f : device::square_root(one_minus_exp(2 * log_a.x[c]));
        b.x[c] = keep * sigmoid(i[n].x[c]) * x[n].x[c];
      }
      const long long at = device::times(row + n, in.width) + place.channel;
      *reinterpret_cast<Two*>(in.log_a + at) = log_a;
      *reinterpret_cast<Two*>(in.b + at) = b;
    }
  }
}

struct RgLruGradients {
  float r, i, x, slope;
};

DEV RgLruGradients rg_lru_gradients(const GpuRgLru& in, float r, float i, float x, float slope, bool first,
                                    float dlog_a, float db) {
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
  const Two slope = *reinterpret_cast<const Two*>(in.slope + place.channel);
  Two dslope = {0, 0};
  UNROLL_BY(1) for (int row = place.begin; row < place.end; row += kRgLruAhead) {
    Two r[kRgLruAhead], i[kRgLruAhead], x[kRgLruAhead], dlog_a[kRgLruAhead], db[kRgLruAhead];
    bool first[kRgLruAhead];
    UNROLL for (int n = 0; n < kRgLruAhead; ++n) {
      const int own = row + n < place.end ? row + n : place.end - 1;
      const long long at = device::times(own, in.width) + place.channel;
      r[n] = read_two(in.r, at);
      i[n] = read_two(in.i, at);
      x[n] = read_two(in.x, at);
      dlog_a[n] = *reinterpret_cast<const Two*>(in.dlog_a + at);
      db[n] = *reinterpret_cast<const Two*>(in.db + at);
      first[n] = in.first[own] != 0;
    }
    UNROLL for (int n = 0; n < kRgLruAhead; ++n) {
      if (row + n >= place.end) continue;
      Two dr, di, dx;
      UNROLL for (int c = 0; c < 2; ++c) {
        const RgLruGradients found =
            rg_lru_gradients(in, r[n].x[c], i[n].x[c], x[n].x[c], slope.x[c], first[n], dlog_a[n].x[c], db[n].x[c]);
        dr.x[c] = found.r;
        di.x[c] = found.i;
        dx.x[c] = found.x;
        dslope.x[c] += found.slope;
      }
      const long long at = device::times(row + n, in.width) + place.channel;
      write_two(in.dr, at, dr);
      write_two(in.di, at, di);
      write_two(in.dx, at, dx);
    }
  }
  *reinterpret_cast<Two*>(in.dslope + device::times(blockIdx.y, in.width) + place.channel) = dslope;
}

}  // namespace cortado::elementwise
