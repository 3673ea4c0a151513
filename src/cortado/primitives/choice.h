// Which code computes a call. An operator lists its implementations in one place, and the first one that takes the call
// computes it:
//
//   return choose("rms_norm", x,
//                 on_cpu("kernel", [&] { return kernels::usable({x, weight}); }, [&] { return by_kernel(x, weight); }),
//                 on_gpu("kernel", [&] { return norm::gpu_takes(x, weight); }, [&] { return on_gpu(x, weight); }),
//                 otherwise("ATen", [&] { return by_definition(x, weight); }));
//
// CORTADO_TRACE=1 prints, when the process ends, which operator took which path how often; CORTADO_TRACE=FILE appends
// the same to a file, a JSON object per line.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// The devices that an implementation is for.
enum class Site { kCpu, kGpu, kAny };

// An implementation: whether it takes the call, and what it computes. Both are called without arguments.
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
// The last of the list: takes every call.
template <typename Compute>
Path<decltype(kAlways), Compute> otherwise(const char* name, Compute compute) {
  return {Site::kAny, name, kAlways, compute};
}

// Whether CORTADO_TRACE is set; and counts a call of `op` that took `path`, x being its first tensor.
bool is_traced();
void trace(const char* op, const char* path, const Tensor& x);

inline bool is_at(Site site, const Tensor& x) {
  return site == Site::kAny || (site == Site::kCpu ? x.is_cpu() : x.is_cuda());
}

// Computes by the first path that is for x's device and takes the call.
template <typename First, typename... Rest>
auto choose(const char* op, const Tensor& x, const First& first, const Rest&... rest) -> decltype(first.compute()) {
  if constexpr (sizeof...(Rest) > 0) {
    if (!is_at(first.site, x) || !first.takes()) return choose(op, x, rest...);
  }
  if (is_traced()) trace(op, first.name, x);
  return first.compute();
}

}  // namespace cortado
