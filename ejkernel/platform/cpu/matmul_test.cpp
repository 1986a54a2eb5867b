#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ejkernel/core/dtype.h"
#include "ejkernel/platform/cpu/matmul.h"
#include "ejkernel/platform/cpu/simd_target.h"
#include "ejkernel/testing/emulated_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/platform/cpu/matmul_test.cpp"
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
namespace {

/// 0: packed floats; 1: pairs; 2: pairs on the matrix unit; 3: streamed.
template <class E>
void multiply_packed(const MatrixUnit* unit, const Factor& a, const Factor& b, const MatmulBlock& at, bool add,
                     std::byte* memory) {
  Carver carver(memory);
  const MatrixUnitScope scope(unit);
  multiply_block(unit, a, b, at, add, MatmulScratch<E>::carve(carver, at.rows, at.columns));
}
void multiply_any(int way, const Factor& a, const Factor& b, const MatmulBlock& at, bool add, std::byte* memory) {
  if (way == 0) return multiply_packed<float>(nullptr, a, b, at, add, memory);
  if (way < 3) return multiply_packed<Pair>(way == 2 ? matrix_unit() : nullptr, a, b, at, add, memory);
  Carver carver(memory);
  const auto s = MatmulScratch<float>::carve(carver, at.rows, at.columns);
  if (b.dtype == DType::f32) return stream_block(a, static_cast<const float*>(b.data), b.row, at, add, s);
  if (b.dtype == DType::f16) return stream_block(a, static_cast<const f16_t*>(b.data), b.row, at, add, s);
  stream_block(a, static_cast<const bf16_t*>(b.data), b.row, at, add, s);
}

}  // namespace
}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::cpu {
namespace {

HWY_EXPORT(multiply_any);

/// A factor of numbers that every dtype holds, between numbers that are none and must not be read.
class Numbers {
 public:
  Numbers(std::mt19937& random, DType dtype, int64_t rows, int64_t columns, bool rows_in_memory)
      : data_(static_cast<size_t>((rows + 2) * (columns + 3) * bits(dtype) / 8)) {
    factor = {.dtype = dtype, .rows_in_memory = rows_in_memory};
    const int64_t lines = rows_in_memory ? rows : columns, length = rows_in_memory ? columns : rows,
                  stride = length + 3;
    data_.resize(static_cast<size_t>((lines + 1) * stride * bits(dtype) / 8));
    factor.row = rows_in_memory ? stride : 1, factor.column = rows_in_memory ? 1 : stride;
    const double nothing = dtype == DType::i8 ? 100 : std::numeric_limits<double>::quiet_NaN();
    for (int64_t i = 0; i < (lines + 1) * stride; ++i) {
      const bool is_used = i / stride < lines && i % stride < length;
      store_from_double(data_.data(), dtype, i, is_used ? static_cast<double>(random() % 9) - 4 : nothing);
    }
    factor.data = data_.data();
  }
  double at(int64_t r, int64_t c) const {
    const double value = load_as_double(factor.data, factor.dtype, r * factor.row + c * factor.column);
    if (factor.scale == nullptr) return value;
    return value * factor.scale[r / factor.scale_block_rows * factor.scale_row +
                                c / factor.scale_block_columns * factor.scale_column];
  }

  Factor factor;

 private:
  std::vector<std::byte> data_;
};

/// A task's scratch, full of NaN.
template <class E>
class Memory {
 public:
  Memory(int64_t rows, int64_t columns) {
    Carver size;
    MatmulScratch<E>::carve(size, rows, columns);
    bytes_.assign(size.used() + kAlignment, std::byte{0xff});
    Carver carver(begin());
    scratch = MatmulScratch<E>::carve(carver, rows, columns);
  }
  std::byte* begin() const {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return reinterpret_cast<std::byte*>((at + kAlignment - 1) / kAlignment * kAlignment);
  }

  MatmulScratch<E> scratch;

 private:
  std::vector<std::byte> bytes_;
};

class MatmulPieces : public ::testing::TestWithParam<std::string_view> {
 protected:
  /// A block in the middle of larger factors, twice: set, then added to.
  void check(int way, const Numbers& a, const Numbers& b, const MatmulBlock& at) {
    way == 0 || way == 3 ? check_with<float>(way, a, b, at) : check_with<Pair>(way, a, b, at);
  }

 private:
  template <class E>
  void check_with(int way, const Numbers& a, const Numbers& b, const MatmulBlock& at) {
    const Memory<E> memory(at.rows, at.columns);
    const float* c = memory.scratch.c;
    const int64_t c_stride = memory.scratch.c_stride;
    for (int times = 1; times <= 2; ++times) {
      HWY_DYNAMIC_DISPATCH(multiply_any)(way, a.factor, b.factor, at, times == 2, memory.begin());
      for (int64_t i = 0; i < at.rows; ++i)
        for (int64_t j = 0; j < at.columns; ++j) {
          double sum = 0;
          for (int64_t k = at.depth; k < at.depth + at.count; ++k) sum += a.at(at.row + i, k) * b.at(k, at.column + j);
          ASSERT_EQ(c[i * c_stride + j], times * sum)
              << "way " << way << ", " << name(a.factor.dtype) << " " << name(b.factor.dtype) << ", rows in memory "
              << a.factor.rows_in_memory << b.factor.rows_in_memory << ", " << at.rows << " x " << at.columns << " x "
              << at.count << " at " << i << ", " << j << ", " << times << " times";
        }
    }
  }

  ScopedSimdTarget target{GetParam()};

 protected:
  std::mt19937 random{1};
};
INSTANTIATE_TEST_SUITE_P(Targets, MatmulPieces, ::testing::ValuesIn(simd_targets()),
                         [](const auto& info) { return std::string(info.param); });

constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16, DType::i8, DType::e4m3, DType::e5m2};

TEST_P(MatmulPieces, floats_of_every_dtype_and_orientation_are_exact_on_integers) {
  for (const DType dtype : kDTypes)
    for (const bool a_rows : {true, false})
      for (const bool b_rows : {true, false}) {
        const Numbers a(random, dtype, 50, 70, a_rows), b(random, dtype, 70, 90, b_rows);
        check(0, a, b, {.row = 3, .rows = 33, .column = 5, .columns = 81, .depth = 2, .count = 67});
        check(0, a, b, {.row = 0, .rows = 1, .column = 1, .columns = 1, .depth = 0, .count = 1});
      }
}

TEST_P(MatmulPieces, pairs_of_every_dtype_and_orientation_are_exact_on_integers) {
  const testing::ScopedEmulatedMatrixUnit unit;
  for (const int way : {1, 2})
    for (const DType dtype : {DType::bf16, DType::i8, DType::e4m3, DType::e5m2})
      for (const bool a_rows : {true, false})
        for (const bool b_rows : {true, false}) {
          const Numbers a(random, dtype, 50, 70, a_rows), b(random, DType::bf16, 70, 90, b_rows);
          for (const int64_t count : {1, 2, 33, 67}) {
            check(way, a, b, {.row = 3, .rows = 33, .column = 5, .columns = 81, .depth = 2, .count = count});
            check(way, b, a, {.row = 1, .rows = 17, .column = 3, .columns = 33, .depth = 1, .count = 48});
          }
        }
}

TEST_P(MatmulPieces, every_number_of_rows_and_columns_is_right) {
  for (const int way : {0, 1, 3}) {
    const DType dtype = way == 1 ? DType::bf16 : DType::f32;
    const Numbers a(random, dtype, 48, 20, true), b(random, dtype, 20, 130, true);
    const int64_t most_rows = way == 3 ? kMostStreamedRows : 31;
    for (int64_t rows = 1; rows <= most_rows; ++rows)
      check(way, a, b, {.row = 0, .rows = rows, .column = 0, .columns = 40, .depth = 1, .count = 17});
    for (int64_t columns = 1; columns <= 70; ++columns)
      check(way, a, b, {.row = 2, .rows = 3, .column = 7, .columns = columns, .depth = 0, .count = 9});
  }
}

TEST_P(MatmulPieces, columns_around_those_packed_at_a_time_are_right) {
  const testing::ScopedEmulatedMatrixUnit unit;
  for (const int way : {0, 1, 2, 3}) {
    const DType dtype = way == 1 || way == 2 ? DType::bf16 : DType::f32;
    const Numbers a(random, dtype, 6, 20, true), b(random, dtype, 20, 2 * kPackedColumns + 10, true);
    for (const int64_t columns : {kPackedColumns - 1, kPackedColumns, kPackedColumns + 1, 2 * kPackedColumns + 3})
      check(way, a, b, {.row = 1, .rows = 5, .column = 2, .columns = columns, .depth = 1, .count = 18});
  }
}

TEST_P(MatmulPieces, depths_around_the_ends_of_blocks_are_right) {
  const testing::ScopedEmulatedMatrixUnit unit;
  for (const int way : {0, 1, 2, 3}) {
    const DType dtype = way == 0 ? DType::f32 : DType::bf16;
    const Numbers a(random, dtype, 6, 2100, true), b(random, dtype, 2100, 40, true);
    for (const int64_t count : {15, 16, 17, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 2060})
      check(way, a, b, {.row = 1, .rows = 5, .column = 2, .columns = 36, .depth = 3, .count = count});
  }
}

TEST_P(MatmulPieces, streams_of_every_dtype_are_exact_on_integers) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const bool a_rows : {true, false}) {
      const Numbers a(random, dtype, 16, 60, a_rows), b(random, dtype, 60, 90, true);
      for (const int64_t columns : {1, 31, 32, 33, 85})
        for (const int64_t rows : {5, 13})
          check(3, a, b, {.row = 2, .rows = rows, .column = 3, .columns = columns, .depth = 4, .count = 55});
    }
}

TEST_P(MatmulPieces, scales_are_per_row_column_or_block) {
  const float scales[] = {1, 2, 0.5f, 4, 0.25f, 8, 1, 2, 4, 0.5f};
  for (const bool in_memory : {true, false}) {
    Numbers a(random, DType::i8, 10, 300, in_memory), b(random, DType::e4m3, 300, 10, in_memory);
    const MatmulBlock at{.row = 1, .rows = 9, .column = 1, .columns = 9, .depth = 100, .count = 190};
    a.factor.scale = b.factor.scale = scales;
    check(0, a, b, at);
    a.factor.scale_row = 1, b.factor.scale_column = 1;
    check(0, a, b, at);
    a.factor.scale_column = b.factor.scale_row = 2, a.factor.scale_block_columns = b.factor.scale_block_rows = 128;
    a.factor.scale_row = 0, b.factor.scale_block_columns = 4;
    check(0, a, b, at);
  }
}

TEST_P(MatmulPieces, codes_have_the_value_of_their_dtype) {
  const float one = 1;
  const Factor b = {.data = &one, .dtype = DType::f32, .row = 1, .column = 1};
  for (const DType dtype : {DType::i8, DType::e4m3, DType::e5m2}) {
    uint8_t codes[256];
    for (int i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
    const Factor a = {.data = codes, .dtype = dtype, .row = 1, .column = 1};
    const Memory<float> memory(256, 1);
    HWY_DYNAMIC_DISPATCH(multiply_any)
    (0, a, b, {.row = 0, .rows = 256, .column = 0, .columns = 1, .depth = 0, .count = 1}, false, memory.begin());
    for (int i = 0; i < 256; ++i) {
      const double expected = load_as_double(codes, dtype, i), got = memory.scratch.c[i * memory.scratch.c_stride];
      EXPECT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected))) << name(dtype) << " " << i;
    }
  }
}

}  // namespace
}  // namespace ejk::cpu
#endif
