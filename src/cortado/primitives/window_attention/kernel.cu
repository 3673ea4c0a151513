// Window attention on tensor cores, forward and backward; see kernel_gpu.h.
//
// Four warps have 64 queries of a head, 16 each; tiles of 64 keys pass through two stages of shared memory. Forward:
// scores, their running maximum m and sum, o <- e^{m_before - m} o + e^{S - m} v. Backward: one pass for the queries
// (dq) and one for the keys (dk, dv). Each recomputes the scores, so that there are no atomic additions and every run
// gives the same bits. Few queries of many keys: several blocks each have a part of the keys, and their results are
// joined.
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
