// Rotary positions on a GPU: rotary_gpu.h says what. A lane has a piece of eight channels, and those that it turns with.
#pragma once

#include "cortado/primitives/cuda/rows.h"
#include "cortado/primitives/window_attention/rotary_gpu.h"

namespace cortado::window {

DEV void turn(const GpuRotary& in) {
  const device::Row row(in.tokens, in.heads, in.width);
  const int channel = row.piece * 8, far = channel < in.half ? in.half : -in.half;
  if (!row.there || channel >= in.width) return;
  const bool turns = channel < 2 * in.half;
  const auto numbers = [&](int from, float* x) {
    const device::Four both = *reinterpret_cast<const device::Four*>(row.of<const u16>(in.x) + from);
    UNROLL for (int i = 0; i < 4; ++i) {
      x[2 * i] = device::unpack_low(both.x[i]);
      x[2 * i + 1] = device::unpack_high(both.x[i]);
    }
  };
  float x[8];
  numbers(channel, x);
  if (turns) {
    float other[8];
    numbers(channel + far, other);
    const long long angles =
        row.batch * in.table + device::times(row.t, in.half) + (far > 0 ? channel : channel - in.half);
    const float side = far > 0 ? -in.direction : in.direction;
    UNROLL for (int i = 0; i < 8; i += 4) {
      const auto c = *reinterpret_cast<const device::FourFloats*>(in.cos + angles + i);
      const auto s = *reinterpret_cast<const device::FourFloats*>(in.sin + angles + i);
      UNROLL for (int j = 0; j < 4; ++j) x[i + j] = c.x[j] * x[i + j] + side * s.x[j] * other[i + j];
    }
  }
  row.write(in.y, in.width, x);
}

}  // namespace cortado::window
