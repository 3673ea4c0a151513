// A Machine for tests that runs kernels on the host (emulate.h), found by name. Define CORTADO_EMULATE before including
// it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/cuda/machine.h"

namespace cortado::cuda {

class EmulatedMachine : public Machine {
 public:
  // Maps a kernel's name (with its variant, if any, after a space) to the function that one thread runs on the
  // argument.
  using Kernels = std::map<std::string, std::function<void(const void* argument)>>;

  explicit EmulatedMachine(Kernels kernels, gpu::Order order = {}, int shared_bytes = 227 << 10)
      : kernels_(std::move(kernels)), order_(order), shared_bytes_(shared_bytes) {}

  int multiprocessors() const override { return 4; }
  int shared_bytes() const override { return shared_bytes_; }

  void launch(const Kernel& kernel, Blocks blocks, const void* parameters) override {
    const std::string name = kernel.variant.empty() ? kernel.name : std::string(kernel.name) + " " + kernel.variant;
    const auto found = kernels_.find(name);
    ASSERT_NE(found, kernels_.end()) << name;
    gpu::run({int(blocks.x), int(blocks.y), int(blocks.z)}, int(kernel.threads), kernel.shared, order_,
             [&] { found->second(parameters); });
  }

 private:
  const Kernels kernels_;
  const gpu::Order order_;
  const int shared_bytes_;
};

// Wraps a kernel that takes an `In`.
template <typename In, typename Body>
std::function<void(const void*)> kernel_of(const Body& body) {
  return [body](const void* argument) { body(*static_cast<const In*>(argument)); };
}

}  // namespace cortado::cuda
