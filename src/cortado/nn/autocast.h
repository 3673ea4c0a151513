// Autocast to a short floating-point type for a block of code.
#pragma once

#include <ATen/ATen.h>

namespace cortado {

// On from here to the end of the block when `dtype` is kBFloat16 or kHalf; nothing for others. Weights and optimiser
// stay float32.
class Autocast {
 public:
  Autocast(at::Device device, at::ScalarType dtype);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType type_;
  bool on_;
  bool was_on_ = false;
  at::ScalarType former_ = at::kFloat;
};

}  // namespace cortado
