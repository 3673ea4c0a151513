// Which keys a query sees. Part of kernel.cpp, compiled once per instruction set (hence the unusual guard).
#if defined(CORTADO_WINDOW_ATTENTION_VISIBLE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_WINDOW_ATTENTION_VISIBLE_INL_H
#undef CORTADO_WINDOW_ATTENTION_VISIBLE_INL_H
#else
#define CORTADO_WINDOW_ATTENTION_VISIBLE_INL_H
#endif

#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/kernels/tiles-inl.h"
#include "cortado/primitives/window_attention/kernel.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::window {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

constexpr float kMinusInfinity = -__builtin_inff();

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }

// --- Visibility. ---

// [begin, end): keys, or the columns or rows of a tile.
struct Range {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
  int64_t size() const { return end - begin; }
  bool has(int64_t i) const { return begin <= i && i < end; }
  void add(Range other) {
    if (other.empty()) return;
    *this = empty() ? other : Range{smaller(begin, other.begin), larger(end, other.end)};
  }
};

Range common(Range a, Range b) { return {larger(a.begin, b.begin), smaller(a.end, b.end)}; }

Range visible(const AttentionKernel& p, int64_t b, int64_t query) {
  return {p.first_key ? larger(p.begin[query], p.first_key[b]) : p.begin[query], p.end[query]};
}

// The factor on a query.
float query_factor(const AttentionKernel& p) { return p.softcap > 0 ? p.scale / p.softcap : p.scale; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::window
HWY_AFTER_NAMESPACE();

#endif
