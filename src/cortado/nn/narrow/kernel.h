// Products with matrices kept in fewer bits than the numbers they meet: int8 with a scale for every 64 inputs, or
// 16-bit floating point. What a model's decoding waits for is its weights' bytes. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::narrow {

using kernels::Element;
using kernels::Parallel;

inline constexpr int64_t kGroup = 64;    // inputs that share a scale
inline constexpr int64_t kColumns = 32;  // outputs that lie together
// A task's rows and outputs, whatever the number of threads.
inline constexpr int64_t kRoundedRows = 16, kTaskRows = 96, kShortOutputs = 16;

// W [out, in] ≈ scale ⊙ value, values in [-127, 127]. Blocks of kColumns outputs; within one, four consecutive inputs
// of an output lie side by side, then the next output's: what an instruction multiplies four at a time. Groups and
// blocks are filled up with zeros.
struct Int8Matrix {
  int64_t out = 0, in = 0;
  int8_t* values = nullptr;    // [blocks, groups · 16, kColumns, 4]
  uint16_t* scales = nullptr;  // bfloat16 [blocks, groups, kColumns]
  int16_t* sums = nullptr;     // of a group's values, likewise

  int64_t blocks() const { return (out + kColumns - 1) / kColumns; }
  int64_t groups() const { return (in + kGroup - 1) / kGroup; }
};

// Fills a block of `to`; `rows` points to its first output's row, rows `stride` apart, as many as the block has.
void pack_int8(const float* rows, int64_t stride, const Int8Matrix& to, int64_t block);

// Row `row` of the matrix, `in` numbers.
void unpack_int8(const Int8Matrix& from, int64_t row, float* to);

// One matrix that x is multiplied with: y = x Wᵀ + bias. bias: null for none.
struct Int8Map {
  Int8Matrix matrix;
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t y_row = 0;
};

// x [rows, in], rounded to int8 with a scale for each row and group: the same numbers for a row whatever the others.
struct Int8Product {
  int64_t rows = 0, in = 0;
  const float* x = nullptr;
  int64_t x_row = 0;
  const Int8Map* maps = nullptr;  // all of `in` inputs
  int64_t count = 0;
  float* room = nullptr;  // int8_room(rows, in) floats, aligned to 64 bytes
};
inline int64_t int8_room(int64_t rows, int64_t in) {
  const int64_t groups = (in + kGroup - 1) / kGroup;
  return rows * groups * kGroup + (rows * groups + 15) / 16 * 16;
}
void multiply_int8(const Int8Product& call, const Parallel& parallel);

// y [rows, out] = x Wᵀ + bias for a few rows; W [out, in] of 16- or 32-bit floating point, `w_row` elements between
// rows.
struct ShortProduct {
  int64_t rows = 0, in = 0, out = 0;
  const float* x = nullptr;
  int64_t x_row = 0;
  const void* weight = nullptr;
  Element type = Element::kBFloat16;
  int64_t w_row = 0;
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t y_row = 0;
};
void multiply_short(const ShortProduct& call, const Parallel& parallel);

}  // namespace cortado::narrow
