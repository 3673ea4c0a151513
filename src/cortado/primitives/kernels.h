// Lists the primitives and which of them have a hand-written kernel. `cortado mechanisms` reads this table.
#pragma once

#include <string_view>

namespace cortado {

struct Primitive {
  std::string_view name;        // as Mechanism::primitives names it
  std::string_view operation;   // the torch operator that every call goes through, from C++ too
  std::string_view kernel;      // "Highway", ... of `primitives/NAME/kernel.cpp`; empty: ATen only
  std::string_view owner = {};  // the primitive whose kernel.cpp this one uses, if not its own
};

inline constexpr Primitive kPrimitives[] = {
    {"gated_scan", "cortado::gated_scan", "Highway"},
    {"slot_scan", "cortado::slot_scan", "Highway", "gated_scan"},
    {"delta_scan", "cortado::delta_scan", "Highway"},
    {"dplr_scan", "cortado::dplr_scan", "Highway"},
    {"window_attention", "cortado::_window_attention", "Highway"},
    {"elementwise_scan", "cortado::elementwise_scan", "Highway"},
    {"running_max", "cortado::_running_max", ""},  // beside elementwise_scan: the maxima for softmaxes over time
    {"time_softmax", "cortado::_time_softmax", "Highway"},
    {"latte_scan", "cortado::_latte_scan", "Highway"},
    {"short_conv", "cortado::short_conv", "Highway"},
};

// Returns null if no primitive has that name.
inline const Primitive* find_primitive(std::string_view name) {
  for (const Primitive& primitive : kPrimitives) {
    if (primitive.name == name) return &primitive;
  }
  return nullptr;
}

}  // namespace cortado
