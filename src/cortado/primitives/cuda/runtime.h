// Runs kernels on the machine's GPU without a CUDA toolkit. This library contains the kernels' sources. NVRTC, which
// comes with every CUDA build of torch, compiles them on first use; the binaries are cached on disk. libcuda and
// libnvrtc are opened on first use, so that one build of this library runs with and without a GPU.
//
//   CORTADO_CUDA_CACHE   folder of the cached binaries, or "off"; default $XDG_CACHE_HOME/cortado/cuda or ~/.cache/...
//   CORTADO_CUDA=off     uses ATen calls in place of our kernels, as where these can't be compiled
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cortado/primitives/cuda/machine.h"

namespace cortado::cuda {

// usable: whether kernels can run on this torch device. why_not: the reason if they can't. The first call opens the
// libraries.
bool usable(int device);
std::string why_not(int device);

// The machine of a device. Throws Failure (one line) if a kernel can't be compiled or launched. Kernels are launched on
// torch's current stream.
Machine& machine(int device);

// Whether torch's current stream is being captured into a CUDA graph. Then no value on the GPU can be read.
bool capturing(int device);

// The kernels of this build: the name of each .cu file ("gated_scan/kernel") and its text with all includes inlined.
struct Source {
  const char *name, *text;
};
const std::vector<Source>& sources();

// Compiles a kernel file for an architecture ("sm_90a") with NVRTC to a cubin. Needs no GPU. Throws Failure with the
// compiler's first error.
std::string compile(const std::string& source, const std::string& variant, const std::string& architecture);

struct Description {
  std::string name, architecture;
  int multiprocessors = 0, driver = 0;  // driver: the CUDA version that it supports, 1000 major + 10 minor
};
Description describe(int device);  // throws Failure if the device is not usable

// The cached binaries' names and sizes, per kernel file, for all GPUs and drivers.
std::vector<std::pair<std::string, int64_t>> kept_binaries();

// Counters of this process.
struct Statistics {
  int64_t compiled = 0, from_disk = 0, launched = 0;
};
Statistics statistics();

// The folder of cached binaries; "" if caching is off or no folder is available.
std::string cache_folder();

}  // namespace cortado::cuda
