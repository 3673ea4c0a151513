// A transposed copy. Part of kernels' files, compiled once for each instruction set (hence the unusual guard).
#if defined(CORTADO_KERNELS_TRANSPOSE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_KERNELS_TRANSPOSE_INL_H
#undef CORTADO_KERNELS_TRANSPOSE_INL_H
#else
#define CORTADO_KERNELS_TRANSPOSE_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cortado::kernels {
namespace HWY_NAMESPACE {
namespace {

// turned [columns, rows] of the first `columns` of from [rows, width]; four by four where there is a vector of four.
template <int64_t kRows>
void transpose(const float* from, int64_t width, int64_t columns, float* turned) {
  namespace hn = hwy::HWY_NAMESPACE;
  static_assert(kRows % 4 == 0);
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> pairs;
  const auto halves = [&](auto a, auto b, float* lower, float* upper) HWY_ATTR {
    const auto x = hn::BitCast(pairs, a), y = hn::BitCast(pairs, b);
    hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, x, y)), d, lower);
    hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, x, y)), d, upper);
  };
  for (; i + 4 <= columns; i += 4) {
    for (int64_t j = 0; j < kRows; j += 4) {
      const float* at = from + j * width + i;
      const auto a = hn::LoadU(d, at), b = hn::LoadU(d, at + width);
      const auto e = hn::LoadU(d, at + 2 * width), f = hn::LoadU(d, at + 3 * width);
      float* to = turned + i * kRows + j;
      halves(hn::InterleaveLower(d, a, b), hn::InterleaveLower(d, e, f), to, to + kRows);
      halves(hn::InterleaveUpper(d, a, b), hn::InterleaveUpper(d, e, f), to + 2 * kRows, to + 3 * kRows);
    }
  }
#endif
  for (; i < columns; ++i) {
    for (int64_t j = 0; j < kRows; ++j) turned[i * kRows + j] = from[j * width + i];
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::kernels
HWY_AFTER_NAMESPACE();

#endif
