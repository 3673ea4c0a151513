// The scans token by token in float32; see tokens_gpu.h and tokens_gpu-inl.h. GATES: 0 per head, 1 per key, 2 per
// value.
//
// Variants: KEYS=64 GATES=1 | KEYS=128 GATES=1 | KEYS=256 GATES=1 | KEYS=64 GATES=0 | KEYS=128 GATES=0 | KEYS=256 GATES=0 |
// KEYS=64 GATES=2 | KEYS=128 GATES=2 | KEYS=256 GATES=2
#include "cortado/primitives/gated_scan/parts_gpu-inl.h"
#include "cortado/primitives/gated_scan/tokens_gpu-inl.h"

#ifndef KEYS
#define KEYS 64
#endif
#ifndef GATES
#define GATES 1
#endif

// Blocks per multiprocessor.
#if KEYS == 256
#define TOKEN_BLOCKS 2
#else
#define TOKEN_BLOCKS 4
#endif
#define CORTADO_TOKENS(name, reverse, rule)                                                                  \
  extern "C" __global__ void __launch_bounds__(128, TOKEN_BLOCKS) name(const cortado::gated::GpuTokens in) { \
    using namespace cortado::gated;                                                                          \
    Tokens<KEYS, static_cast<Gates>(GATES), reverse, Rule::rule>(in).run();                                  \
  }
CORTADO_TOKENS(tokens, false, kRead)
CORTADO_TOKENS(tokens_reverse, true, kRead)
CORTADO_TOKENS(tokens_states, false, kStates)
CORTADO_TOKENS(tokens_states_reverse, true, kStates)
#if GATES > 0
CORTADO_TOKENS(tokens_bonus, false, kBonus)
CORTADO_TOKENS(tokens_bonus_reverse, true, kBonus)
#endif
#if GATES < 2
CORTADO_TOKENS(tokens_delta, false, kDelta)
CORTADO_TOKENS(tokens_delta_gradient, true, kDeltaGradient)
#endif

extern "C" __global__ void __launch_bounds__(256) token_join(const cortado::gated::GpuJoin join) {
  cortado::gated::join_parts(join);
}

extern "C" __global__ void __launch_bounds__(128) token_gates(const cortado::gated::GpuTokenGates in) {
  cortado::gated::add_up_token_gates(in);
}
