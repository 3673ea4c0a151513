// What kernels are compiled for: before any of Highway's headers.
#pragma once

// SSSE3 gains nothing over SSE4's machines. Vectors whose length is known at run time only (SVE, RVV) cannot be members
// or elements, which the kernels' tiles are; such machines run NEON's, or no vectors.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
