// Kernels on the GPU that is there, without a CUDA toolkit: the sources are in this library, NVRTC, which every CUDA
// build of torch brings along, compiles them when they are first needed, and binaries are kept on disk. libcuda and
// libnvrtc are opened then and not before, so that one build of this library runs with and without a GPU.
//
//   CORTADO_CUDA_CACHE   where binaries are kept: a folder, or "off"; default $XDG_CACHE_HOME/cortado/cuda or ~/.cache/...
//   CORTADO_CUDA=off     no kernels of ours: chunks of ATen calls, as where they can't be compiled
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cortado/primitives/cuda/machine.h"

namespace cortado::cuda {

// Whether kernels can run on that device of torch's; why_not() says why not. The first call looks for the libraries.
bool usable(int device);
std::string why_not(int device);

// Throws Failure (one line) where a kernel can't be compiled or launched. Launches go on torch's current stream.
Machine& machine(int device);

// Whether what goes on torch's current stream there is recorded for a graph: then no number on the GPU can be looked at.
bool capturing(int device);

// The kernels of this build: the name of each .cu file under primitives ("gated_scan/kernel"), and its text with all includes in place.
struct Source {
  const char *name, *text;
};
const std::vector<Source>& sources();

// A kernel file for an architecture ("sm_90a") as NVRTC compiles it, a cubin. Needs no GPU. Throws Failure with the
// compiler's first error.
std::string compile(const std::string& source, const std::string& variant, const std::string& architecture);

struct Description {
  std::string name, architecture;
  int multiprocessors = 0, driver = 0;  // of the driver: 1000 major + 10 minor of the CUDA that it knows
};
Description describe(int device);  // Failure where it is not usable

// The binaries on disk, by kernel file: those of any GPU and driver.
std::vector<std::pair<std::string, int64_t>> kept_binaries();

// What has happened in this process.
struct Statistics {
  int64_t compiled = 0, from_disk = 0, launched = 0;
};
Statistics statistics();

// The folder of binaries, or "" (switched off, or none to be had).
std::string cache_folder();

}  // namespace cortado::cuda
