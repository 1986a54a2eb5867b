// How CPU kernels lay out scratch memory, the same for every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace ejk::cpu {

/// Floats in the widest vector that kernels use: 512 bits. Rows of scratch tiles are multiples of it.
inline constexpr int64_t kMaxLanes = 16;
inline constexpr size_t kAlignment = 64;

/// For n >= 0 and by >= 1, each up to the largest there is: a block may be larger than anything it divides.
constexpr int64_t ceil_div(int64_t n, int64_t by) { return n / by + (n % by != 0 ? 1 : 0); }
constexpr int64_t round_up(int64_t n, int64_t to) { return ceil_div(n, to) * to; }
constexpr int64_t padded(int64_t floats) { return round_up(floats, kMaxLanes); }

/// Two bf16 numbers that follow each other along the dimension that a product sums over, the first in the low half:
/// what the processors' bf16 dot instructions multiply.
struct Pair {
  uint32_t bits;
};

/// Elements E that hold `numbers` numbers of the summed dimension; the second half of an odd last pair is 0.
template <class E>
constexpr int64_t units(int64_t numbers) {
  return std::is_same_v<E, Pair> ? ceil_div(numbers, 2) : numbers;
}

/// Cuts one block of memory into aligned pieces. Run once without memory, it measures; so the same code that carves a
/// workspace says how large it must be.
class Carver {
 public:
  Carver() = default;
  explicit Carver(std::byte* memory) : memory_(memory) {}

  template <class T>
  T* take(int64_t count) {
    std::byte* piece = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<T*>(piece);
  }
  size_t used() const { return used_; }

 private:
  std::byte* memory_ = nullptr;
  size_t used_ = 0;
};

}  // namespace ejk::cpu
