// What both directions of a cell are written in (rnn_cpu_cells.cpp, rnn_backward_cpu_cells.cpp).
// Included once per instruction set, after gemm-inl.h.

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace ejk::rnns::HWY_NAMESPACE {

using namespace ejk::cpu;                 // NOLINT
using namespace ejk::cpu::HWY_NAMESPACE;  // NOLINT

HWY_INLINE FloatV constant(float x) { return hn::Set(FloatTag(), x); }

/// The first `count` lanes (all, if it is more), the others 0.
HWY_INLINE FloatV load_part(const float* from, int64_t count) {
  const FloatTag d;
  return count >= lanes() ? hn::LoadU(d, from) : hn::LoadN(d, from, static_cast<size_t>(count));
}
HWY_INLINE void store_part(FloatV x, float* to, int64_t count) {
  const FloatTag d;
  if (count >= lanes())
    hn::StoreU(x, d, to);
  else
    hn::StoreN(x, d, to, static_cast<size_t>(count));
}

HWY_INLINE int64_t strip_columns() { return 2 * lanes(); }

/// Numbers of the depth that are multiplied at a time: that part of a strip stays in the first-level cache for all
/// rows.
constexpr int64_t kDepth = 128;

/// tile[rows][columns] = or += a[rows][depth] times a packed block.
template <bool kAdd>
void multiply(const float* a, int64_t a_stride, int64_t rows, const float* packed, int64_t depth, int64_t columns,
              float* tile) {
  for (int64_t n = 0; n < columns; n += strip_columns())
    for (int64_t k = 0; k < std::max<int64_t>(depth, 1); k += kDepth) {
      const Gemm<float> part = {.m = rows,
                                .n = strip_columns(),
                                .k = std::min(kDepth, depth - k),
                                .a = a + k,
                                .a_stride = a_stride,
                                .b = packed + n * depth + k * strip_columns(),
                                .b_stride = strip_columns(),
                                .c = tile + n,
                                .c_stride = columns};
      if constexpr (!kAdd)
        if (k == 0) {
          gemm<Left::kRows, false>(part);
          continue;
        }
      gemm<Left::kRows, true>(part);
    }
}

}  // namespace ejk::rnns::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
