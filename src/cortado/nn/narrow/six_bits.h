// Matrices whose numbers came from ggml's Q6_K: finds the integers that they were made of.
#pragma once

#include <c10/util/Half.h>

#include <array>
#include <cstdint>
#include <optional>

#include "cortado/nn/narrow/kernel.h"

namespace cortado::narrow {

// 256 numbers unit · scale · (value - 32), with a scale per 16.
struct SixBits {
  c10::Half unit = 0;
  std::array<int8_t, kSixBlock / kSixGroup> scales{};
  std::array<uint8_t, kSixBlock> values{};
};

// Returns numbers that give x[0] .. x[255] exactly; nullopt if there are none.
std::optional<SixBits> six_bits_of(const float* x);

}  // namespace cortado::narrow
