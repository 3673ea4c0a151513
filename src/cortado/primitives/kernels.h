// Which primitives have a hand-written kernel. The one place that says it: `cortado mechanisms` reads it.
#pragma once

#include <string_view>

namespace cortado {

struct Primitive {
  std::string_view name;        // as Mechanism::primitives names it
  std::string_view operation;   // the torch operator that all calls, from C++ too, go through
  std::string_view kernel;      // "Highway", ... of `primitives/NAME/kernel.cpp`; empty: the ATen form is all there is
  std::string_view owner = {};  // whose kernel.cpp it is, if another's
};

inline constexpr Primitive kPrimitives[] = {
    {"gated_scan", "cortado::gated_scan", "Highway"},
    {"slot_scan", "cortado::slot_scan", "Highway", "gated_scan"},
    {"delta_scan", "cortado::delta_scan", "Highway"},
    {"window_attention", "cortado::_window_attention", "Highway"},
    {"elementwise_scan", "cortado::elementwise_scan", "Highway"},
    {"running_max", "cortado::_running_max", ""},  // beside elementwise_scan: the maxima of time-wise softmaxes
    {"time_softmax", "cortado::_time_softmax", "Highway"},
    {"latte_scan", "cortado::_latte_scan", "Highway"},
    {"short_conv", "cortado::short_conv", "Highway"},
};

// Null where there is none of that name.
inline const Primitive* find_primitive(std::string_view name) {
  for (const Primitive& primitive : kPrimitives) {
    if (primitive.name == name) return &primitive;
  }
  return nullptr;
}

}  // namespace cortado
