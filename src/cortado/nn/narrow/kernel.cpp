// Compiled once for each instruction set. A step of an int8 product takes as many inputs as an instruction multiplies
// and adds in a 32-bit lane: four bytes with VNNI (here Highway's AVX3_DL), two 16-bit integers on other x86, elsewhere
// one float32. All are exact, sums of a group stay below 2^24: the same numbers everywhere.
#include "cortado/nn/narrow/kernel.h"

#include <hwy/cache_control.h>
#include <math.h>
#include <string.h>

#define HWY_WANT_AVX3_DL
#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/nn/narrow/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/kernels/tasks.h"
#include "cortado/primitives/kernels/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::narrow {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;
using Ints = hn::RebindToSigned<Floats>;

// The inputs of a step.
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL
#define CORTADO_STEP 4
#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_SSE4
#define CORTADO_STEP 2
#else
#define CORTADO_STEP 1
#endif
constexpr int64_t kStep = CORTADO_STEP;
#if CORTADO_STEP == 1
using Lane = float;
#else
using Lane = int32_t;  // of four, each is 128 higher
#endif
constexpr int64_t kSteps = kGroup / kStep;  // of a group

// What a call's tasks share: the rounded rows and their scales.
struct Rounded {
  Lane* values;   // [rows, groups · kSteps]
  float* scales;  // [rows, groups]
  int64_t groups;
  Rounded(const Int8Product& call)
      : values(reinterpret_cast<Lane*>(call.room)), groups((call.in + kGroup - 1) / kGroup) {
    scales = call.room + call.rows * groups * kGroup;
  }
};

// --- Rounding of x. ---

// Two vectors of inputs, as steps. Of every four inputs, pairs are the even and the odd ones: so they come apart from a
// weight's four bytes.
HWY_INLINE void store_rounded(hn::Vec<Ints> first, hn::Vec<Ints> second, Lane* to) {
#if CORTADO_STEP == 4
  const Ints d;
  const hn::Rebind<uint8_t, Floats> bytes;
  auto* places = reinterpret_cast<uint8_t*>(to);
  hn::StoreU(hn::DemoteTo(bytes, hn::Add(first, hn::Set(d, 128))), bytes, places);
  hn::StoreU(hn::DemoteTo(bytes, hn::Add(second, hn::Set(d, 128))), bytes, places + kLanes);
#elif CORTADO_STEP == 2
  const Ints d;
  const hn::Repartition<uint64_t, Ints> twos;
  const auto pairs = [&](hn::Vec<Ints> q) HWY_ATTR {
    const auto low = hn::And(q, hn::Set(d, 0xFFFF)), high = hn::ShiftLeft<16>(hn::Shuffle1032(q));
    return hn::BitCast(twos, hn::Or(low, high));  // in the first half of every four lanes
  };
  hn::StoreU(hn::BitCast(d, hn::ConcatEven(twos, pairs(second), pairs(first))), d, to);
#else
  hn::StoreU(hn::ConvertTo(Floats(), first), Floats(), to);
  hn::StoreU(hn::ConvertTo(Floats(), second), Floats(), to + kLanes);
#endif
}

// One group, zeros behind its end. What is not finite gives a scale that is not.
HWY_INLINE void round_group(const float* x, Lane* to, float& scale) {
  const Floats d;
  Vec largest = hn::Zero(d), poison = hn::Zero(d);
  for (int64_t i = 0; i < kGroup; i += kLanes) {
    const Vec part = hn::LoadU(d, x + i);
    largest = hn::Max(largest, hn::Abs(part));
    poison = hn::MulAdd(part, hn::Zero(d), poison);
  }
  const float most = hn::GetLane(hn::MaxOfLanes(d, largest)), nan = hn::GetLane(hn::SumOfLanes(d, poison));
  scale = most / 127 + nan;
  const Vec inverse = hn::Set(d, nan == 0 && most > 1e-30f ? 127 / most : 0);
  const auto rounded = [&](int64_t i) HWY_ATTR {
    const Vec part = nan == 0 ? hn::LoadU(d, x + i) : hn::Zero(d);
    return hn::NearestInt(hn::Mul(part, inverse));
  };
  for (int64_t i = 0; i < kGroup; i += 2 * kLanes) store_rounded(rounded(i), rounded(i + kLanes), to + i / kStep);
}

void round_rows(const Int8Product& call, int64_t block) {
  const Rounded to(call);
  HWY_ALIGN float part[kGroup];
  const int64_t last = (block + 1) * kRoundedRows < call.rows ? (block + 1) * kRoundedRows : call.rows;
  for (int64_t row = block * kRoundedRows; row < last; ++row) {
    const float* x = call.x + row * call.x_row;
    for (int64_t g = 0; g < to.groups; ++g) {
      const int64_t n = call.in - g * kGroup;
      if (n < kGroup) {
        memset(part, 0, sizeof part);
        memcpy(part, x + g * kGroup, static_cast<size_t>(n) * sizeof(float));
      }
      const int64_t at = row * to.groups + g;
      round_group(n < kGroup ? part : x + g * kGroup, to.values + at * kSteps, to.scales[at]);
    }
  }
}

// --- Products. ---

// A part of a call: rows [row, row + rows) with a block of a map's outputs.
struct Part {
  const Int8Map* map;
  int64_t block, row, rows;
};

// Adds the bias to `rows` rows of totals [rows, kColumns] and writes them.
HWY_INLINE void write_totals(const Part& part, int64_t first, int64_t rows, const float* totals) {
  const Int8Map& map = *part.map;
  const int64_t column = part.block * kColumns, left = map.matrix.out - column;
  const int64_t n = left < kColumns ? left : kColumns;
  for (int64_t r = 0; r < rows; ++r) {
    float* y = map.y + (part.row + first + r) * map.y_row + column;
    if (!map.bias) {
      write_row(totals + r * kColumns, y, 1, n);
    } else {
      for (int64_t i = 0; i < n; ++i) y[i] = totals[r * kColumns + i] + map.bias[column + i];
    }
  }
}

HWY_INLINE Vec scales_of(const Int8Matrix& matrix, int64_t at) {
  return load_vector(Floats(), reinterpret_cast<const BFloat16*>(matrix.scales) + at);
}

#if CORTADO_STEP == 4

HWY_PUSH_ATTRIBUTES("avx512vnni")  // which every AVX3_DL machine has, though this Highway does not say it

// kRows rows with a block, all groups: Σ_g s_w s_x (Σ (x + 128) w - 128 Σ w).
template <int kRows>
HWY_NOINLINE void integer_tile(const Part& part, const Rounded& x, int64_t first) {
  constexpr int kVecs = kColumns / kLanes;
  const Floats d;
  const Ints di;
  const Int8Matrix& matrix = part.map->matrix;
  const int64_t groups = x.groups, row = part.row + first;
  const int8_t* values = matrix.values + part.block * groups * kGroup * kColumns;
  Vec total[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) total[r][v] = hn::Zero(d);
  }
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t at = (part.block * groups + g) * kColumns;
    hn::Vec<Ints> sum[kRows][kVecs];
    for (int v = 0; v < kVecs; ++v) {
      const auto sums = hn::PromoteTo(di, hn::LoadU(hn::Rebind<int16_t, Ints>(), matrix.sums + at + v * kLanes));
      for (int r = 0; r < kRows; ++r) sum[r][v] = hn::Neg(hn::ShiftLeft<7>(sums));
    }
    const Lane* inputs = x.values + (row * groups + g) * kSteps;
    for (int64_t i = 0; i < kSteps; ++i, values += kStep * kColumns) {
      hn::Vec<Ints> weight[kVecs];
      for (int v = 0; v < kVecs; ++v) {
        weight[v].raw = _mm512_loadu_si512(values + v * kLanes * 4);
        if (kRows == 1) hwy::Prefetch(values + v * kLanes * 4 + 4096);
      }
      for (int r = 0; r < kRows; ++r) {
        const auto input = hn::Set(di, inputs[r * groups * kSteps + i]);
        for (int v = 0; v < kVecs; ++v) {
          sum[r][v].raw = _mm512_dpbusd_epi32(sum[r][v].raw, input.raw, weight[v].raw);
        }
      }
    }
    for (int v = 0; v < kVecs; ++v) {
      const Vec scale = scales_of(matrix, at + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vec factor = hn::Set(d, x.scales[(row + r) * groups + g]);
        total[r][v] = hn::MulAdd(hn::Mul(hn::ConvertTo(d, sum[r][v]), scale), factor, total[r][v]);
      }
    }
  }
  HWY_ALIGN float totals[kRows * kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) hn::Store(total[r][v], d, totals + r * kColumns + v * kLanes);
  }
  write_totals(part, first, kRows, totals);
}

HWY_POP_ATTRIBUTES

void multiply_part(const Part& part, const Rounded& x) {
  int64_t row = 0;
  for (; row + 6 <= part.rows; row += 6) integer_tile<6>(part, x, row);
  switch (part.rows - row) {
    case 5:
      return integer_tile<5>(part, x, row);
    case 4:
      return integer_tile<4>(part, x, row);
    case 3:
      return integer_tile<3>(part, x, row);
    case 2:
      return integer_tile<2>(part, x, row);
    case 1:
      return integer_tile<1>(part, x, row);
  }
}

#else

#if CORTADO_STEP == 2

using Sum = hn::Vec<Ints>;
HWY_INLINE Sum no_sum() { return hn::Zero(Ints()); }
HWY_INLINE Vec value_of(Sum sum) { return hn::ConvertTo(Floats(), sum); }
HWY_INLINE Sum load_weights(const Lane* from) { return hn::Load(Ints(), from); }

HWY_INLINE Sum add_step(Lane input, Sum weight, Sum sum) {
  const hn::Repartition<int16_t, Ints> halves;
  Sum none = no_sum();  // only other architectures put anything there
  const auto pair = hn::BitCast(halves, hn::Set(Ints(), input));
  return hn::ReorderWidenMulAccumulate(Ints(), pair, hn::BitCast(halves, weight), sum, none);
}

// The four inputs of a vector of columns as two steps, kColumns apart.
HWY_INLINE void widen_four(hn::Vec<Ints> four, Lane* to) {
  const hn::Repartition<int16_t, Ints> halves;
  const auto bytes = hn::BitCast(halves, four);
  hn::Store(hn::BitCast(Ints(), hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes))), Ints(), to);
  hn::Store(hn::BitCast(Ints(), hn::ShiftRight<8>(bytes)), Ints(), to + kColumns);
}

#else

using Sum = Vec;
HWY_INLINE Sum no_sum() { return hn::Zero(Floats()); }
HWY_INLINE Vec value_of(Sum sum) { return sum; }
HWY_INLINE Sum load_weights(const Lane* from) { return hn::Load(Floats(), from); }
HWY_INLINE Sum add_step(Lane input, Sum weight, Sum sum) { return hn::MulAdd(hn::Set(Floats(), input), weight, sum); }

HWY_INLINE void widen_four(hn::Vec<Ints> four, Lane* to) {
  const Floats d;
  hn::Store(hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<24>(four))), d, to);
  hn::Store(hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<16>(four))), d, to + kColumns);
  hn::Store(hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<8>(four))), d, to + 2 * kColumns);
  hn::Store(hn::ConvertTo(d, hn::ShiftRight<24>(four)), d, to + 3 * kColumns);
}

#endif

// A group's values as [kSteps, kColumns].
HWY_INLINE void widen_group(const int8_t* values, Lane* to) {
  for (int64_t i = 0; i < kGroup; i += 4, values += 4 * kColumns, to += 4 / kStep * kColumns) {
    for (int64_t c = 0; c < kColumns; c += kLanes) {
      widen_four(hn::LoadU(Ints(), reinterpret_cast<const int32_t*>(values + 4 * c)), to + c);
    }
  }
}

// totals [kRows, kColumns] += s_w s_x Σ x w over one group; kVecs vectors of columns at a time.
template <int kRows, int kVecs>
HWY_INLINE void wide_tile(const Rounded& x, int64_t row, int64_t g, const Lane* wide, const float* scales,
                          float* totals) {
  const Floats d;
  const Lane* inputs = x.values + (row * x.groups + g) * kSteps;
  for (int64_t c = 0; c < kColumns; c += kVecs * kLanes) {
    Sum sum[kRows][kVecs];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) sum[r][v] = no_sum();
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < kSteps; ++i) {
      Sum weight[kVecs];
      for (int v = 0; v < kVecs; ++v) weight[v] = load_weights(wide + i * kColumns + c + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Lane input = inputs[r * x.groups * kSteps + i];
        for (int v = 0; v < kVecs; ++v) sum[r][v] = add_step(input, weight[v], sum[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const Vec factor = hn::Set(d, x.scales[(row + r) * x.groups + g]);
      for (int v = 0; v < kVecs; ++v) {
        float* to = totals + r * kColumns + c + v * kLanes;
        const Vec scaled = hn::Mul(value_of(sum[r][v]), hn::Load(d, scales + c + v * kLanes));
        hn::Store(hn::MulAdd(scaled, factor, hn::Load(d, to)), d, to);
      }
    }
  }
}

void multiply_part(const Part& part, const Rounded& x) {
  constexpr int kVecs = 2;
  const Floats d;
  Scratch scratch;
  auto* wide = reinterpret_cast<Lane*>(scratch.take(kSteps * kColumns));
  float *totals = scratch.take(part.rows * kColumns), *scales = scratch.take(kColumns);
  fill(totals, part.rows * kColumns, 0);
  const Int8Matrix& matrix = part.map->matrix;
  for (int64_t g = 0; g < x.groups; ++g) {
    const int64_t at = (part.block * x.groups + g) * kColumns;
    widen_group(matrix.values + at * kGroup, wide);
    for (int64_t c = 0; c < kColumns; c += kLanes) hn::Store(scales_of(matrix, at + c), d, scales + c);
    int64_t row = 0;
    for (; row + 4 <= part.rows; row += 4) {
      wide_tile<4, kVecs>(x, part.row + row, g, wide, scales, totals + row * kColumns);
    }
    for (; row < part.rows; ++row) {
      wide_tile<1, kVecs>(x, part.row + row, g, wide, scales, totals + row * kColumns);
    }
  }
  write_totals(part, 0, part.rows, totals);
}

#endif

// Tasks are blocks of all maps, each with its chunks of rows one after the other.
void multiply_task(const Int8Product& call, int64_t task) {
  const int64_t chunks = (call.rows + kTaskRows - 1) / kTaskRows, first = task % chunks * kTaskRows;
  int64_t block = task / chunks;
  const Int8Map* map = call.maps;
  for (; block >= map->matrix.blocks(); ++map) block -= map->matrix.blocks();
  const int64_t rows = call.rows - first < kTaskRows ? call.rows - first : kTaskRows;
  multiply_part({map, block, first, rows}, Rounded(call));
}

// --- Floating-point weights, a few rows. ---

// Four outputs of kRows rows.
template <class T, int kRows>
HWY_INLINE void short_tile(const ShortProduct& call, int64_t row, int64_t column) {
  const Floats d;
  const T* weight = static_cast<const T*>(call.weight) + column * call.w_row;
  const float* x = call.x + row * call.x_row;
  const int64_t outputs = call.out - column < 4 ? call.out - column : 4;
  const int64_t step[4] = {0, outputs > 1 ? call.w_row : 0, outputs > 2 ? 2 * call.w_row : 0,
                           outputs > 3 ? 3 * call.w_row : 0};
  Vec sum[kRows][4];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < 4; ++c) sum[r][c] = hn::Zero(d);
  }
  int64_t i = 0;
  for (; i + kLanes <= call.in; i += kLanes) {
    Vec input[kRows];
    for (int r = 0; r < kRows; ++r) input[r] = hn::LoadU(d, x + r * call.x_row + i);
    for (int c = 0; c < 4; ++c) {
      hwy::Prefetch(weight + (4 + c) * call.w_row + i);  // the next four outputs'
      const Vec w = load_vector(d, weight + step[c] + i);
      for (int r = 0; r < kRows; ++r) sum[r][c] = hn::MulAdd(input[r], w, sum[r][c]);
    }
  }
  if (i < call.in) {
    for (int c = 0; c < 4; ++c) {
      const Vec w = load_some(weight + step[c] + i, call.in - i);
      for (int r = 0; r < kRows; ++r) {
        sum[r][c] = hn::MulAdd(load_some(x + r * call.x_row + i, call.in - i), w, sum[r][c]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float all[4] = {};
    add_sums_of_four(d, sum[r], all);
    float* y = call.y + (row + r) * call.y_row + column;
    for (int64_t c = 0; c < outputs; ++c) y[c] = all[c] + (call.bias ? call.bias[column + c] : 0);
  }
}

template <class T>
void short_outputs(const ShortProduct& call, int64_t from, int64_t to) {
  for (int64_t column = from; column < to; column += 4) {
    int64_t row = 0;
    for (; row + 2 <= call.rows; row += 2) short_tile<T, 2>(call, row, column);
    if (row < call.rows) short_tile<T, 1>(call, row, column);
  }
}

void short_task(const ShortProduct& call, int64_t task) {
  const int64_t from = task * kShortOutputs, to = from + kShortOutputs < call.out ? from + kShortOutputs : call.out;
  if (call.type == Element::kFloat32) return short_outputs<float>(call, from, to);
  if (call.type == Element::kBFloat16) return short_outputs<BFloat16>(call, from, to);
  short_outputs<hwy::float16_t>(call, from, to);
}

#undef CORTADO_STEP

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::narrow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::narrow {

namespace {

// To the next bfloat16 above, so that no value leaves its range.
uint16_t scale_bits(float largest) {
  const float scale = largest / 127;
  uint32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  return static_cast<uint16_t>((bits + 0xFFFF) >> 16);
}

float wide_scale(uint16_t scale) {
  const uint32_t bits = static_cast<uint32_t>(scale) << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// n numbers of a group into places 4 · kColumns bytes apart, four at a time.
void pack_group(const float* from, int64_t n, int8_t* values, uint16_t& scale, int16_t& sum) {
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    const float size = fabsf(from[i]);
    finite = finite && size <= 3e38f;
    largest = size > largest ? size : largest;
  }
  scale = finite ? scale_bits(largest) : 0x7FC0;  // a NaN stays one
  const float inverse = finite && largest > 1e-30f ? 1 / wide_scale(scale) : 0;
  sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<int8_t>(finite ? lrintf(from[i] * inverse) : 0);
    values[i / 4 * 4 * kColumns + i % 4] = value;
    sum = static_cast<int16_t>(sum + value);
  }
}

HWY_EXPORT(round_rows);
HWY_EXPORT(multiply_task);
HWY_EXPORT(short_task);

}  // namespace

void pack_int8(const float* rows, int64_t stride, const Int8Matrix& to, int64_t block) {
  const int64_t groups = to.groups(), size = groups * kGroup * kColumns;
  int8_t* values = to.values + block * size;
  memset(values, 0, static_cast<size_t>(size));
  for (int64_t c = 0; c < kColumns; ++c) {
    const bool there = block * kColumns + c < to.out;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = (block * groups + g) * kColumns + c, left = to.in - g * kGroup;
      pack_group(rows + c * stride + g * kGroup,
                 !there          ? 0
                 : left < kGroup ? left
                                 : kGroup,
                 values + g * kGroup * kColumns + 4 * c, to.scales[at], to.sums[at]);
    }
  }
}

void unpack_int8(const Int8Matrix& from, int64_t row, float* to) {
  const int64_t block = row / kColumns, c = row % kColumns, groups = from.groups();
  const int8_t* values = from.values + block * groups * kGroup * kColumns + 4 * c;
  for (int64_t i = 0; i < from.in; ++i) {
    const float scale = wide_scale(from.scales[(block * groups + i / kGroup) * kColumns + c]);
    to[i] = scale * static_cast<float>(values[i / 4 * 4 * kColumns + i % 4]);
  }
}

void multiply_int8(const Int8Product& call, const Parallel& parallel) {
  if (call.rows == 0) return;
  kernels::run_tasks(call, (call.rows + kRoundedRows - 1) / kRoundedRows, parallel, &HWY_DYNAMIC_DISPATCH(round_rows));
  int64_t blocks = 0;
  for (int64_t i = 0; i < call.count; ++i) blocks += call.maps[i].matrix.blocks();
  kernels::run_tasks(call, blocks * ((call.rows + kTaskRows - 1) / kTaskRows), parallel,
                     &HWY_DYNAMIC_DISPATCH(multiply_task));
}

void multiply_short(const ShortProduct& call, const Parallel& parallel) {
  if (call.rows == 0) return;
  kernels::run_tasks(call, (call.out + kShortOutputs - 1) / kShortOutputs, parallel, &HWY_DYNAMIC_DISPATCH(short_task));
}

}  // namespace cortado::narrow
#endif
