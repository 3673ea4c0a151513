// Building blocks of GPU kernels: 16-bit tiles in shared memory, matrix products of a warp, asynchronous copies.
// Compiled by NVRTC without any header. With CORTADO_EMULATE the same source is C++ for the host (emulate.h): a warp's
// lanes run one by one, and only the arithmetic differs.
#pragma once

typedef unsigned int u32;
typedef unsigned short u16;

#ifdef CORTADO_EMULATE
#include "cortado/primitives/cuda/emulate.h"
#define CORTADO_ASM(device, host) host
#define UNROLL
#define UNROLL_BY(times)
#else
#define DEV __device__ __forceinline__
#define CORTADO_ASM(device, host) device
#define UNROLL _Pragma("unroll")  // for loops over arrays in registers
#define CORTADO_STRING(x) #x
#define UNROLL_BY(times) _Pragma(CORTADO_STRING(unroll times))
#define CORTADO_THREAD static_cast<int>(threadIdx.x)
extern __shared__ __align__(1024) unsigned char cortado_shared[];
#endif

namespace device {

DEV unsigned char* shared_memory() {
  unsigned char* bytes;
  CORTADO_ASM(bytes = cortado_shared, bytes = gpu::shared_memory());
  return bytes;
}

// The two 16-bit types: how a matrix product takes them, and how two of them share a register.
#ifdef CORTADO_HALF
#define MMA_TYPES "f16.f16"
#define PACK "cvt.rn.f16x2.f32 %0, %1, %2;"
#define UNPACK_LOW "{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }"
#define UNPACK_HIGH "{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }"
#define MULTIPLY2 "mul.rn.f16x2 %0, %1, %2;"
#define LARGER2 "max.f16x2 %0, %1, %2;"
#else
#define MMA_TYPES "bf16.bf16"
#define PACK "cvt.rn.bf16x2.f32 %0, %1, %2;"
#define UNPACK_LOW "shl.b32 %0, %1, 16;"
#define UNPACK_HIGH "and.b32 %0, %1, 0xffff0000;"
#define MULTIPLY2 "{ .reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 %0, %1, %2, z; }"  // sm_80 has no mul
#define LARGER2 "max.bf16x2 %0, %1, %2;"
#endif

// Converts to a 32-bit address in shared memory.
DEV u32 shared_address(const void* pointer) {
  u32 address;
  CORTADO_ASM(asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(address) : "l"(pointer)),
              address = gpu::shared_address(pointer));
  return address;
}

// Packs two floats into a register as two 16-bit numbers, `low` in the low half.
DEV u32 pack(float low, float high) {
  u32 both;
  CORTADO_ASM(asm(PACK : "=r"(both) : "f"(high), "f"(low)), both = gpu::pack(low, high));
  return both;
}

DEV float unpack_low(u32 both) {
  float x;
  CORTADO_ASM(asm(UNPACK_LOW : "=f"(x) : "r"(both)), x = gpu::wide(u16(both)));
  return x;
}
DEV float unpack_high(u32 both) {
  float x;
  CORTADO_ASM(asm(UNPACK_HIGH : "=f"(x) : "r"(both)), x = gpu::wide(u16(both >> 16)));
  return x;
}

DEV u32 multiply2(u32 a, u32 b) {
  u32 product;
  CORTADO_ASM(asm(MULTIPLY2 : "=r"(product) : "r"(a), "r"(b)), product = gpu::multiply2(a, b));
  return product;
}

// The elementwise maximum of two pairs.
DEV u32 larger2(u32 a, u32 b) {
  u32 larger;
  CORTADO_ASM(asm(LARGER2 : "=r"(larger) : "r"(a), "r"(b)), larger = gpu::larger2(a, b));
  return larger;
}

// 2^x, to about 2 ulp of float32; 0 below -126.
DEV float power(float x) {
  float y;
  CORTADO_ASM(asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)), y = gpu::power(x));
  return y;
}

constexpr float kLog2e = 1.44269504f, kLn2 = 0.69314718f;

// e^x. Only for |x| so small that x's rounding error does not matter.
DEV float exponential(float x) { return power(x * kLog2e); }

// e^x to half an ulp for small |x|, so that the errors of thousands of slow decays do not add up.
DEV float decay_of(float x) {
  if (x < -0.3f || x > 0.3f) return exponential(x);
  const float high = 1.0f / 24 + x * (1.0f / 120 + x * (1.0f / 720 + x * (1.0f / 5040)));
  return 1.0f + x * (1.0f + x * (1.0f / 2 + x * (1.0f / 6 + x * high)));
}

// log2 x, to about 2 ulp except near 1.
DEV float logarithm(float x) {
  float y;
  CORTADO_ASM(asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)), y = gpu::logarithm(x));
  return y;
}

// A compiler barrier: memory reads after it are not moved before it.
DEV void keep_order() { CORTADO_ASM(asm volatile("" :: : "memory"), (void)0); }

DEV float square_root(float x) {
  float y;
  CORTADO_ASM(asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)), y = gpu::square_root(x));
  return y;
}

// 1 / x, to about 1 ulp.
DEV float reciprocal(float x) {
  float y;
  CORTADO_ASM(asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)), y = 1 / x);
  return y;
}

DEV float sigmoid(float x) { return reciprocal(1 + exponential(-x)); }

// For angles up to half a turn, to 2^-20.
DEV float sine(float x) {
  float y;
  CORTADO_ASM(asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)), y = std::sin(x));
  return y;
}
DEV float cosine(float x) {
  float y;
  CORTADO_ASM(asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)), y = std::cos(x));
  return y;
}

// A 32 x 32 -> 64-bit multiplication in one instruction.
DEV long long times(int a, int b) { return static_cast<long long>(a) * b; }

DEV float infinity() {
  float x;
  CORTADO_ASM(asm("mov.b32 %0, 0x7f800000;" : "=f"(x)), x = std::numeric_limits<float>::infinity());
  return x;
}

// e^(x - to); 0 where x is -inf, the value of what does not exist.
DEV float relative(float x, float to) { return x == -infinity() ? 0.0f : exponential(x - to); }

// Vector types for one load or store.
struct alignas(8) Two {
  float x[2];
};
struct alignas(16) Four {
  u32 x[4];
};
struct alignas(16) FourFloats {
  float x[4];
};

// Unpacks eight 16-bit numbers to floats.
DEV void unpack8(float* x, Four both) {
  UNROLL for (int i = 0; i < 4; ++i) {
    x[2 * i] = unpack_low(both.x[i]);
    x[2 * i + 1] = unpack_high(both.x[i]);
  }
}
DEV Four pack8(const float* x) { return {pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])}; }
// Reads the eight numbers from index `at` on; their address is a multiple of 16 bytes.
DEV void read8(float* x, const void* from, long long at) {
  unpack8(x, *reinterpret_cast<const Four*>(static_cast<const u16*>(from) + at));
}
DEV void write8(void* to, long long at, const float* x) {
  *reinterpret_cast<Four*>(static_cast<u16*>(to) + at) = pack8(x);
}

// Transposes over groups of four neighbouring lanes with four numbers each: lane i gets number i of every lane. Calling
// it twice restores x.
DEV void exchange(u32* x, int lane) {
  for (int far = 1; far < 4; far *= 2) {
    for (int i = 0; i < 2; ++i) {
      const int a = far == 1 ? 2 * i : i, b = a + far;
      const bool second = lane & far;
      const u32 got = __shfl_xor_sync(~0u, second ? x[a] : x[b], far);
      if (second) x[a] = got;
      if (!second) x[b] = got;
    }
  }
}

// --- Asynchronous copies from global to shared memory, in groups that can be waited for. ---

// Copies 16 bytes, of which the first `bytes` (0 or 16) are read and the rest are 0.
DEV void copy16(u32 to, const void* from, int bytes) {
  CORTADO_ASM(asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)),
              gpu::copy(to, from, 16, bytes));
}
DEV void copy4(u32 to, const void* from, int bytes) {
  CORTADO_ASM(asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)),
              gpu::copy(to, from, 4, bytes));
}
DEV void end_group() { CORTADO_ASM(asm volatile("cp.async.commit_group;"), gpu::end_group()); }
// Waits until all but the last N groups of this thread have arrived.
template <int N>
DEV void wait_for_groups() {
  CORTADO_ASM(asm volatile("cp.async.wait_group %0;" ::"n"(N)), gpu::wait_for_groups(N));
}

// --- Tiles: rows of 16-bit numbers in shared memory. Their 16-byte pieces are swizzled, so that the eight rows of a
// matrix lie in different banks. ---

template <int kRowBytes>
struct Tile {
  u32 base;  // a multiple of 1024
  // Address of piece `x` (8 numbers) of row `r`.
  DEV u32 at(int r, int x) const { return base + r * kRowBytes + ((x ^ (r & 7)) << 4); }
};

// Loads four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
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

// Operands of 16 x 16 numbers. Left operand: rows r0.. and columns 16 c.. of a tile, or the transposed of such a part
// of it. Right operand: 16 x 16 numbers as two operands of 8 columns, in registers 0, 1 and 2, 3; from a tile whose
// rows are the summation index, or from one whose rows are the result's columns. r0 is a multiple of 8, so the swizzle
// does not depend on it. c is added last, so that a lane computes one address per tile instead of one per piece.
template <int W>
DEV u32 moved(u32 address, int r0, int c) {
  return (address ^ (c << 5)) + r0 * W;
}
template <int W>
DEV u32 rows_and_halves(Tile<W> tile, int lane) {
  return tile.at(lane & 15, lane >> 4);
}
template <int W>
DEV u32 halves_and_rows(Tile<W> tile, int lane) {
  return tile.at((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
}
template <int W>
DEV void left(u32* out, Tile<W> tile, int lane, int r0, int c) {
  load4(out, moved<W>(rows_and_halves(tile, lane), r0, c));
}
template <int W>
DEV void left_transposed(u32* out, Tile<W> tile, int lane, int r0, int c) {
  load4_transposed(out, moved<W>(halves_and_rows(tile, lane), r0, c));
}
template <int W>
DEV void right(u32* out, Tile<W> tile, int lane, int r0, int c) {
  load4_transposed(out, moved<W>(rows_and_halves(tile, lane), r0, c));
}
template <int W>
DEV void right_transposed(u32* out, Tile<W> tile, int lane, int r0, int c) {
  load4(out, moved<W>(halves_and_rows(tile, lane), r0, c));
}

// sum += a b, 16 x 16 times 16 x 8. Lane l owns row l / 4 (0, 1) and row l / 4 + 8 (2, 3) of the sum, columns 2 (l % 4)
// and + 1.
DEV void multiply(float* sum, const u32* a, u32 b0, u32 b1) {
  CORTADO_ASM(
      asm("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPES
          ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(sum[0]),
          "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)),
      gpu::multiply(sum, a, b0, b1));
}

}  // namespace device
