// Building blocks of the CPU kernels: reading and writing rows of any type, exp and similar functions. Compiled once
// per instruction set (hence the unusual guard), everything with internal linkage.
//
// A tile is kTokens rows of time. Buffers are aligned float32. Their rows are padded to whole vectors with zeros, so
// that the functions below need no tail loops.
#if defined(CORTADO_KERNELS_TILES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_KERNELS_TILES_INL_H
#undef CORTADO_KERNELS_TILES_INL_H
#else
#define CORTADO_KERNELS_TILES_INL_H
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>
#if HWY_ARCH_X86
#include <xmmintrin.h>
#endif

#include "cortado/primitives/kernels/kernel.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::kernels {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vec = hn::Vec<Floats>;

constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Floats()));
constexpr int64_t kTokens = 16;  // per tile; every vector length divides it
// Rows of a product held in registers, with two vectors each, or twice as many rows with one vector: as many as there
// are registers for.
constexpr int64_t kTileRows = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON ? 8 : 4;

constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

HWY_INLINE void fill(float* to, int64_t n, float value) {
  const Floats d;
  for (int64_t i = 0; i < n; i += kLanes) hn::Store(hn::Set(d, value), d, to + i);
}

HWY_INLINE void copy(const float* from, int64_t n, float* to) {
  const Floats d;
  for (int64_t i = 0; i < n; i += kLanes) hn::Store(hn::Load(d, from + i), d, to + i);
}

// Flushes denormals to zero on this thread while an object lives: a decaying state would otherwise take a hundred times
// the time.
class FlushDenormals {
#if HWY_ARCH_X86
 public:
  FlushDenormals() { _mm_setcsr(before_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  const unsigned before_ = _mm_getcsr();
#else
 public:
  FlushDenormals() {}
#endif
};

// --- Types. ---

struct BFloat16 {
  uint16_t bits;
};

HWY_INLINE Vec load_vector(Floats d, const float* from) { return hn::LoadU(d, from); }
HWY_INLINE Vec load_vector(Floats d, const BFloat16* from) {
  const hn::Rebind<uint16_t, Floats> d16;
  const hn::RebindToUnsigned<Floats> d32;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}
HWY_INLINE Vec load_vector(Floats d, const hwy::float16_t* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, Floats>(), from));
}

HWY_INLINE void store_vector(Floats d, Vec x, float* to) { hn::StoreU(x, d, to); }
HWY_INLINE void store_vector(Floats d, Vec x, BFloat16* to) {  // to the nearest, ties to even
  const hn::RebindToUnsigned<Floats> d32;
  const auto bits = hn::BitCast(d32, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFF)));
  const auto nan = hn::BitCast(d32, hn::IfThenElseZero(hn::Ne(x, x), hn::BitCast(d, hn::Set(d32, 0x400000))));
  const auto top = hn::ShiftRight<16>(hn::IfThenElse(hn::Ne(nan, hn::Zero(d32)), hn::Or(bits, nan), rounded));
  const hn::RebindToSigned<Floats> d32s;
  const hn::Rebind<uint16_t, Floats> d16;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(d32s, top)), d16, reinterpret_cast<uint16_t*>(to));
}
HWY_INLINE void store_vector(Floats, Vec x, hwy::float16_t* to) {
  const hn::Rebind<hwy::float16_t, Floats> d16;
  hn::StoreU(hn::DemoteTo(d16, x), d16, to);
}

template <class T>
HWY_INLINE void copy_elements(const T* from, int64_t stride, T* to, int64_t to_stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i * to_stride] = from[i * stride];
}

// Prefetches n contiguous elements.
template <class T>
HWY_INLINE void prefetch_row(const T* from, int64_t n) {
  constexpr auto kLine = static_cast<int64_t>(64 / sizeof(T));
  for (int64_t i = 0; i < n; i += kLine) hwy::Prefetch(from + i);
}

// Loads n <= kLanes elements; n == kLanes is the fast path.
template <class T>
HWY_INLINE Vec load_some(const T* from, int64_t n) {
  const Floats d;
  if (n == kLanes) return load_vector(d, from);
  T part[kLanes] = {};
  copy_elements(from, 1, part, 1, n);
  return load_vector(d, part);
}

template <class T>
HWY_INLINE void store_some(Vec x, T* to, int64_t n) {
  const Floats d;
  if (n == kLanes) return store_vector(d, x, to);
  T part[kLanes];
  store_vector(d, x, part);
  copy_elements(part, 1, to, 1, n);
}

// Reads n elements `stride` apart, times `factor`, and fills with zeros up to `padded`.
template <class T>
HWY_INLINE void read_row(const T* from, int64_t stride, int64_t n, float factor, float* to, int64_t padded) {
  const Floats d;
  const Vec times = hn::Set(d, factor);
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= n; i += kLanes) hn::Store(hn::Mul(load_vector(d, from + i), times), d, to + i);
  }
  for (; i < padded; i += kLanes) {
    T part[kLanes] = {};
    const int64_t rest = n - i < kLanes ? n - i : kLanes;
    copy_elements(from + i * stride, stride, part, 1, rest);
    hn::Store(hn::Mul(load_vector(d, part), times), d, to + i);
  }
}

template <class T>
HWY_INLINE void write_row(const float* from, T* to, int64_t stride, int64_t n) {
  const Floats d;
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= n; i += kLanes) store_vector(d, hn::Load(d, from + i), to + i);
  }
  for (; i < n; i += kLanes) {
    T part[kLanes];
    store_vector(d, hn::Load(d, from + i), part);
    copy_elements(part, 1, to + i * stride, stride, n - i < kLanes ? n - i : kLanes);
  }
}

// --- A stretch of time of one row and head. ---

// Token i of the stretch lies at `first + i · step` (step 1, or -1 if time runs backwards).
struct Stretch {
  int64_t row, head, first, step, tokens;
};

// `units`: elements of T per element of x.
template <class T>
T* address(const Timed& x, const Stretch& at, int64_t column, int64_t units = 1) {
  return static_cast<T*>(x.data) +
         units * (at.row * x.row + at.first * x.token + at.head / x.repeat * x.head + column * x.inner);
}

template <class T>
HWY_NOINLINE void read_tile_as(const Timed& x, const Stretch& at, int64_t column, int64_t n, float factor, float* to,
                               int64_t width) {
  const T* from = address<T>(x, at, column);
  const int64_t step = at.step * x.token;
  fill(to + at.tokens * width, (kTokens - at.tokens) * width, 0);
  if (x.inner == 1 && n == width) {  // whole vectors
    const Floats d;
    const Vec times = hn::Set(d, factor);
    for (const float* end = to + at.tokens * width; to < end; to += width, from += step) {
      for (int64_t i = 0; i < width; i += kLanes) hn::Store(hn::Mul(load_vector(d, from + i), times), d, to + i);
    }
    return;
  }
  for (int64_t t = 0; t < at.tokens; ++t) read_row(from + t * step, x.inner, n, factor, to + t * width, width);
}

// Reads columns [column, column + n) of the stretch's at most kTokens tokens, times `factor`, as a tile [kTokens,
// width] padded with zeros.
inline void read_tile(const Timed& x, const Stretch& at, int64_t column, int64_t n, float factor, float* to,
                      int64_t width) {
  if (x.type == Element::kFloat32) return read_tile_as<float>(x, at, column, n, factor, to, width);
  if (x.type == Element::kBFloat16) return read_tile_as<BFloat16>(x, at, column, n, factor, to, width);
  read_tile_as<hwy::float16_t>(x, at, column, n, factor, to, width);
}

template <class T>
HWY_NOINLINE void write_tile_as(const float* from, int64_t width, const Timed& x, const Stretch& at, int64_t column,
                                int64_t n) {
  T* to = address<T>(x, at, column);
  const int64_t step = at.step * x.token;
  if (x.inner == 1 && n == width) {
    const Floats d;
    for (const float* end = from + at.tokens * width; from < end; from += width, to += step) {
      for (int64_t i = 0; i < width; i += kLanes) store_vector(d, hn::Load(d, from + i), to + i);
    }
    return;
  }
  for (int64_t t = 0; t < at.tokens; ++t) write_row(from + t * width, to + t * step, x.inner, n);
}

// Returns the address of such a tile if it can be used in place, with rows `step · x.token` apart: it must be float32
// with aligned whole vectors. Else returns null.
inline float* tile_in_place(const Timed& x, const Stretch& at, int64_t column, int64_t n, int64_t width) {
  float* data = address<float>(x, at, column);
  const bool fits = x.type == Element::kFloat32 && x.inner == 1 && n == width && at.tokens == kTokens;
  if (!fits || x.token % kLanes != 0 || reinterpret_cast<uintptr_t>(data) % (kLanes * sizeof(float)) != 0) {
    return nullptr;
  }
  return data;
}

// The inverse of read_tile. Does nothing if x has no data (not wanted).
inline void write_tile(const float* from, int64_t width, const Timed& x, const Stretch& at, int64_t column, int64_t n) {
  if (!x.data) return;
  if (x.type == Element::kFloat32) return write_tile_as<float>(from, width, x, at, column, n);
  if (x.type == Element::kBFloat16) return write_tile_as<BFloat16>(from, width, x, at, column, n);
  write_tile_as<hwy::float16_t>(from, width, x, at, column, n);
}

// Reads one number per token of the stretch, then zeros up to kTokens.
inline void read_numbers(const Timed& x, const Stretch& at, float* to) {
  const int64_t step = at.step * x.token;
  if (x.type == Element::kFloat32) return read_row(address<float>(x, at, 0), step, at.tokens, 1.0f, to, kTokens);
  if (x.type == Element::kBFloat16) return read_row(address<BFloat16>(x, at, 0), step, at.tokens, 1.0f, to, kTokens);
  read_row(address<hwy::float16_t>(x, at, 0), step, at.tokens, 1.0f, to, kTokens);
}

inline void write_numbers(const float* from, const Timed& x, const Stretch& at) {
  if (!x.data) return;
  const int64_t step = at.step * x.token;
  if (x.type == Element::kFloat32) return write_row(from, address<float>(x, at, 0), step, at.tokens);
  if (x.type == Element::kBFloat16) return write_row(from, address<BFloat16>(x, at, 0), step, at.tokens);
  write_row(from, address<hwy::float16_t>(x, at, 0), step, at.tokens);
}

// to[t] = factors[t] from[t] for the rows of a tile.
HWY_INLINE void times_rows(const float* from, const float* factors, int64_t width, float* to) {
  const Floats d;
  for (int64_t t = 0; t < kTokens; ++t, from += width, to += width) {
    const Vec factor = hn::Set(d, factors[t]);
    for (int64_t i = 0; i < width; i += kLanes) hn::Store(hn::Mul(factor, hn::Load(d, from + i)), d, to + i);
  }
}

// Prefetches the next stretch's rows into the second-level cache, a few at a time during other work. A head's rows lie
// far apart in memory, which the hardware prefetcher does not foresee, and many prefetches at once would block other
// loads.
class Fetcher {
 public:
  int64_t pace = 3;  // rows per product: more if a tile has few products

  void clear() { count_ = current_ = 0; }

  void add(const Timed& x, const Stretch& at, int64_t column, int64_t n) {
    if (!x.data || count_ == kMost) return;
    const int64_t size = x.type == Element::kFloat32 ? 4 : 2;
    const char* row = address<char>(x, at, column, size);
    parts_[count_++] = {row, at.step * x.token * size, n * x.inner * size, at.tokens};
  }

  HWY_INLINE void fetch(int64_t rows) {
    for (; rows > 0 && current_ < count_; --rows) {
      Part& part = parts_[current_];
      for (int64_t i = 0; i < part.bytes; i += 64) __builtin_prefetch(part.row + i, 0, 2);
      part.row += part.step;
      if (--part.rows == 0) ++current_;
    }
  }

 private:
  struct Part {
    const char* row;
    int64_t step, bytes, rows;
  };
  static constexpr int64_t kMost = 10;
  Part parts_[kMost];
  int64_t count_ = 0, current_ = 0;
};

// --- Arithmetic. ---

// exp to about 1 ulp; 0 below 2^-125, never a denormal. Meant for x <= 0; above 88 the result stays finite.
HWY_INLINE Vec exp_of(Floats d, Vec x) {
  const hn::RebindToSigned<Floats> d32;
  const Vec lowest = hn::Set(d, -86.6f);
  const Vec inside = hn::Min(hn::Set(d, 88.3f), hn::Max(lowest, x));  // NaN, being second, stays
  const Vec big = hn::Set(d, 12582912.0f);  // 1.5 · 2^23: what is added to it loses its fraction
  const Vec rounded = hn::MulAdd(inside, hn::Set(d, 1.44269504f), big);
  const Vec n = hn::Sub(rounded, big);
  Vec r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), inside);  // ln 2 in two parts, the first with few digits
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  Vec p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(d32, rounded));  // n, being the low digits of `rounded`
  const Vec result = hn::BitCast(d, hn::Add(hn::BitCast(d32, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), result);
}

// tanh; a polynomial near 0, where (1 - e^-2x) / (1 + e^-2x) cancels.
HWY_INLINE Vec tanh_of(Floats d, Vec x) {
  const Vec one = hn::Set(d, 1.0f), square = hn::Mul(x, x);
  const Vec e = exp_of(d, hn::Mul(hn::Set(d, -2.0f), hn::Abs(x)));
  const Vec far = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
  Vec p = hn::Set(d, -17.0f / 315);
  p = hn::MulAdd(p, square, hn::Set(d, 2.0f / 15));
  p = hn::MulAdd(p, square, hn::Set(d, -1.0f / 3));
  p = hn::MulAdd(hn::Mul(p, square), x, x);
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, 0.1f)), p, far);
}

#if HWY_TARGET == HWY_SCALAR  // has no such shuffles
HWY_INLINE void add_sums_of_four(Floats, const Vec x[4], float* to) {
  for (int i = 0; i < 4; ++i) to[i] += hn::GetLane(x[i]);
}
#else
// Sums the blocks of four lanes.
template <class D>
HWY_INLINE auto sum_of_blocks(D d, hn::Vec<D> x) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    return x;
  } else {
    const hn::Half<D> half;
    return sum_of_blocks(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)));
  }
}

// Adds the sum of each of four vectors' lanes to one of four numbers.
HWY_INLINE void add_sums_of_four(Floats d, const Vec x[4], float* to) {
  const hn::RepartitionToWide<Floats> pairs;
  const Vec ab = hn::Add(hn::InterleaveLower(d, x[0], x[1]), hn::InterleaveUpper(d, x[0], x[1]));  // a b a b ...
  const Vec cd = hn::Add(hn::InterleaveLower(d, x[2], x[3]), hn::InterleaveUpper(d, x[2], x[3]));
  const auto low = hn::InterleaveLower(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, cd));
  const auto high = hn::InterleaveUpper(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, cd));
  const auto sum = sum_of_blocks(d, hn::Add(hn::BitCast(d, low), hn::BitCast(d, high)));  // of a b c d a b c d ...
  const hn::FixedTag<float, 4> four;
  hn::StoreU(hn::Add(sum, hn::LoadU(four, to)), four, to);
}
#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::kernels
HWY_AFTER_NAMESPACE();

#endif
