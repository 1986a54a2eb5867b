// Matrix products of a warpgroup (wgmma): D[64, N] += A[64, 16] B[16, N], D in registers, B in shared memory, A in
// either. N follows from the accumulator: float d[N / 2].
//
// Thread t of the warpgroup, in warp w = t / 32 and with lane l = t % 32, holds of D the rows 16 w + l / 4 (elements
// with bit 1 of their index clear) and 8 below it (set), and of element i the column 8 (i / 4) + 2 (l % 4) + i % 2. Two
// packed elements of D that way are A's registers of the next product, so that P = softmax(S) never leaves the
// registers.
#pragma once

#include "ejkernel/platform/cuda/device/half_type.cuh"
#include "ejkernel/platform/cuda/device/shared_address.cuh"
#include "ejkernel/platform/cuda/device/swizzle.cuh"
#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

// ---- operands in shared memory: 64-column tiles with 128-byte rows in the 128-byte swizzle, as TMA writes them ----

/// Where an operand lies and how. Moving it costs one addition, for the address stands in the lowest bits.
struct Operand {
  uint64 descriptor;

  EJK_DEVICE Operand operator+(int bytes) const { return {descriptor + static_cast<uint64>(bytes >> 4)}; }
};

/// A tile whose rows run along K: 32 bytes further are the next 16 columns of its 64.
EJK_DEVICE Operand k_major_operand(const void* tile) { return {k_major_descriptor(shared_address(tile))}; }
/// A tile whose rows run along N: 2048 bytes further are the next 16 rows. `column_tile_bytes` lie between one
/// 64-column tile and the next.
EJK_DEVICE Operand n_major_operand(const void* tile, int column_tile_bytes) {
  return {n_major_descriptor(shared_address(tile), column_tile_bytes)};
}
enum class Major : int { k, n };

/// From 16 of K to the next 16, as a descriptor counts.
constexpr int step_of(Major major) { return (major == Major::k ? 32 : 2048) >> 4; }

// ---- order ----

/// Before the first product of a batch: registers written so far are what it reads.
EJK_DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
EJK_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until at most that many committed batches are still running.
template <int kBatches>
EJK_DEVICE void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kBatches) : "memory");
}
/// What an accumulator holds is not needed any more: a product that overwrites it need not keep it in registers until
/// then.
template <int kCount>
EJK_DEVICE void forget(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(d[i]));
}
/// Keeps the compiler from moving arithmetic on an accumulator across a wait. Eight at a time: a statement for each
/// takes the compiler noticeably longer.
template <int kCount>
EJK_DEVICE void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 8)
    asm volatile(""
                 : "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),
                   "+f"(d[i + 6]), "+f"(d[i + 7]));
}
/// The same for a number: it is computed here, and not behind a branch that follows.
EJK_DEVICE void pin(float& x) { asm volatile("" : "+f"(x)); }

/// True, which the compiler does not know before x is: no instruction gives this NaN.
EJK_DEVICE bool is_known(float x) { return __float_as_uint(x) != 0xffffffffu; }
/// Keeps a wait for products behind x. A wait has no operands, and ptxas moves it up or down as it likes, but not
/// across a store, be it one that never happens.
EJK_DEVICE void hold_wait(float x) {
  if (!is_known(x)) asm volatile("st.volatile.shared.u32 [%0], %0;" ::"r"(0u) : "memory");
}

// ---- the instruction, for each accumulator size ----
// PTX wants every register by its number, so the operand lists are built from groups of eight.

#define EJK_TEXT_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define EJK_TEXT_16 EJK_TEXT_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define EJK_TEXT_24 EJK_TEXT_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define EJK_TEXT_32 EJK_TEXT_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define EJK_TEXT_40 EJK_TEXT_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define EJK_TEXT_48 EJK_TEXT_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define EJK_TEXT_56 EJK_TEXT_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define EJK_TEXT_64 EJK_TEXT_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define EJK_TEXT_72 EJK_TEXT_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define EJK_TEXT_80 EJK_TEXT_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define EJK_TEXT_88 EJK_TEXT_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define EJK_TEXT_96 EJK_TEXT_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define EJK_TEXT_104 EJK_TEXT_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define EJK_TEXT_112 EJK_TEXT_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define EJK_TEXT_120 EJK_TEXT_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define EJK_TEXT_128 EJK_TEXT_120 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define EJK_D(i)                                                                                              \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define EJK_D_8 EJK_D(0)
#define EJK_D_16 EJK_D_8, EJK_D(8)
#define EJK_D_24 EJK_D_16, EJK_D(16)
#define EJK_D_32 EJK_D_24, EJK_D(24)
#define EJK_D_40 EJK_D_32, EJK_D(32)
#define EJK_D_48 EJK_D_40, EJK_D(40)
#define EJK_D_56 EJK_D_48, EJK_D(48)
#define EJK_D_64 EJK_D_56, EJK_D(56)
#define EJK_D_72 EJK_D_64, EJK_D(64)
#define EJK_D_80 EJK_D_72, EJK_D(72)
#define EJK_D_88 EJK_D_80, EJK_D(80)
#define EJK_D_96 EJK_D_88, EJK_D(88)
#define EJK_D_104 EJK_D_96, EJK_D(96)
#define EJK_D_112 EJK_D_104, EJK_D(104)
#define EJK_D_120 EJK_D_112, EJK_D(112)
#define EJK_D_128 EJK_D_120, EJK_D(120)

// n is the number of columns, r = n / 2 the number of accumulators; r0 to r19 are r, r + 1, …, written out.
// clang-format off
#define EJK_WGMMA_BEGIN(b0, scale) \
  "{\n.reg .pred keep, all;\n.reg .b32 address, layout;\n.reg .b64 a, b;\nmov.b64 b, " b0 ";\n" \
  "setp.ne.b32 keep, " scale ", 0;\nsetp.eq.b32 all, 0, 0;\n"
#define EJK_WGMMA_STEP(types, n, r, a, keep, majors) \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." types " {" EJK_TEXT_##r "}, " a ", b, " keep ", 1, 1" majors ";\n"
#define EJK_WGMMA_NEXT(move, types, n, r, a, step, majors) \
  move("b", step) EJK_WGMMA_STEP(types, n, r, a, "all", majors)

// Moving an operand adds to its descriptor, or to the word of it that holds the address: the same sum, in one uniform
// instruction instead of two or three, but another schedule of everything around it. Which serves where was measured
// (docs/kernels/flash_attention_sm90.md).
#define EJK_WGMMA_MOVE(operand, step) "add.s64 " operand ", " operand ", " step ";\n"
#define EJK_WGMMA_MOVE_WORD(operand, step) \
  "mov.b64 {address, layout}, " operand ";\nadd.u32 address, address, " step ";\n" \
  "mov.b64 " operand ", {address, layout};\n"

#define EJK_WGMMA_SHARED(types, n, r, a0, b0, scale, step_a, step_b, majors) \
  asm volatile( \
      EJK_WGMMA_BEGIN(b0, scale) "mov.b64 a, " a0 ";\n" \
      EJK_WGMMA_STEP(types, n, r, "a", "keep", majors) \
      EJK_WGMMA_MOVE("a", step_a) EJK_WGMMA_NEXT(EJK_WGMMA_MOVE, types, n, r, "a", step_b, majors) \
      EJK_WGMMA_MOVE("a", step_a) EJK_WGMMA_NEXT(EJK_WGMMA_MOVE, types, n, r, "a", step_b, majors) \
      EJK_WGMMA_MOVE("a", step_a) EJK_WGMMA_NEXT(EJK_WGMMA_MOVE, types, n, r, "a", step_b, majors) "}" \
      : EJK_D_##r \
      : "l"(a.descriptor), "l"(b.descriptor), "r"(int{keep}), "n"(step_of(kMajorA)), "n"(step_of(kMajorB)), \
        "n"(int(kMajorA)), "n"(int(kMajorB)))

#define EJK_WGMMA_REGISTERS(move, types, n, r, a0, a1, a2, a3, b0, scale, step_b, majors) \
  asm volatile( \
      EJK_WGMMA_BEGIN(b0, scale) \
      EJK_WGMMA_STEP(types, n, r, a0, "keep", majors) \
      EJK_WGMMA_NEXT(move, types, n, r, a1, step_b, majors) \
      EJK_WGMMA_NEXT(move, types, n, r, a2, step_b, majors) \
      EJK_WGMMA_NEXT(move, types, n, r, a3, step_b, majors) "}" \
      : EJK_D_##r \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(a[8]), "r"(a[9]), \
        "r"(a[10]), "r"(a[11]), "r"(a[12]), "r"(a[13]), "r"(a[14]), "r"(a[15]), "l"(b.descriptor), "r"(int{keep}), \
        "n"(step_of(kMajorB)), "n"(int(kMajorB)))

#define EJK_WGMMA_REGISTERS_16(types, n, r, a0, b0, scale, majors) \
  asm volatile( \
      EJK_WGMMA_BEGIN(b0, scale) EJK_WGMMA_STEP(types, n, r, a0, "keep", majors) "}" \
      : EJK_D_##r \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(int{keep}), "n"(int(kMajorB)))
// clang-format on

#define EJK_QUAD(i, j, k, l) "{%" #i ", %" #j ", %" #k ", %" #l "}"
#define EJK_WGMMA(move, n, r, r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15, r16, r17, r18, \
                  r19)                                                                                             \
  template <HalfType kType, Major kMajorA = Major::k, Major kMajorB = Major::k>                                    \
  EJK_DEVICE void multiply_add(float(&d)[r], Operand a, Operand b, bool keep) {                                    \
    if constexpr (kType == HalfType::bf16)                                                                         \
      EJK_WGMMA_SHARED("bf16.bf16", n, r, "%" #r0, "%" #r1, "%" #r2, "%" #r3, "%" #r4, ", %" #r5 ", %" #r6);       \
    else                                                                                                           \
      EJK_WGMMA_SHARED("f16.f16", n, r, "%" #r0, "%" #r1, "%" #r2, "%" #r3, "%" #r4, ", %" #r5 ", %" #r6);         \
  }                                                                                                                \
  template <HalfType kType, Major kMajorB = Major::k>                                                              \
  EJK_DEVICE void multiply_add(float(&d)[r], const uint32* a, Operand b, bool keep) {                              \
    if constexpr (kType == HalfType::bf16)                                                                         \
      EJK_WGMMA_REGISTERS(move, "bf16.bf16", n, r, EJK_QUAD(r0, r1, r2, r3), EJK_QUAD(r4, r5, r6, r7),             \
                          EJK_QUAD(r8, r9, r10, r11), EJK_QUAD(r12, r13, r14, r15), "%" #r16, "%" #r17, "%" #r18,  \
                          ", %" #r19);                                                                             \
    else                                                                                                           \
      EJK_WGMMA_REGISTERS(move, "f16.f16", n, r, EJK_QUAD(r0, r1, r2, r3), EJK_QUAD(r4, r5, r6, r7),               \
                          EJK_QUAD(r8, r9, r10, r11), EJK_QUAD(r12, r13, r14, r15), "%" #r16, "%" #r17, "%" #r18,  \
                          ", %" #r19);                                                                             \
  }                                                                                                                \
  template <HalfType kType, Major kMajorB = Major::k>                                                              \
  EJK_DEVICE void multiply_add_16(float(&d)[r], const uint32* a, Operand b, bool keep) {                           \
    if constexpr (kType == HalfType::bf16)                                                                         \
      EJK_WGMMA_REGISTERS_16("bf16.bf16", n, r, EJK_QUAD(r0, r1, r2, r3), "%" #r4, "%" #r5, ", %" #r6);            \
    else                                                                                                           \
      EJK_WGMMA_REGISTERS_16("f16.f16", n, r, EJK_QUAD(r0, r1, r2, r3), "%" #r4, "%" #r5, ", %" #r6);              \
  }

/// multiply_add<type, major of A, major of B>(d, a, b, keep): d = (keep ? d : 0) + A B over 64 of K, both operands in
/// shared memory: four instructions in one statement, which costs the compiler far less than four statements.
/// multiply_add<type, major of B>(d, a, b, keep): the same with A in sixteen registers.
/// multiply_add_16<type, major of B>(d, a, b, keep): over 16 of K, with A in four.
EJK_WGMMA(EJK_WGMMA_MOVE, 32, 16, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35)
EJK_WGMMA(EJK_WGMMA_MOVE, 64, 32, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51)
EJK_WGMMA(EJK_WGMMA_MOVE_WORD, 80, 40, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59)
EJK_WGMMA(EJK_WGMMA_MOVE_WORD, 96, 48, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67)
EJK_WGMMA(EJK_WGMMA_MOVE_WORD, 112, 56, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75)
EJK_WGMMA(EJK_WGMMA_MOVE_WORD, 128, 64, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82, 83)
EJK_WGMMA(EJK_WGMMA_MOVE_WORD, 144, 72, 72, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91)
EJK_WGMMA(EJK_WGMMA_MOVE_WORD, 160, 80, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97, 98, 99)
EJK_WGMMA(EJK_WGMMA_MOVE_WORD, 176, 88, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105,
          106, 107)
EJK_WGMMA(EJK_WGMMA_MOVE_WORD, 256, 128, 128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 140, 141, 142, 143,
          144, 145, 146, 147)

}  // namespace ejk::cuda
