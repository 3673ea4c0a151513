// Decides which implementation computes a call. An operator lists its implementations in one place, and the first one
// that takes the call computes it:
//
//   return choose("rms_norm", x,
//                 on_cpu("kernel", [&] { return kernels::usable({x, weight}); }, [&] { return by_kernel(x, weight); }),
//                 on_gpu("kernel", [&] { return norm::gpu_takes(x, weight); }, [&] { return on_gpu(x, weight); }),
//                 otherwise("ATen", [&] { return by_definition(x, weight); }));
//
// CORTADO_TRACE=1 prints, when the process ends, how often each operator took each path. CORTADO_TRACE=FILE appends
// these counts to a file, one JSON object per line.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// The devices that an implementation runs on.
enum class Site { kCpu, kGpu, kAny };

// One implementation: `takes` says whether it can compute the call, `compute` computes it. Neither has parameters.
template <typename Takes, typename Compute>
struct Path {
  Site site;
  const char* name;
  Takes takes;
  Compute compute;
};

template <typename Takes, typename Compute>
Path<Takes, Compute> on_cpu(const char* name, Takes takes, Compute compute) {
  return {Site::kCpu, name, takes, compute};
}
template <typename Takes, typename Compute>
Path<Takes, Compute> on_gpu(const char* name, Takes takes, Compute compute) {
  return {Site::kGpu, name, takes, compute};
}
template <typename Takes, typename Compute>
Path<Takes, Compute> anywhere(const char* name, Takes takes, Compute compute) {
  return {Site::kAny, name, takes, compute};
}
inline constexpr auto kAlways = [] { return true; };
// The last implementation of a list: it takes every call.
template <typename Compute>
Path<decltype(kAlways), Compute> otherwise(const char* name, Compute compute) {
  return {Site::kAny, name, kAlways, compute};
}

// is_traced: whether CORTADO_TRACE is set. trace: counts a call of `op` that took `path`; x is its first tensor.
bool is_traced();
void trace(const char* op, const char* path, const Tensor& x);

inline bool is_at(Site site, const Tensor& x) {
  return site == Site::kAny || (site == Site::kCpu ? x.is_cpu() : x.is_cuda());
}

// Computes by the first implementation that runs on x's device and takes the call.
template <typename First, typename... Rest>
auto choose(const char* op, const Tensor& x, const First& first, const Rest&... rest) -> decltype(first.compute()) {
  if constexpr (sizeof...(Rest) > 0) {
    if (!is_at(first.site, x) || !first.takes()) return choose(op, x, rest...);
  }
  if (is_traced()) trace(op, first.name, x);
  return first.compute();
}

}  // namespace cortado
