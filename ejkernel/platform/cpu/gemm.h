// The product of two matrices that lie in cache, as everything that computes one takes it: vectors (gemm-inl.h) and
// matrix units (amx.h).
#pragma once

#include <cstdint>

#include "ejkernel/platform/cpu/layout.h"

namespace ejk::cpu {

/// Factors hold elements E: floats, or pairs of bf16 numbers (layout.h). Sums are float32.
template <class E>
struct Gemm {
  int64_t m, n;  ///< c is m x n; n is rounded up to whole vectors, so rows of b and c are padded
  int64_t k;     ///< in elements E: numbers, or pairs of them
  const E* a;
  int64_t a_stride;
  const E* b;  ///< [k][n]
  int64_t b_stride;
  float* c;  ///< [m][n]
  int64_t c_stride;
};

}  // namespace ejk::cpu
