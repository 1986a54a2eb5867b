#pragma once

#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

/// The same number, which the compiler takes for another one each time: what a loop computes from it is computed there,
/// not ahead of the loop and kept in registers until it is wanted.
template <class Word>
EJK_DEVICE Word anew(Word x) {
  static_assert(sizeof(Word) == 4);
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace ejk::cuda
