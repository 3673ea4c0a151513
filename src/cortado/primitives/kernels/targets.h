// The instruction sets that kernels are compiled for. Include this before any of Highway's headers.
#pragma once

// SSSE3 gains nothing over SSE4. SVE and RVV have vectors whose length is known only at run time; such vectors cannot
// be members or array elements, which the kernels' tiles are. These machines run the NEON code, or scalar code.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
