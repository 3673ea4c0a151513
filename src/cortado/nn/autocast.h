// Autocast to a short floating-point type for a block of code.
#pragma once

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

namespace cortado {

// Enables autocast until the end of the block if `dtype` is kBFloat16 or kHalf; does nothing for other types. Weights
// and optimiser stay float32.
class Autocast {
 public:
  Autocast(at::Device device, at::ScalarType dtype)
      : type_(device.type()), on_(dtype == at::kBFloat16 || dtype == at::kHalf) {
    if (!on_) return;
    was_on_ = at::autocast::is_autocast_enabled(type_);
    former_ = at::autocast::get_autocast_dtype(type_);
    at::autocast::set_autocast_enabled(type_, true);
    at::autocast::set_autocast_dtype(type_, dtype);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (!on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type_, was_on_);
    at::autocast::set_autocast_dtype(type_, former_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType type_;
  bool on_;
  bool was_on_ = false;
  at::ScalarType former_ = at::kFloat;
};

// x for matrix products whose kernels take 16-bit types only. On a GPU under autocast, float32 is rounded to autocast's
// type once here instead of by every reader. Elsewhere returns x.
inline at::Tensor for_products(const at::Tensor& x) {
  const bool rounds = x.is_cuda() && x.scalar_type() == at::kFloat && at::autocast::is_autocast_enabled(at::kCUDA);
  return rounds ? x.to(at::autocast::get_autocast_dtype(at::kCUDA)) : x;
}

}  // namespace cortado
