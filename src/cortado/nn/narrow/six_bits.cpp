#include "cortado/nn/narrow/six_bits.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace cortado::narrow {
namespace {

constexpr int64_t kParts = kSixBlock / kSixGroup;

// x to the nearest whole number, for |x| up to 2^22; without a call, so that loops over numbers can run in vectors. Callers
// test whether the result is exact, which a larger one is not.
float whole_near(float x) {
  constexpr float kBig = 12582912.0F;  // 1.5 · 2^23: what is added to it loses its fraction
  return (x + kBig) - kBig;
}

// The largest of 16 numbers' sizes.
float largest_of(const float* x) {
  float largest = 0;
  for (int64_t i = 0; i < kSixGroup; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest;
}

// The finest step of which 16 numbers are whole multiples, up to 32; 0 if all are 0, infinite if there is none.
float step_of_sixteen(const float* x) {
  const float largest = largest_of(x);
  if (largest == 0) return 0;
  for (int multiple = 32; multiple > 0; --multiple) {
    const float step = largest / static_cast<float>(multiple), inverse = 1 / step;
    int off = 0;  // numbers that are no multiples
    for (int64_t i = 0; i < kSixGroup; ++i) off += whole_near(x[i] * inverse) * step != x[i];  // exact: short factors
    if (off == 0) return step;
  }
  return INFINITY;
}

// Writes x = unit · scale · (value - 32) for 16 numbers; false if they are no such products.
bool factor(const float* x, float unit, int8_t& scale, uint8_t* values) {
  const float inverse = 1 / unit;
  std::array<int, kSixGroup> whole{};
  int common = 0, least = 0, most = 0;
  for (int64_t i = 0; i < kSixGroup; ++i) {
    const float at = whole_near(x[i] * inverse);
    if (!(std::abs(at) <= 4096) || at * unit != x[i]) return false;
    whole[i] = static_cast<int>(at);
    common = std::gcd(common, whole[i]);
    least = std::min(least, whole[i]);
    most = std::max(most, whole[i]);
  }
  int found = 0;
  for (int divisor = std::min(common, 128); divisor > 0 && found == 0; --divisor) {
    if (common % divisor != 0) continue;
    if (divisor < 128 && least >= -32 * divisor && most <= 31 * divisor) found = divisor;
    if (found == 0 && least >= -31 * divisor && most <= 32 * divisor) found = -divisor;
  }
  if (common != 0 && found == 0) return false;
  scale = static_cast<int8_t>(found);
  for (int64_t i = 0; i < kSixGroup; ++i) values[i] = static_cast<uint8_t>(32 + (found == 0 ? 0 : whole[i] / found));
  return true;
}

std::optional<SixBits> with_unit(const float* x, float unit) {
  SixBits found;
  found.unit = unit;
  if (static_cast<float>(found.unit) != unit) return std::nullopt;
  for (int64_t part = 0; part < kParts; ++part) {
    const int64_t at = part * kSixGroup;
    if (!factor(x + at, unit, found.scales[part], found.values.data() + at)) return std::nullopt;
  }
  return found;
}

}  // namespace

std::optional<SixBits> six_bits_of(const float* x) {
  std::array<float, kParts> steps{};
  for (int64_t part = 0; part < kParts; ++part) {
    steps[part] = step_of_sixteen(x + part * kSixGroup);
    if (std::isinf(steps[part])) return std::nullopt;
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  if (steps[0] == 0) {
    SixBits zero;
    zero.values.fill(32);
    return zero;
  }
  // The quantizer makes the largest scale -128; the unit has either sign. A step may be too fine, if its multiples have
  // a common divisor.
  for (size_t i = 0; i < steps.size() && steps[i] > 0; ++i) {
    for (const float factor : {-1.0F, 1.0F, -2.0F, 2.0F, -4.0F, 4.0F}) {
      if (const auto found = with_unit(x, steps[i] * factor / 128)) return found;
    }
  }
  return std::nullopt;
}

}  // namespace cortado::narrow
