// Window attention on tensor cores, forward and backward: kernel_gpu.h says what it computes.
//
// Four warps have 64 queries of a head, 16 each; tiles of 64 keys come through two stages of shared memory. Forward: scores,
// their running maximum m and sum, o <- e^{m_before - m} o + e^{S - m} v. Backward: once for the queries (dq) and once for the
// keys (dk, dv), each with the scores computed again, so that nothing is added up in memory and every run has the same bits.
// Few queries of many keys: several blocks have each a part of the keys, and what they found is joined.
//
// Variants: WIDTH=64 | WIDTH=128 | WIDTH=64 CORTADO_HALF | WIDTH=128 CORTADO_HALF
#include "cortado/primitives/window_attention/attention_gpu-inl.h"
#include "cortado/primitives/window_attention/dots_gpu-inl.h"
#include "cortado/primitives/window_attention/join_gpu-inl.h"

#ifndef WIDTH
#define WIDTH 64
#endif

extern "C" __global__ void __launch_bounds__(128, WIDTH == 64 ? 2 : 1)
    attention_forward(const cortado::window::GpuAttention in) {
  cortado::window::Attention<WIDTH>(in).forward();
}

extern "C" __global__ void __launch_bounds__(128, WIDTH == 64 ? 2 : 1)
    attention_forward_part(const cortado::window::GpuAttention in) {
  cortado::window::Attention<WIDTH>(in).forward_part();
}

extern "C" __global__ void __launch_bounds__(128) attention_join(const cortado::window::GpuAttentionJoin in) {
  cortado::window::join_keys(in);
}

extern "C" __global__ void __launch_bounds__(128, WIDTH == 64 ? 2 : 1)
    attention_gradient_of_queries(const cortado::window::GpuAttention in) {
  cortado::window::Attention<WIDTH>(in).gradient_of_queries();
}

extern "C" __global__ void __launch_bounds__(128, WIDTH == 64 ? 2 : 1)
    attention_gradient_of_keys(const cortado::window::GpuAttention in) {
  cortado::window::Attention<WIDTH>(in).gradient_of_keys();
}

extern "C" __global__ void __launch_bounds__(256) attention_dots(const cortado::window::GpuDots in) {
  cortado::window::dots(in);
}
