// Rotary positions on a GPU; see rotary_gpu.h. A lane has eight channels and their partners.
#pragma once

#include "cortado/nn/rotary/rotary_gpu.h"
#include "cortado/primitives/cuda/rows.h"

namespace cortado::window {

// Eight channels from `channel` on, and their partners, `half` channels before or after.
struct TurnedPiece {
  float x[8], other[8];
  bool turns, is_first;  // is_first: the partners come after
  int angle;             // index of the first channel's angle

  DEV TurnedPiece(const u16* row, int channel, int half) : turns(channel < 2 * half), is_first(channel < half) {
    angle = is_first ? channel : channel - half;
    device::read8(x, row, channel);
    if (turns) device::read8(other, row, channel + (is_first ? half : -half));
  }
  // `sine` includes the direction's sign.
  DEV void turn(int i, float cosine, float sine) { x[i] = cosine * x[i] + (is_first ? -sine : sine) * other[i]; }
};

DEV void turn(const GpuRotary& in) {
  const device::Row row(in.tokens, in.heads, in.width);
  const int channel = row.piece * 8;
  if (!row.there || channel >= in.width) return;
  TurnedPiece piece(row.of<const u16>(in.x), channel, in.half);
  if (piece.turns) {
    const long long angles = row.batch * in.table + device::times(row.t, in.half) + piece.angle;
    UNROLL for (int i = 0; i < 8; i += 4) {
      const auto c = *reinterpret_cast<const device::FourFloats*>(in.cos + angles + i);
      const auto s = *reinterpret_cast<const device::FourFloats*>(in.sin + angles + i);
      UNROLL for (int j = 0; j < 4; ++j) piece.turn(i + j, c.x[j], in.direction * s.x[j]);
    }
  }
  row.write(in.y, in.width, piece.x);
}

// Reduces a nonnegative angle modulo a full turn.
DEV float part_of_turn(double angle) {
  constexpr double kTurn = 6.283185307179586;
  const auto turns = static_cast<double>(static_cast<long long>(angle * (1 / kTurn) + 0.5));
  return static_cast<float>(angle - turns * kTurn);
}

DEV void turn_token(const GpuTokenRotary& in) {
  device::Row row(1, in.q.heads + in.k.heads, in.width);
  const int channel = row.piece * 8;
  if (!row.there || channel >= in.width) return;
  const bool is_query = row.head < in.q.heads;
  const cuda::GpuTimed &from = is_query ? in.q : in.k, &to = is_query ? in.turned_q : in.turned_k;
  const int head = is_query ? row.head : row.head - in.q.heads;
  const auto place = [&](const cuda::GpuTimed& x) {
    return static_cast<u16*>(x.data) + row.batch * x.batch + head * x.head;
  };
  TurnedPiece piece(place(from), channel, in.half);
  if (piece.turns) {
    const auto position = static_cast<double>(in.positions[row.batch]);
    UNROLL for (int i = 0; i < 8; ++i) {
      const float angle = part_of_turn(position * in.frequencies[piece.angle + i]);
      piece.turn(i, in.factor * device::cosine(angle), in.factor * device::sine(angle));
    }
  }
  device::write8(place(to), channel, piece.x);
}

}  // namespace cortado::window
