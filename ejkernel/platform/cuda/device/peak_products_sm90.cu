// Products of a warpgroup and nothing else: the rate that "% of peak" refers to on Hopper, for 16-bit and 8-bit
// numbers.
#include "ejkernel/platform/cuda/device/half_type.cuh"
#include "ejkernel/platform/cuda/device/target.cuh"
#include "ejkernel/platform/cuda/device/tma.cuh"
#include "ejkernel/platform/cuda/device/wgmma.cuh"

namespace ejk {

using namespace cuda;

// ---- what is multiplied: D[64, 256] += A B over one row of 128 bytes of each, random numbers of both signs ----

struct Bfloat16 {
  using Sum = float;
  EJK_DEVICE static uint32 numbers(uint32 bits) { return 0x3f803f80u | (bits & 0x807f807fu); }  // ±1 to ±2
  EJK_DEVICE static void multiply(Sum (&d)[128], Operand a, Operand b) { multiply_add<HalfType::bf16>(d, a, b, true); }
};

// Four instructions of 32 of K; those of 8-bit numbers know no other order of B than along K.
// clang-format off
#define EJK_PRODUCT_8_BIT(types, scales, a, b) \
  "wgmma.mma_async.sync.aligned.m64n256k32." types " {" EJK_TEXT_128 "}, " a ", " b ", all" scales ";\n"
#define EJK_PRODUCTS_8_BIT(types, scales) \
  "{\n.reg .pred all;\n.reg .b64 a, b;\nsetp.eq.b32 all, 0, 0;\nmov.b64 a, %128;\nmov.b64 b, %129;\n" \
  EJK_PRODUCT_8_BIT(types, scales, "a", "b") "add.s64 a, a, 2;\nadd.s64 b, b, 2;\n" \
  EJK_PRODUCT_8_BIT(types, scales, "a", "b") "add.s64 a, a, 2;\nadd.s64 b, b, 2;\n" \
  EJK_PRODUCT_8_BIT(types, scales, "a", "b") "add.s64 a, a, 2;\nadd.s64 b, b, 2;\n" \
  EJK_PRODUCT_8_BIT(types, scales, "a", "b") "}"
// clang-format on

struct Float8 {
  using Sum = float;
  EJK_DEVICE static uint32 numbers(uint32 bits) { return 0x38383838u | (bits & 0x87878787u); }  // ±1 to ±2, in e4m3
  EJK_DEVICE static void multiply(Sum (&d)[128], Operand a, Operand b) {
    asm volatile(EJK_PRODUCTS_8_BIT("f32.e4m3.e4m3", ", 1, 1") : EJK_D_128 : "l"(a.descriptor), "l"(b.descriptor));
  }
};

struct Int8 {
  using Sum = int;
  EJK_DEVICE static uint32 numbers(uint32 bits) { return bits; }
  EJK_DEVICE static void multiply(Sum (&d)[128], Operand a, Operand b) {
#define EJK_I(i)                                                                                              \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), \
      "+r"(d[i + 7])
    asm volatile(EJK_PRODUCTS_8_BIT("s32.s8.s8", "")
                 : EJK_I(0), EJK_I(8), EJK_I(16), EJK_I(24), EJK_I(32), EJK_I(40), EJK_I(48), EJK_I(56), EJK_I(64),
                   EJK_I(72), EJK_I(80), EJK_I(88), EJK_I(96), EJK_I(104), EJK_I(112), EJK_I(120)
                 : "l"(a.descriptor), "l"(b.descriptor));
#undef EJK_I
  }
};

// ---- the loop ----

/// Each of two warpgroups multiplies a row of A's 64 and B's 256 a round, from shared memory: zeros would take less
/// power, and the clock would tell.
template <class Numbers>
__global__ void __launch_bounds__(256, 1) peak_products(float* sink, int rounds) {
  constexpr int kTileA = 64 * 128, kTileB = 256 * 128;  // bytes
  extern __shared__ __align__(1024) char memory[];
  auto* words = reinterpret_cast<uint32*>(memory);
  uint32 bits = 2654435761u * (threadIdx.x + 1);
  for (int i = static_cast<int>(threadIdx.x); i < (2 * kTileA + kTileB) / 4; i += 256) {
    bits = bits * 1664525u + 1013904223u;
    words[i] = Numbers::numbers(bits);
  }
  __syncthreads();
  fence_shared_writes();
  const Operand a = k_major_operand(memory + threadIdx.x / 128 * kTileA), b = k_major_operand(memory + 2 * kTileA);
  typename Numbers::Sum d[128] = {};
  for (int round = 0; round < rounds; ++round) {
    begin_products();
    Numbers::multiply(d, a, b);
    commit_products();
    wait_products<0>();
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) sum += static_cast<float>(d[i]);
  if (sum == -1.0f) *sink = sum;
}

}  // namespace ejk
