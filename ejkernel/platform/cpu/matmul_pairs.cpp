// The products of matmul-inl.h whose numbers are pairs of bf16.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/platform/cpu/matmul_pairs.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h, in this order:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/tiles-inl.h"
// After those:
#include "ejkernel/platform/cpu/matmul_pack-inl.h"
// After that:
#include "ejkernel/platform/cpu/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

template void multiply_block(const MatrixUnit* unit, const Factor& a, const Factor& b, const MatmulBlock& at, bool add,
                             const MatmulScratch<Pair>& s);

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
