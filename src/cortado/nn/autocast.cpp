#include "cortado/nn/autocast.h"

#include <ATen/autocast_mode.h>

namespace cortado {

Autocast::Autocast(at::Device device, at::ScalarType dtype)
    : type_(device.type()), on_(dtype == at::kBFloat16 || dtype == at::kHalf) {
  if (!on_) return;
  was_on_ = at::autocast::is_autocast_enabled(type_);
  former_ = at::autocast::get_autocast_dtype(type_);
  at::autocast::set_autocast_enabled(type_, true);
  at::autocast::set_autocast_dtype(type_, dtype);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!on_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, was_on_);
  at::autocast::set_autocast_dtype(type_, former_);
}

}  // namespace cortado
