// Products of rounded rows with 8- and 4-bit matrices. Sums within a group are exact and below 2^24, so results are
// equal on every instruction set. Part of kernel.cpp, compiled once per instruction set (hence the unusual guard).
#if defined(CORTADO_NARROW_INTEGERS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_NARROW_INTEGERS_INL_H
#undef CORTADO_NARROW_INTEGERS_INL_H
#else
#define CORTADO_NARROW_INTEGERS_INL_H
#endif

#include <hwy/cache_control.h>

#include "cortado/nn/narrow/rounding-inl.h"
#include "cortado/primitives/kernels/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::narrow {
namespace HWY_NAMESPACE {
namespace {

// 8 bits; 4 bits with a least number per group; 4 bits less 8.
enum class Form { kInt8, kInt4, kCentred };
constexpr int bits_of(Form form) { return form == Form::kInt8 ? 8 : 4; }

// For a matrix of kBits: inputs that share a scale, their steps, steps in a vector element's four bytes, and groups of
// the matrix per group of x.
template <int kBits>
struct Group {
  static constexpr int64_t kInputs = kGroup * kBits / 8, kOfSteps = kInputs / step_of(kBits),
                           kAtOnce = 32 / kBits / step_of(kBits), kInOne = 8 / kBits;
};

// A part of a call: rows [row, row + rows) times one block of a map's outputs.
struct Part {
  const Map* map;
  int64_t block, row, rows;
};

// Adds the bias to `rows` rows of totals [rows, kColumns] and writes them.
HWY_INLINE void write_totals(const Part& part, int64_t first, int64_t rows, const float* totals) {
  const Map& map = *part.map;
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

// Scales and least numbers of one group, for one vector of a block's columns.
struct Weights {
  Vec scale, least;
};
template <Form kForm>
HWY_INLINE Weights weights_of(const Matrix& matrix, int64_t at) {
  const Floats d;
  if constexpr (kForm == Form::kInt8) {
    return {load_vector(d, static_cast<const BFloat16*>(matrix.scales) + at), hn::Zero(d)};
  } else {
    const Vec scale = load_vector(d, static_cast<const hwy::float16_t*>(matrix.scales) + at);
    if constexpr (kForm == Form::kCentred) return {scale, hn::Zero(d)};
    return {scale, load_vector(d, reinterpret_cast<const hwy::float16_t*>(matrix.offsets) + at)};
  }
}

// Returns total + s_x (s_w Σ x w + m Σ x) for a group of a row; m is 0 if 8 has been subtracted from the values in
// Σ x w.
template <Form kForm>
HWY_INLINE Vec add_scaled(const Rounded& x, int64_t row, int64_t g, Vec sum, const Weights& w, Vec total) {
  using Of = Group<bits_of(kForm)>;
  const Floats d;
  const Vec factor = hn::Set(d, x.scales[row * x.groups + g / Of::kInOne]);
  total = hn::MulAdd(hn::Mul(sum, w.scale), factor, total);
  if constexpr (kForm != Form::kInt4) return total;
  return hn::MulAdd(w.least, hn::Set(d, x.sums[row * x.groups * Of::kInOne + g]), total);
}

#if CORTADO_STEP == 4

HWY_PUSH_ATTRIBUTES("avx512vnni")  // every AVX3_DL machine has it; this Highway does not declare it

constexpr int kVecs = kColumns / kLanes;

// The initial value of an 8-bit group's sum; corrects for x being 128 higher.
HWY_INLINE hn::Vec<Ints> first_sum(const Matrix& matrix, int64_t at) {
  const hn::Rebind<int16_t, Ints> halves;
  const auto* sums = reinterpret_cast<const int16_t*>(matrix.offsets) + at;
  return hn::Neg(hn::ShiftLeft<7>(hn::PromoteTo(Ints(), hn::LoadU(halves, sums))));
}

// Computes one group's Σ x w for kRows rows, whose values are `row` apart.
template <int kBits, int kRows>
HWY_INLINE void add_group(const Lane* inputs, int64_t row, const uint8_t* values, hn::Vec<Ints> (*sum)[kVecs]) {
  const Ints di;
  const auto low_halves = hn::Set(di, 0x0F0F0F0F);
  for (int64_t i = 0; i < Group<kBits>::kOfSteps; i += Group<kBits>::kAtOnce, values += 4 * kColumns) {
    hn::Vec<Ints> weight[kVecs], next[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      weight[v].raw = _mm512_loadu_si512(values + v * kLanes * 4);
      if (kRows == 1) hwy::Prefetch(values + v * kLanes * 4 + 4096);
      if constexpr (kBits == 4) {
        next[v] = hn::And(hn::ShiftRight<4>(weight[v]), low_halves);
        weight[v] = hn::And(weight[v], low_halves);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const Lane* own = inputs + r * row + i;
      for (int v = 0; v < kVecs; ++v) {
        if constexpr (kBits == 8) {
          sum[r][v].raw = _mm512_dpbusd_epi32(sum[r][v].raw, hn::Set(di, own[0]).raw, weight[v].raw);
        } else {
          sum[r][v].raw = _mm512_dpbusd_epi32(sum[r][v].raw, weight[v].raw, hn::Set(di, own[0]).raw);
          sum[r][v].raw = _mm512_dpbusd_epi32(sum[r][v].raw, next[v].raw, hn::Set(di, own[1]).raw);
        }
      }
    }
  }
}

// kRows rows times a block, over all groups. 8 bits: Σ_g s_w s_x (Σ (x + 128) w - 128 Σ w); 4 bits: Σ_g s_x (s_w Σ x w
// + m Σ x), or Σ_g s_x s_w (Σ x w - 8 Σ x).
template <Form kForm, int kRows>
HWY_NOINLINE void integer_tile(const Part& part, const Rounded& x, int64_t first) {
  constexpr int kBits = bits_of(kForm);
  using Of = Group<kBits>;
  const Floats d;
  const Matrix& matrix = part.map->matrix;
  const int64_t groups = matrix.groups(), row = part.row + first;
  const uint8_t* values = matrix.values + part.block * matrix.block_bytes();
  Vec total[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) total[r][v] = hn::Zero(d);
  }
  for (int64_t g = 0; g < groups; ++g, values += Of::kInputs * kColumns * kBits / 8) {
    const int64_t at = (part.block * groups + g) * kColumns;
    hn::Vec<Ints> sum[kRows][kVecs];
    for (int v = 0; v < kVecs; ++v) {
      auto begin = hn::Zero(Ints());
      if constexpr (kForm == Form::kInt8) begin = first_sum(matrix, at + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        sum[r][v] = kForm == Form::kCentred ? hn::Set(Ints(), x.shifts[(row + r) * x.groups * Of::kInOne + g]) : begin;
      }
    }
    add_group<kBits, kRows>(x.values + row * x.groups * x.steps + g * Of::kOfSteps, x.groups * x.steps, values, sum);
    for (int v = 0; v < kVecs; ++v) {
      const Weights w = weights_of<kForm>(matrix, at + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        total[r][v] = add_scaled<kForm>(x, row + r, g, hn::ConvertTo(d, sum[r][v]), w, total[r][v]);
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

template <Form kForm>
void multiply_part(const Part& part, const Rounded& x) {
  int64_t row = 0;
  for (; row + 6 <= part.rows; row += 6) integer_tile<kForm, 6>(part, x, row);
  switch (part.rows - row) {
    case 5:
      return integer_tile<kForm, 5>(part, x, row);
    case 4:
      return integer_tile<kForm, 4>(part, x, row);
    case 3:
      return integer_tile<kForm, 3>(part, x, row);
    case 2:
      return integer_tile<kForm, 2>(part, x, row);
    case 1:
      return integer_tile<kForm, 1>(part, x, row);
  }
}

#else

#if CORTADO_STEP == 2

using Step = hn::Vec<Ints>;
using Halves = hn::Repartition<int16_t, Ints>;

HWY_INLINE Step load_step(const Lane* from) { return hn::Load(Ints(), from); }
HWY_INLINE void store_step(Step step, Lane* to) { hn::Store(step, Ints(), to); }

HWY_INLINE Step add_pairs(hn::Vec<Halves> x, hn::Vec<Halves> y, Step sum) {
  Step none = hn::Zero(Ints());  // used on other architectures only
  return hn::ReorderWidenMulAccumulate(Ints(), x, y, sum, none);
}

// Multiplies and adds pairs of bytes; the first factor is unsigned. (This Highway has no name for it.)
HWY_INLINE hn::Vec<Halves> multiply_bytes(Step weight, Step x) {
  hn::Vec<Halves> products;
#if HWY_TARGET == HWY_AVX3
  products.raw = _mm512_maddubs_epi16(weight.raw, x.raw);
#elif HWY_TARGET == HWY_AVX2
  products.raw = _mm256_maddubs_epi16(weight.raw, x.raw);
#else
  products.raw = _mm_maddubs_epi16(weight.raw, x.raw);
#endif
  return products;
}

// A group's sum. 8 bits: in 32-bit lanes. 4 bits: as two 16-bit sums, each of eight products.
template <int kBits>
struct Sum {
  std::conditional_t<kBits == 8, Step, hn::Vec<Halves>> all;

  HWY_INLINE void clear() { all = hn::Zero(hn::DFromV<decltype(all)>()); }
  HWY_INLINE void add(Lane input, Step weight) {
    const Step x = hn::Set(Ints(), input);
    if constexpr (kBits == 8) {
      all = add_pairs(hn::BitCast(Halves(), x), hn::BitCast(Halves(), weight), all);
    } else {
      all = hn::Add(all, multiply_bytes(weight, x));
    }
  }
  HWY_INLINE Vec value() const {
    if constexpr (kBits == 8)
      return hn::ConvertTo(Floats(), all);
    else
      return hn::ConvertTo(Floats(), add_pairs(all, hn::Set(Halves(), int16_t{1}), hn::Zero(Ints())));
  }
};

// Calls put(step, number) for the inputs of a vector of columns; its bytes hold four or eight inputs.
template <int kBits, class Put>
HWY_INLINE void widen(Step four, const Put& put) {
  const Ints d;
  if constexpr (kBits == 8) {
    const auto bytes = hn::BitCast(Halves(), four);
    put(hn::BitCast(d, hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes))), 0);
    put(hn::BitCast(d, hn::ShiftRight<8>(bytes)), 1);
  } else {
    const auto low = hn::Set(d, 0x0F0F0F0F);
    put(hn::And(four, low), 0);
    put(hn::And(hn::ShiftRight<4>(four), low), 1);
  }
}

#else

using Step = Vec;

HWY_INLINE Step load_step(const Lane* from) { return hn::Load(Floats(), from); }
HWY_INLINE void store_step(Step step, Lane* to) { hn::Store(step, Floats(), to); }

template <int>
struct Sum {
  Vec all;

  HWY_INLINE void clear() { all = hn::Zero(Floats()); }
  HWY_INLINE void add(Lane input, Step weight) { all = hn::MulAdd(hn::Set(Floats(), input), weight, all); }
  HWY_INLINE Vec value() const { return all; }
};

template <int kBits, class Put>
HWY_INLINE void widen(hn::Vec<Ints> four, const Put& put) {
  const Floats d;
  if constexpr (kBits == 8) {
    put(hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<24>(four))), 0);
    put(hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<16>(four))), 1);
    put(hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<8>(four))), 2);
    put(hn::ConvertTo(d, hn::ShiftRight<24>(four)), 3);
  } else {
    const auto low = hn::Set(Ints(), 0x0F);
    put(hn::ConvertTo(d, hn::And(four, low)), 0);
    put(hn::ConvertTo(d, hn::And(hn::ShiftRight<8>(four), low)), 1);
    put(hn::ConvertTo(d, hn::And(hn::ShiftRight<16>(four), low)), 2);
    put(hn::ConvertTo(d, hn::And(hn::ShiftRight<24>(four), low)), 3);
    put(hn::ConvertTo(d, hn::And(hn::ShiftRight<4>(four), low)), 4);
    put(hn::ConvertTo(d, hn::And(hn::ShiftRight<12>(four), low)), 5);
    put(hn::ConvertTo(d, hn::And(hn::ShiftRight<20>(four), low)), 6);
    put(hn::ConvertTo(d, hn::And(hn::ShiftRight<28>(four), low)), 7);
  }
}

#endif

HWY_INLINE hn::Vec<Ints> load_bytes(const uint8_t* values) {
  return hn::LoadU(Ints(), reinterpret_cast<const int32_t*>(values));
}

// Unpacks a group's values to [steps, kColumns].
template <int kBits>
HWY_INLINE void widen_group(const uint8_t* values, Lane* to) {
  constexpr int64_t kAtOnce = Group<kBits>::kAtOnce;
  for (int64_t i = 0; i < Group<kBits>::kOfSteps; i += kAtOnce, values += 4 * kColumns, to += kAtOnce * kColumns) {
    for (int64_t c = 0; c < kColumns; c += kLanes) {
      widen<kBits>(load_bytes(values + 4 * c),
                   [&](Step step, int64_t n) HWY_ATTR { store_step(step, to + n * kColumns + c); });
    }
  }
}

// Adds a group's sum of one row, as it was computed, to the total.
template <Form kForm>
HWY_INLINE Vec add_sum(const Rounded& x, int64_t row, int64_t g, Vec sum, const Weights& w, Vec total) {
  if constexpr (kForm == Form::kCentred) {
    const int32_t shift = x.shifts[row * x.groups * Group<4>::kInOne + g];
    sum = hn::Add(sum, hn::Set(Floats(), static_cast<float>(shift)));  // exact: below 2^24
  }
  return add_scaled<kForm>(x, row, g, sum, w, total);
}

// One row times a block, without storing the unpacked values.
template <Form kForm>
void multiply_row(const Part& part, const Rounded& x) {
  constexpr int kBits = bits_of(kForm);
  using Of = Group<kBits>;
  constexpr int64_t kVecs = kColumns / kLanes;
  const Floats d;
  const Matrix& matrix = part.map->matrix;
  const uint8_t* values = matrix.values + part.block * matrix.block_bytes();
  const Lane* inputs = x.values + part.row * x.groups * x.steps;
  Vec total[kVecs];
  for (Vec& one : total) one = hn::Zero(d);
  for (int64_t g = 0, groups = matrix.groups(); g < groups; ++g) {
    Sum<kBits> sum[kVecs];
    for (auto& one : sum) one.clear();
    for (int64_t i = 0; i < Of::kOfSteps; i += Of::kAtOnce, values += 4 * kColumns, inputs += Of::kAtOnce) {
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVecs; ++v) {
        widen<kBits>(load_bytes(values + 4 * v * kLanes),
                     [&](Step step, int64_t n) HWY_ATTR { sum[v].add(inputs[n], step); });
      }
    }
    for (int64_t v = 0; v < kVecs; ++v) {
      const int64_t at = (part.block * groups + g) * kColumns + v * kLanes;
      total[v] = add_sum<kForm>(x, part.row, g, sum[v].value(), weights_of<kForm>(matrix, at), total[v]);
    }
  }
  HWY_ALIGN float totals[kColumns];
  for (int64_t v = 0; v < kVecs; ++v) hn::Store(total[v], d, totals + v * kLanes);
  write_totals(part, 0, 1, totals);
}

// One group of a block, unpacked: values [steps, kColumns], scales and least numbers [kColumns].
struct WideGroup {
  Lane* values;
  float *scales, *leasts;
};

// totals [kRows, kColumns] += s_x (s_w Σ x w + m Σ x) for group g, kVecs vectors of columns at a time.
template <Form kForm, int kRows, int kVecs>
HWY_INLINE void wide_tile(const Rounded& x, int64_t row, int64_t g, const WideGroup& wide, float* totals) {
  constexpr int kBits = bits_of(kForm);
  using Of = Group<kBits>;
  const Floats d;
  const Lane* inputs = x.values + row * x.groups * x.steps + g * Of::kOfSteps;
  for (int64_t c = 0; c < kColumns; c += kVecs * kLanes) {
    Sum<kBits> sum[kRows][kVecs];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) sum[r][v].clear();
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < Of::kOfSteps; ++i) {
      Step weight[kVecs];
      for (int v = 0; v < kVecs; ++v) weight[v] = load_step(wide.values + i * kColumns + c + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Lane input = inputs[r * x.groups * x.steps + i];
        for (int v = 0; v < kVecs; ++v) sum[r][v].add(input, weight[v]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) {
        const int64_t at = c + v * kLanes;
        float* to = totals + r * kColumns + at;
        const Weights w{hn::Load(d, wide.scales + at), hn::Load(d, wide.leasts + at)};
        hn::Store(add_sum<kForm>(x, row + r, g, sum[r][v].value(), w, hn::Load(d, to)), d, to);
      }
    }
  }
}

template <Form kForm>
void multiply_part(const Part& part, const Rounded& x) {
  if (part.rows == 1) return multiply_row<kForm>(part, x);
  constexpr int kBits = bits_of(kForm), kVecs = 2;
  constexpr int64_t kBytes = Group<kBits>::kInputs * kColumns * kBits / 8;
  const Floats d;
  Scratch scratch;
  const WideGroup wide{reinterpret_cast<Lane*>(scratch.take(kGroup * kColumns)), scratch.take(kColumns),
                       scratch.take(kColumns)};
  float* totals = scratch.take(part.rows * kColumns);
  fill(totals, part.rows * kColumns, 0);
  const Matrix& matrix = part.map->matrix;
  const int64_t groups = matrix.groups();
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t number = part.block * groups + g, at = number * kColumns;
    widen_group<kBits>(matrix.values + number * kBytes, wide.values);
    for (int64_t c = 0; c < kColumns; c += kLanes) {
      const Weights w = weights_of<kForm>(matrix, at + c);
      hn::Store(w.scale, d, wide.scales + c);
      hn::Store(w.least, d, wide.leasts + c);
    }
    int64_t row = 0;
    for (; row + 4 <= part.rows; row += 4) {
      wide_tile<kForm, 4, kVecs>(x, part.row + row, g, wide, totals + row * kColumns);
    }
    for (; row < part.rows; ++row) {
      wide_tile<kForm, 1, kVecs>(x, part.row + row, g, wide, totals + row * kColumns);
    }
  }
  write_totals(part, 0, part.rows, totals);
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::narrow
HWY_AFTER_NAMESPACE();

#endif
