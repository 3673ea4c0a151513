// What kernels on a GPU are made of: 16-bit tiles in shared memory, matrix products of a warp, copies that go on in the
// background. Compiled by NVRTC, without any header; with CORTADO_EMULATE the same source is C++ for the host
// (emulate.h), where every warp's lanes run in turns and nothing but arithmetic is different.
#pragma once

typedef unsigned int u32;
typedef unsigned short u16;

#ifdef CORTADO_EMULATE
#include "cortado/primitives/cuda/emulate.h"
#define CORTADO_ASM(device, host) host
#else
#define DEV __device__ __forceinline__
#define CORTADO_ASM(device, host) device
#define CORTADO_THREAD static_cast<int>(threadIdx.x)
extern __shared__ __align__(128) unsigned char cortado_shared[];
#endif

namespace cuda {

DEV unsigned char* shared_memory() {
  unsigned char* bytes;
  CORTADO_ASM(bytes = cortado_shared, bytes = gpu::shared_memory());
  return bytes;
}

// The two 16-bit types: how a product takes them, and how two of them lie in a register.
#ifdef CORTADO_HALF
#define MMA_TYPES "f16.f16"
#define PACK "cvt.rn.f16x2.f32 %0, %1, %2;"
#define MULTIPLY2 "mul.rn.f16x2 %0, %1, %2;"
#else
#define MMA_TYPES "bf16.bf16"
#define PACK "cvt.rn.bf16x2.f32 %0, %1, %2;"
#define MULTIPLY2 "{ .reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 %0, %1, %2, z; }"  // sm_80 has no mul
#endif

// Addresses in shared memory are 32 bits.
DEV u32 shared_address(const void* pointer) {
  u32 address;
  CORTADO_ASM(asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(address) : "l"(pointer)),
              address = gpu::shared_address(pointer));
  return address;
}

// Two floats as a register of two 16-bit numbers, the first in the low half.
DEV u32 pack(float low, float high) {
  u32 both;
  CORTADO_ASM(asm(PACK : "=r"(both) : "f"(high), "f"(low)), both = gpu::pack(low, high));
  return both;
}

DEV u32 multiply2(u32 a, u32 b) {
  u32 product;
  CORTADO_ASM(asm(MULTIPLY2 : "=r"(product) : "r"(a), "r"(b)), product = gpu::multiply2(a, b));
  return product;
}

// e^x, to about 2 ulp of float32; 0 below -87.
DEV float exponential(float x) {
  float y;
  CORTADO_ASM(asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f)), y = gpu::exponential(x));
  return y;
}

// --- Copies from global to shared memory, in groups that are waited for. ---

// 16 bytes of which the first `bytes` (0 or 16) are read and the rest is 0.
DEV void copy16(u32 to, const void* from, int bytes) {
  CORTADO_ASM(asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)),
              gpu::copy(to, from, 16, bytes));
}
DEV void copy4(u32 to, const void* from, int bytes) {
  CORTADO_ASM(asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)),
              gpu::copy(to, from, 4, bytes));
}
DEV void end_group() { CORTADO_ASM(asm volatile("cp.async.commit_group;"), gpu::end_group()); }
// Until all but the last N groups of this thread are there.
template <int N>
DEV void wait_for_groups() {
  CORTADO_ASM(asm volatile("cp.async.wait_group %0;" ::"n"(N)), gpu::wait_for_groups(N));
}

// --- Tiles: rows of 16-bit numbers in shared memory, whose pieces of 16 bytes are exchanged so that the eight rows of a
// matrix lie in different banks. ---

template <int kRowBytes>
struct Tile {
  u32 base;
  // Where piece `x` (of 8 numbers) of row `r` lies.
  DEV u32 at(int r, int x) const {
    const int mixed = kRowBytes >= 128 ? x ^ (r & 7) : x ^ ((r >> 1) & 3);
    return base + r * kRowBytes + (mixed << 4);
  }
};

// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
DEV void load4(u32* out, u32 row) {
  CORTADO_ASM(asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(out[0]), "=r"(out[1]),
                           "=r"(out[2]), "=r"(out[3]) : "r"(row)),
              gpu::load4(out, row, false));
}
DEV void load4_transposed(u32* out, u32 row) {
  CORTADO_ASM(asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(out[0]),
                           "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(row)),
              gpu::load4(out, row, true));
}

// Operands of 16 x 16 numbers. Left: rows r0.., columns 16 c.. of a tile, or the transposed of rows (columns of the
// operand) and columns (its rows). Right: 16 by 16 as two operands of 8 columns, registers 0, 1 and 2, 3; of a tile
// whose rows are the sum's index, or of one whose rows are the columns of the result.
template <int W>
DEV void left(u32* out, Tile<W> tile, int lane, int r0, int c) {
  load4(out, tile.at(r0 + (lane & 15), 2 * c + (lane >> 4)));
}
template <int W>
DEV void left_transposed(u32* out, Tile<W> tile, int lane, int r0, int c) {
  load4_transposed(out, tile.at(r0 + (lane & 7) + ((lane >> 4) << 3), 2 * c + ((lane >> 3) & 1)));
}
template <int W>
DEV void right(u32* out, Tile<W> tile, int lane, int r0, int c) {
  load4_transposed(out, tile.at(r0 + (lane & 15), 2 * c + (lane >> 4)));
}
template <int W>
DEV void right_transposed(u32* out, Tile<W> tile, int lane, int r0, int c) {
  load4(out, tile.at(r0 + (lane & 7) + ((lane >> 4) << 3), 2 * c + ((lane >> 3) & 1)));
}

// sum += a b: 16 x 16 by 16 x 8. Lane l has of the sum row l / 4 (0, 1) and that + 8 (2, 3), columns 2 (l % 4) and + 1.
DEV void multiply(float* sum, const u32* a, u32 b0, u32 b1) {
  CORTADO_ASM(asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPES
                           ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(sum[0]),
                           "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
                           "r"(b0), "r"(b1)),
              gpu::multiply(sum, a, b0, b1));
}

}  // namespace cuda
