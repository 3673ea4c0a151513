// Products with matrices stored in fewer bits than their inputs: integers of 8, 6 or 4 bits with a scale per group of
// inputs, or 16-bit floating point. Decoding is bound by reading the weights' bytes. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::narrow {

using kernels::Element;
using kernels::Parallel;

inline constexpr int64_t kGroup = 64;    // consecutive inputs of x that share a scale
inline constexpr int64_t kColumns = 32;  // outputs stored together
// Rows and outputs per task, for any number of threads.
inline constexpr int64_t kRoundedRows = 16, kTaskRows = 96, kShortOutputs = 16;

// 8 bits: W [out, in] ≈ scale ⊙ value, values in [-127, 127]. 4 bits: W ≈ scale ⊙ value + least, values in [0, 15], or
// without offsets W ≈ scale ⊙ (value - 8). A scale belongs to one output and 64 (8 bits) or 32 (4 bits) inputs. Outputs are stored in blocks of kColumns. Within a
// block four consecutive inputs of an output are adjacent, then the next output's four: one instruction multiplies four
// at a time. With 4 bits the upper halves of these bytes hold the four inputs that follow. Inputs and outputs are
// padded to whole groups and blocks.
//
// 6 bits, as ggml's Q6_K: W = d ⊙ scale ⊙ (value - 32), values in [0, 63]; a scale belongs to 16 inputs, d to 256. For each
// 16 inputs of a block stand the lower four bits as above, and then the upper two: bits 2j and 2j + 1 of a byte belong to
// the j-th four of the inputs.
struct Matrix {
  int bits = 8;
  int64_t out = 0, in = 0;
  uint8_t* values = nullptr;  // [blocks, inputs / (32 / bits), kColumns, 4]; 8 bits: signed
  void* scales = nullptr;     // [blocks, groups, kColumns]; 8 bits: bfloat16, 6 bits: int8, 4 bits: float16
  // As scales; 8 bits: int16, a group's sum; 4 bits: float16, the least number, or null. 6 bits: float16 [blocks,
  // inputs / 256, kColumns], d.
  uint16_t* offsets = nullptr;

  bool centred() const { return bits == 4 && !offsets; }
  int64_t blocks() const { return (out + kColumns - 1) / kColumns; }
  int64_t inputs() const { return (in + kGroup - 1) / kGroup * kGroup; }
  int64_t group() const { return bits == 6 ? 16 : kGroup * bits / 8; }  // inputs
  int64_t groups() const { return inputs() / group(); }
  int64_t block_bytes() const { return inputs() * kColumns * bits / 8; }
};

// 8 bits: fills one block of `to`. `rows` points to the row of its first output; rows are `stride` apart.
void pack_int8(const float* rows, int64_t stride, const Matrix& to, int64_t block);

// 8 bits: reads row `row` of the matrix, `in` numbers.
void unpack_int8(const Matrix& from, int64_t row, float* to);

// 6 bits: writes or reads 16 inputs of one column of a block, values in [0, 63]; `bytes` points to these inputs' part.
inline constexpr int64_t kSixGroup = 16, kSixBlock = 256, kSixBytes = kSixGroup * kColumns * 6 / 8;
void put_six(const uint8_t* values, uint8_t* bytes, int64_t column);
void get_six(const uint8_t* bytes, int64_t column, uint8_t* values);

// One matrix to multiply x with: y = x Wᵀ + bias. bias: null for none.
struct Map {
  Matrix matrix;
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t y_row = 0;
};

// x [rows, in] is rounded to int8 with a scale per row and group, so that a row's result does not depend on other rows.
struct Product {
  int64_t rows = 0, in = 0;
  const float* x = nullptr;
  int64_t x_row = 0;
  const Map* maps = nullptr;  // all with `in` inputs and equal bits
  int64_t count = 0;
  float* room = nullptr;  // scratch: room_of(rows, in) floats, aligned to 64 bytes
};
inline int64_t room_of(int64_t rows, int64_t in) {
  const int64_t groups = (in + kGroup - 1) / kGroup;
  return rows * groups * kGroup + (5 * rows * groups + 15) / 16 * 16;
}
void multiply(const Product& call, const Parallel& parallel);

// y [rows, out] = x Wᵀ + bias for a few rows; W [out, in] in 16- or 32-bit floating point, rows `w_row` elements apart.
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
