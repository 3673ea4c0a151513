// Rounds the rows of x to int8, for products with narrow matrices. Part of kernel.cpp, compiled once per instruction
// set (hence the unusual guard).
#if defined(CORTADO_NARROW_ROUNDING_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_NARROW_ROUNDING_INL_H
#undef CORTADO_NARROW_ROUNDING_INL_H
#else
#define CORTADO_NARROW_ROUNDING_INL_H
#endif

#include "cortado/nn/narrow/kernel.h"
#include "cortado/primitives/kernels/tiles-inl.h"

// Inputs per step with an 8-bit matrix: as many as one instruction multiplies and adds into a 32-bit lane. With a 4-bit
// matrix a step has four inputs on every x86, because eight such products fit into 16 bits.
#undef CORTADO_STEP
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL
#define CORTADO_STEP 4
#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_SSE4
#define CORTADO_STEP 2
#else
#define CORTADO_STEP 1
#endif

HWY_BEFORE_NAMESPACE();
namespace cortado::narrow {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;
using Ints = hn::RebindToSigned<Floats>;

constexpr int64_t step_of(int bits) { return CORTADO_STEP == 1 || bits == 8 ? CORTADO_STEP : 4; }
#if CORTADO_STEP == 1
using Lane = float;
#else
using Lane = int32_t;
#endif

// Shared by a call's tasks: the rounded rows, their scales, and for 4-bit matrices the sum of each half group: times the
// scale, and times -8 as an integer. For 6-bit matrices the integer sum of each 16 inputs times -32.
// Four-byte steps multiply unsigned by signed: the 4-bit matrix is unsigned; with 8 bits the rows are, offset by 128.
struct Rounded {
  Lane* values;     // [rows, groups · steps]
  float* scales;    // [rows, groups]
  float* sums;      // [rows, groups, 2], or null
  int32_t* shifts;  // likewise; 6 bits: [rows, groups, 4]
  int64_t groups, steps;
  int bits;
  Rounded(const Product& call) : values(reinterpret_cast<Lane*>(call.room)), groups((call.in + kGroup - 1) / kGroup) {
    bits = call.maps->matrix.bits;
    scales = call.room + call.rows * groups * kGroup;
    sums = bits == 4 ? scales + call.rows * groups : nullptr;
    shifts = reinterpret_cast<int32_t*>(scales + (bits == 4 ? 3 : 1) * call.rows * groups);
    steps = kGroup / step_of(bits);
  }
};

#if CORTADO_STEP == 1

// Stores two vectors of inputs as steps.
HWY_INLINE void store_rounded(const Rounded&, hn::Vec<Ints> first, hn::Vec<Ints> second, Lane* to) {
  hn::StoreU(hn::ConvertTo(Floats(), first), Floats(), to);
  hn::StoreU(hn::ConvertTo(Floats(), second), Floats(), to + kLanes);
}

#else

HWY_INLINE void store_bytes(hn::Vec<Ints> q, bool higher, uint8_t* to) {
  const hn::Rebind<uint8_t, Floats> bytes;
  const hn::Rebind<int8_t, Floats> with_signs;
  if (higher) return hn::StoreU(hn::DemoteTo(bytes, hn::Add(q, hn::Set(Ints(), 128))), bytes, to);
  hn::StoreU(hn::DemoteTo(with_signs, q), with_signs, reinterpret_cast<int8_t*>(to));
}

// Splits every four inputs into the even and the odd ones, the order in which a weight's four bytes are unpacked.
HWY_INLINE void store_pairs(hn::Vec<Ints> first, hn::Vec<Ints> second, Lane* to) {
  const Ints d;
  const hn::Repartition<uint64_t, Ints> twos;
  const auto pairs = [&](hn::Vec<Ints> q) HWY_ATTR {
    const auto low = hn::And(q, hn::Set(d, 0xFFFF)), high = hn::ShiftLeft<16>(hn::Shuffle1032(q));
    return hn::BitCast(twos, hn::Or(low, high));  // in the first half of every four lanes
  };
  hn::StoreU(hn::BitCast(d, hn::ConcatEven(twos, pairs(second), pairs(first))), d, to);
}

// Stores two vectors of inputs as steps.
HWY_INLINE void store_rounded(const Rounded& x, hn::Vec<Ints> first, hn::Vec<Ints> second, Lane* to) {
  const bool of_eight = x.bits == 8;
  if (of_eight && step_of(8) == 2) return store_pairs(first, second, to);
  auto* bytes = reinterpret_cast<uint8_t*>(to);
  store_bytes(first, of_eight, bytes);
  store_bytes(second, of_eight, bytes + kLanes);
}

#endif

// Rounds one group, number `at` of all, with zeros after its end. If a number is not finite, neither is the scale.
HWY_INLINE void round_group(const float* x, const Rounded& to, int64_t at) {
  const Floats d;
  const Ints di;
  Vec largest = hn::Zero(d), poison = hn::Zero(d);
  for (int64_t i = 0; i < kGroup; i += kLanes) {
    const Vec part = hn::LoadU(d, x + i);
    largest = hn::Max(largest, hn::Abs(part));
    poison = hn::MulAdd(part, hn::Zero(d), poison);
  }
  const float most = hn::GetLane(hn::MaxOfLanes(d, largest)), nan = hn::GetLane(hn::SumOfLanes(d, poison));
  const float scale = to.scales[at] = most / 127 + nan;
  const Vec inverse = hn::Set(d, nan == 0 && most > 1e-30f ? 127 / most : 0);
  const auto rounded = [&](int64_t i) HWY_ATTR {
    const Vec part = nan == 0 ? hn::LoadU(d, x + i) : hn::Zero(d);
    return hn::NearestInt(hn::Mul(part, inverse));
  };
  for (int64_t half = 0; half < 2; ++half) {
    auto sum = hn::Zero(di);
    for (int64_t i = half * kGroup / 2; i < (half + 1) * kGroup / 2; i += 2 * kLanes) {
      const auto first = rounded(i), second = rounded(i + kLanes);
      store_rounded(to, first, second, to.values + at * to.steps + i * to.steps / kGroup);
      sum = hn::Add(sum, hn::Add(first, second));
    }
    if (to.sums) {
      const int32_t all = hn::GetLane(hn::SumOfLanes(di, sum));
      to.sums[2 * at + half] = scale * static_cast<float>(all);
      to.shifts[2 * at + half] = -8 * all;
    }
  }
}

// Number i of a rounded row.
HWY_INLINE int32_t rounded_input(const Rounded& x, int64_t row, int64_t i) {
  const Lane* inputs = x.values + row * x.groups * x.steps;
#if CORTADO_STEP == 1
  return static_cast<int32_t>(inputs[i]);
#else
  return reinterpret_cast<const int8_t*>(inputs)[i];
#endif
}

// For 6 bits.
HWY_INLINE void sum_sixteens(const Rounded& to, int64_t row, int64_t g) {
  for (int64_t part = 0; part < kGroup / kSixGroup; ++part) {
    int32_t sum = 0;
    for (int64_t i = 0; i < kSixGroup; ++i) sum += rounded_input(to, row, g * kGroup + part * kSixGroup + i);
    to.shifts[(row * to.groups + g) * (kGroup / kSixGroup) + part] = -32 * sum;
  }
}

void round_rows(const Product& call, int64_t block) {
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
      round_group(n < kGroup ? part : x + g * kGroup, to, row * to.groups + g);
      if (to.bits == 6) sum_sixteens(to, row, g);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::narrow
HWY_AFTER_NAMESPACE();

#endif
