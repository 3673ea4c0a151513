// Products of rounded rows with 6-bit matrices. Sums within 64 inputs are exact integers. Part of kernel.cpp, compiled
// once per instruction set (hence the unusual guard).
#if defined(CORTADO_NARROW_SIX_BITS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_NARROW_SIX_BITS_INL_H
#undef CORTADO_NARROW_SIX_BITS_INL_H
#else
#define CORTADO_NARROW_SIX_BITS_INL_H
#endif

#include "cortado/nn/narrow/integers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::narrow {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kSixteens = kGroup / kSixGroup;  // per group of x

// The parts of a block's matrix that 16 inputs need, number `at` of all, and d of the group g of x.
HWY_INLINE const uint8_t* six_values(const Part& part, int64_t at) {
  return part.map->matrix.values + part.block * part.map->matrix.block_bytes() + at * kSixBytes;
}
HWY_INLINE const int8_t* six_scales(const Part& part, int64_t at) {
  const Matrix& matrix = part.map->matrix;
  return static_cast<const int8_t*>(matrix.scales) + (part.block * matrix.groups() + at) * kColumns;
}
HWY_INLINE const hwy::float16_t* six_units(const Part& part, int64_t g) {
  const Matrix& matrix = part.map->matrix;
  const int64_t at = part.block * (matrix.inputs() / kSixBlock) + g * kGroup / kSixBlock;
  return reinterpret_cast<const hwy::float16_t*>(matrix.offsets) + at * kColumns;
}

#if CORTADO_STEP == 4

HWY_PUSH_ATTRIBUTES("avx512vnni")

// One vector of columns, 16 inputs: the four times four values of each column.
struct SixValues {
  hn::Vec<Ints> fours[4];
};
HWY_INLINE SixValues unpack_six(const uint8_t* bytes) {
  const Ints d;
  const auto four_bits = hn::Set(d, 0x0F0F0F0F), two_bits = hn::Set(d, 0x30303030);
  hn::Vec<Ints> first, second, upper;
  first.raw = _mm512_loadu_si512(bytes);
  second.raw = _mm512_loadu_si512(bytes + 4 * kColumns);
  upper.raw = _mm512_loadu_si512(bytes + 8 * kColumns);
  const auto joined = [&](hn::Vec<Ints> low, hn::Vec<Ints> high)
                          HWY_ATTR { return hn::Or(hn::And(low, four_bits), hn::And(high, two_bits)); };
  return {{joined(first, hn::ShiftLeft<4>(upper)), joined(hn::ShiftRight<4>(first), hn::ShiftLeft<2>(upper)),
           joined(second, upper), joined(hn::ShiftRight<4>(second), hn::ShiftRight<2>(upper))}};
}

// kRows rows times a block: Σ_g s_x d Σ_16 scale (Σ x value - 32 Σ x).
template <int kRows>
HWY_NOINLINE void six_tile(const Part& part, const Rounded& x, int64_t first) {
  const Floats d;
  const Ints di;
  const int64_t row = part.row + first;
  Vec total[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) total[r][v] = hn::Zero(d);
  }
  for (int64_t g = 0; g < x.groups; ++g) {
    hn::Vec<Ints> all[kRows][kVecs];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) all[r][v] = hn::Zero(di);
    }
    for (int64_t at = g * kSixteens; at < (g + 1) * kSixteens; ++at) {
      const uint8_t* bytes = six_values(part, at);
      for (int i = 0; i < 6 && kRows == 1; ++i) hwy::Prefetch(bytes + i * 64 + 4096);
      for (int v = 0; v < kVecs; ++v) {
        const SixValues weight = unpack_six(bytes + v * kLanes * 4);
        const auto scale = hn::PromoteTo(di, hn::LoadU(hn::Rebind<int8_t, Ints>(), six_scales(part, at) + v * kLanes));
        for (int r = 0; r < kRows; ++r) {
          const Lane* own = x.values + (row + r) * x.groups * x.steps + at * 4;
          auto sum = hn::Set(di, x.shifts[(row + r) * x.groups * kSixteens + at]);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            sum.raw = _mm512_dpbusd_epi32(sum.raw, weight.fours[i].raw, hn::Set(di, own[i]).raw);
          }
          all[r][v] = hn::Add(all[r][v], hn::Mul(sum, scale));
        }
      }
    }
    for (int v = 0; v < kVecs; ++v) {
      const Vec unit = load_vector(d, six_units(part, g) + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vec scale = hn::Set(d, x.scales[(row + r) * x.groups + g]);
        total[r][v] = hn::MulAdd(hn::Mul(hn::ConvertTo(d, all[r][v]), unit), scale, total[r][v]);
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

void multiply_six(const Part& part, const Rounded& x) {
  int64_t row = 0;
  for (; row + 4 <= part.rows; row += 4) six_tile<4>(part, x, row);
  for (; row < part.rows; ++row) six_tile<1>(part, x, row);
}

#else

// As above, column by column: the definition, for machines without VNNI.
void multiply_six(const Part& part, const Rounded& x) {
  const Floats d;
  HWY_ALIGN float totals[kColumns], unit[kColumns];
  HWY_ALIGN int32_t all[kColumns];
  for (int64_t r = 0; r < part.rows; ++r) {
    const int64_t row = part.row + r;
    fill(totals, kColumns, 0);
    for (int64_t g = 0; g < x.groups; ++g) {
      for (int64_t c = 0; c < kColumns; ++c) all[c] = 0;
      for (int64_t at = g * kSixteens; at < (g + 1) * kSixteens; ++at) {
        const uint8_t* bytes = six_values(part, at);
        for (int64_t c = 0; c < kColumns; ++c) {
          int32_t sum = x.shifts[row * x.groups * kSixteens + at];
          for (int64_t i = 0; i < kSixGroup; ++i) {
            const int64_t four = i / 4, place = 4 * c + i % 4;
            const int low = bytes[four / 2 * 4 * kColumns + place] >> four % 2 * 4 & 15;
            const int value = low | (bytes[8 * kColumns + place] >> 2 * four & 3) << 4;
            sum += value * rounded_input(x, row, at * kSixGroup + i);
          }
          all[c] += sum * six_scales(part, at)[c];
        }
      }
      read_row(six_units(part, g), 1, kColumns, 1.0f, unit, kColumns);
      const Vec scale = hn::Set(d, x.scales[row * x.groups + g]);
      for (int64_t c = 0; c < kColumns; c += kLanes) {
        const Vec sum = hn::Mul(hn::ConvertTo(d, hn::Load(Ints(), all + c)), hn::Load(d, unit + c));
        hn::Store(hn::MulAdd(sum, scale, hn::Load(d, totals + c)), d, totals + c);
      }
    }
    write_totals(part, r, 1, totals);
  }
}

#endif

#undef CORTADO_STEP

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::narrow
HWY_AFTER_NAMESPACE();

#endif
