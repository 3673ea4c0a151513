// Runs the kernels of kernel.cu files: on a GPU (runtime.h), or emulated on the host in tests. No torch here.
#pragma once

#include <cstddef>
#include <string>

namespace cortado::cuda {

struct Blocks {
  unsigned x = 1, y = 1, z = 1;
};

// A kernel of SOURCE.cu, compiled with the macros of `variant` ("KEYS=64 CORTADO_HALF"). "gated_scan/kernel" is
// gated_scan/kernel.cu.
struct Kernel {
  const char* source;
  std::string variant;
  const char* name;
  unsigned threads;
  size_t shared = 0;  // bytes, dynamic
};

class Machine {
 public:
  virtual ~Machine() = default;
  virtual int multiprocessors() const = 0;
  virtual int shared_bytes() const = 0;  // the most that a block can have
  // `parameters`: the kernel's only argument, a struct of sizes, strides and pointers; it is copied.
  virtual void launch(const Kernel& kernel, Blocks blocks, const void* parameters) = 0;
};

}  // namespace cortado::cuda
