// Products with matrices kept in fewer bits than the numbers they meet: integers of 8 or 4 bits with a scale for a group
// of inputs, or 16-bit floating point. What a model's decoding waits for is its weights' bytes. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::narrow {

using kernels::Element;
using kernels::Parallel;

inline constexpr int64_t kGroup = 64;    // inputs of x that share a scale
inline constexpr int64_t kColumns = 32;  // outputs that lie together
// A task's rows and outputs, whatever the number of threads.
inline constexpr int64_t kRoundedRows = 16, kTaskRows = 96, kShortOutputs = 16;

// W [out, in] ≈ scale ⊙ value of 8 bits, values in [-127, 127]; of 4 bits scale ⊙ value + least, values in [0, 15]. A
// scale is of 64 inputs of an output, or of 32. Blocks of kColumns outputs; within one, four consecutive inputs of an
// output lie side by side, then the next output's: what an instruction multiplies four at a time. Of 4 bits the four
// inputs behind these are in the bytes' upper halves. Inputs and blocks are filled up to whole ones.
struct Matrix {
  int bits = 8;
  int64_t out = 0, in = 0;
  uint8_t* values = nullptr;    // [blocks, inputs / (32 / bits), kColumns, 4]; of 8 bits signed
  uint16_t* scales = nullptr;   // [blocks, groups, kColumns] bfloat16, of 4 bits float16
  uint16_t* besides = nullptr;  // likewise: int16, the sum of a group's values; of 4 bits float16, the least number

  int64_t blocks() const { return (out + kColumns - 1) / kColumns; }
  int64_t inputs() const { return (in + kGroup - 1) / kGroup * kGroup; }
  int64_t group() const { return kGroup * bits / 8; }  // inputs
  int64_t groups() const { return inputs() / group(); }
  int64_t block_bytes() const { return inputs() * kColumns * bits / 8; }
};

// Of 8 bits: fills a block of `to`; `rows` points to its first output's row, rows `stride` apart, as many as the block has.
void pack_int8(const float* rows, int64_t stride, const Matrix& to, int64_t block);

// Of 8 bits: row `row` of the matrix, `in` numbers.
void unpack_int8(const Matrix& from, int64_t row, float* to);

// One matrix that x is multiplied with: y = x Wᵀ + bias. bias: null for none.
struct Map {
  Matrix matrix;
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t y_row = 0;
};

// x [rows, in], rounded to int8 with a scale for each row and group: the same numbers for a row whatever the others.
struct Product {
  int64_t rows = 0, in = 0;
  const float* x = nullptr;
  int64_t x_row = 0;
  const Map* maps = nullptr;  // all of `in` inputs and as many bits
  int64_t count = 0;
  float* room = nullptr;  // room_of(rows, in) floats, aligned to 64 bytes
};
inline int64_t room_of(int64_t rows, int64_t in) {
  const int64_t groups = (in + kGroup - 1) / kGroup;
  return rows * groups * kGroup + (3 * rows * groups + 15) / 16 * 16;
}
void multiply(const Product& call, const Parallel& parallel);

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
