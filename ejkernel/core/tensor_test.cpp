#include "ejkernel/core/tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/error.h"

namespace ejk {
namespace {

/// A view for arithmetic on shapes and strides only: its memory is never touched.
Tensor strided(const Shape& shape, const Shape& strides, DType dtype = DType::f32) {
  return Tensor(nullptr, dtype, shape, strides);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

std::vector<int64_t> offsets_of(const Tensor& tensor) {
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) offsets.push_back(element_offset(tensor, i));
  return offsets;
}

TEST(Shape, counts_prints_and_compares) {
  EXPECT_EQ(to_string(Shape{2, 8, 4, 64}), "[2, 8, 4, 64]");
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(Shape{}.num_elements(), 1);
  EXPECT_EQ((Shape{3, 0, 5}).num_elements(), 0);
  EXPECT_EQ((Shape{3, 4, 5}).num_elements(), 60);
  EXPECT_EQ((Shape{3, 4, 5})[-1], 5);
  EXPECT_EQ((Shape{3, 4}), (Shape{3, 4}));
  EXPECT_NE((Shape{3, 4}), (Shape{3, 4, 1}));
  EXPECT_NE((Shape{3, 4}), (Shape{4, 3}));
}

TEST(Shape, a_count_that_does_not_fit_stays_at_the_largest_and_negative_extents_hold_nothing) {
  constexpr int64_t kHuge = int64_t{1} << 40;
  EXPECT_EQ((Shape{kHuge, kHuge}).num_elements(), INT64_MAX);
  EXPECT_EQ((Shape{kHuge, kHuge, 0}).num_elements(), 0);
  EXPECT_EQ((Shape{-1, 5}).num_elements(), 0);
  EXPECT_EQ((Shape{INT64_MIN, INT64_MIN}).num_elements(), 0);
  EXPECT_EQ(contiguous_strides({kHuge, kHuge, kHuge}), (Shape{INT64_MAX, kHuge, 1}));
}

TEST(Shape, more_axes_than_supported_are_refused) {
  EXPECT_EQ(error_of([] { Shape{1, 2, 3, 4, 5, 6, 7}; }),
            "Shape: at most 6 axes are supported, 7 were given; merge or drop axes");
  Shape full{1, 2, 3, 4, 5, 6};
  EXPECT_THROW(full.push_back(7), InvalidArgument);
  Shape grown;
  grown.push_back(4);
  grown.push_back(2);
  EXPECT_EQ(grown, (Shape{4, 2}));
}

TEST(Shape, contiguous_strides_are_row_major_and_never_zero) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Shape{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({2, 0, 4}), (Shape{4, 4, 1}));
  EXPECT_EQ(contiguous_strides({}), Shape{});
}

TEST(Tensor, absent_is_the_default_and_differs_from_empty) {
  EXPECT_FALSE(Tensor{}.present());
  EXPECT_EQ(to_string(Tensor{}), "absent");
  EXPECT_EQ(Tensor{}.num_elements(), 0);
  const Tensor empty(nullptr, DType::bf16, {0, 4});
  EXPECT_TRUE(empty.present());
  EXPECT_EQ(to_string(empty), "bf16[0, 4]");
  EXPECT_EQ(to_string(Tensor(nullptr, DType::f32, {2, 8})), "f32[2, 8]");
}

TEST(Tensor, num_bytes_rounds_i4_up_once_and_refuses_what_does_not_fit) {
  EXPECT_EQ(num_bytes(DType::f64, {3}), 24);
  EXPECT_EQ(num_bytes(DType::boolean, {3, 5}), 15);
  EXPECT_EQ(num_bytes(DType::i4, {3, 5}), 8);
  EXPECT_EQ(num_bytes(DType::i4, {}), 1);
  EXPECT_EQ(num_bytes(DType::f32, {0, INT64_MAX, INT64_MAX}), 0);
  EXPECT_EQ(num_bytes(DType::u8, {(int64_t{1} << 60) - 1}), (int64_t{1} << 60) - 1);
  EXPECT_EQ(error_of([] { num_bytes(DType::u8, {int64_t{1} << 60}); }),
            "num_bytes: the shape must take less than 2^60 bytes, got u8[1152921504606846976]; "
            "correct it");
  EXPECT_THROW(num_bytes(DType::f32, {INT64_MAX, INT64_MAX}), InvalidArgument);
  EXPECT_THROW(num_bytes(DType::i4, {INT64_MAX}), InvalidArgument);
  EXPECT_EQ(error_of([] {
              num_bytes(DType::f32, {2, -3});
            }),
            "num_bytes: the shape must have no negative extents, got f32[2, -3]; correct it");
}

TEST(Tensor, element_range_holds_exactly_what_the_view_touches) {
  using Range = std::array<int64_t, 2>;
  EXPECT_EQ(element_range(Tensor{}), (Range{0, 0}));
  EXPECT_EQ(element_range(strided({3, 0}, {1, 1})), (Range{0, 0}));
  EXPECT_EQ(element_range(strided({}, {})), (Range{0, 1}));
  EXPECT_EQ(element_range(strided({3, 4}, {4, 1})), (Range{0, 12}));
  EXPECT_EQ(element_range(strided({3, 4}, {-4, 1})), (Range{-8, 4}));
  EXPECT_EQ(element_range(strided({3, 4}, {0, -2})), (Range{-6, 1}));
  EXPECT_EQ(element_range(strided({1, 4}, {INT64_MIN, 1})), (Range{0, 4}));
}

TEST(Tensor, element_range_of_absurd_strides_stays_at_the_ends) {
  using Range = std::array<int64_t, 2>;
  EXPECT_EQ(element_range(strided({3}, {INT64_MAX})), (Range{0, INT64_MAX}));
  EXPECT_EQ(element_range(strided({2}, {INT64_MAX})), (Range{0, INT64_MAX}));
  EXPECT_EQ(element_range(strided({3}, {INT64_MIN})), (Range{INT64_MIN, 1}));
  EXPECT_EQ(element_range(strided({INT64_MAX, 3, 5}, {INT64_MIN, INT64_MAX, INT64_MIN})),
            (Range{INT64_MIN, INT64_MAX}));
  EXPECT_EQ(element_range(strided({2, 2}, {INT64_MIN, INT64_MIN})), (Range{INT64_MIN, 1}));
}

TEST(Tensor, overlaps_itself_agrees_with_counting_offsets) {
  std::mt19937 random(3);
  int overlapping = 0;
  int distinct = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    Shape shape;
    Shape strides;
    for (unsigned rank = random() % 4; rank > 0; --rank) {
      shape.push_back(static_cast<int64_t>(random() % 4));
      strides.push_back(static_cast<int64_t>(random() % 25) - 12);
    }
    const Tensor tensor = strided(shape, strides);
    const auto offsets = offsets_of(tensor);
    const std::set<int64_t> unique(offsets.begin(), offsets.end());
    const bool meets = unique.size() != offsets.size();
    if (meets) {
      ASSERT_TRUE(overlaps_itself(tensor)) << to_string(shape) << to_string(strides);
    }
    (meets ? overlapping : distinct) += 1;
    const auto [lowest, end] = element_range(tensor);
    ASSERT_EQ(lowest, unique.empty() ? 0 : *unique.begin());
    ASSERT_EQ(end, unique.empty() ? 0 : *unique.rbegin() + 1);
  }
  EXPECT_GT(overlapping, 500);
  EXPECT_GT(distinct, 500);
}

TEST(Tensor, slices_permutations_and_reversals_do_not_overlap_but_broadcasts_do) {
  EXPECT_FALSE(overlaps_itself(strided({2, 3, 4}, {12, 4, 1})));
  EXPECT_FALSE(overlaps_itself(strided({4, 2, 3}, {1, 12, 4})));
  EXPECT_FALSE(overlaps_itself(strided({2, 3, 4}, {-24, 8, -2})));
  EXPECT_FALSE(overlaps_itself(strided({1, 4}, {0, 1})));
  EXPECT_FALSE(overlaps_itself(strided({2, 0}, {0, 0})));
  EXPECT_FALSE(overlaps_itself(Tensor{}));
  EXPECT_TRUE(overlaps_itself(strided({2, 4}, {0, 1})));
  EXPECT_TRUE(overlaps_itself(strided({5, 4}, {3, 1})));
  EXPECT_TRUE(overlaps_itself(strided({2, 3}, {3, 2})));  // documented: interleaved without meeting
  EXPECT_FALSE(overlaps_itself(strided({2}, {INT64_MIN})));
  EXPECT_TRUE(overlaps_itself(strided({3, 3}, {INT64_MAX, INT64_MIN})));
}

TEST(Tensor, is_contiguous_ignores_strides_that_do_not_matter) {
  EXPECT_TRUE(is_contiguous(strided({2, 3}, {3, 1})));
  EXPECT_TRUE(is_contiguous(strided({2, 1, 3}, {3, 77, 1})));
  EXPECT_TRUE(is_contiguous(strided({0, 3}, {-5, 9})));
  EXPECT_TRUE(is_contiguous(strided({}, {})));
  EXPECT_FALSE(is_contiguous(strided({2, 3}, {1, 2})));
  EXPECT_FALSE(is_contiguous(strided({2, 3}, {4, 1})));
  EXPECT_FALSE(is_contiguous(strided({2}, {-1})));
}

TEST(Tensor, get_and_set_follow_the_strides) {
  std::vector<float> memory(12);
  const Tensor transposed(memory.data(), DType::f32, {3, 4}, {1, 3});
  for (int64_t i = 0; i < 12; ++i) set(transposed, i, static_cast<double>(i));
  EXPECT_EQ(memory[1], 4);  // element (1, 0)
  EXPECT_EQ(memory[3], 1);  // element (0, 1)
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(get(transposed, i), static_cast<double>(i));
  const Tensor reversed(memory.data() + 11, DType::f32, {12}, {-1});
  EXPECT_EQ(get(reversed, 0), memory[11]);
}

TEST(Array, memory_is_aligned_owned_and_released_with_the_last_copy) {
  const int64_t before = num_host_blocks();
  {
    Array array(DType::f32, {3, 5});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data()) % 64, 0u);
    EXPECT_TRUE(is_contiguous(array));
    EXPECT_EQ(num_host_blocks(), before + 1);
    const Array shared = array;
    EXPECT_EQ(shared.data(), array.data());
    array = Array();
    EXPECT_EQ(num_host_blocks(), before + 1);
    EXPECT_FALSE(array.present());
  }
  EXPECT_EQ(num_host_blocks(), before);
}

TEST(Array, empty_ones_need_no_memory) {
  const int64_t before = num_host_blocks();
  const Array array(DType::f32, {3, 0});
  EXPECT_TRUE(array.present());
  EXPECT_EQ(array.data(), nullptr);
  EXPECT_EQ(num_host_blocks(), before);
  EXPECT_EQ(contiguous(array).shape(), (Shape{3, 0}));
  EXPECT_EQ(convert(array, DType::i4).dtype(), DType::i4);
  EXPECT_EQ(Array::zeros(DType::f32, {0}).num_elements(), 0);
}

TEST(Array, what_cannot_be_allocated_is_a_typed_error) {
  EXPECT_THROW(Array(DType::f32, {INT64_MAX}), InvalidArgument);
  EXPECT_THROW(Array(DType::f32, {-1}), InvalidArgument);
  EXPECT_THROW(Array(DType::f32, {4}, Device{DeviceKind::cuda, 1000}), Unsupported);
  try {
    Array(DType::u8, {int64_t{1} << 55});
    FAIL() << "2^55 bytes were allocated";
  } catch (const Internal& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  }
  fail_host_allocation(1);
  EXPECT_THROW(Array(DType::f32, {4}), Internal);
}

TEST(Array, an_owner_is_kept_as_long_as_any_copy) {
  int released = 0;
  std::vector<float> memory(4);
  {
    const std::shared_ptr<void> owner(memory.data(), [&](void*) { ++released; });
    const Array array(Tensor(memory.data(), DType::f32, {4}), owner);
    const Array copy = array;
    EXPECT_EQ(copy.data(), memory.data());
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}

TEST(Array, clone_and_zeros_have_memory_of_their_own) {
  const Array zeros = Array::zeros(DType::bf16, {2, 3});
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(get(zeros, i), 0);
  const Array clone = zeros.clone();
  set(clone, 2, 7);
  EXPECT_EQ(get(zeros, 2), 0);
  EXPECT_EQ(get(clone, 2), 7);
  EXPECT_FALSE(Array().clone().present());
}

/// All bit patterns of one byte survive, in every dtype, from a view with reversed, permuted and strided axes.
TEST(Array, contiguous_copies_any_view_bit_for_bit) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    SCOPED_TRACE(name(dtype));
    const Array base(dtype, {4, 5, 6});
    auto* bytes = base.as<uint8_t>();
    for (int64_t b = 0; b < num_bytes(dtype, base.shape()); ++b) bytes[b] = static_cast<uint8_t>(b * 37 + 200);
    // base[::-1, 1::2, :] with the last two axes exchanged; i4 counts elements in nibbles like the others in words.
    Tensor view = base;
    view.shape = {4, 6, 2};
    view.strides = {-30, 1, 12};
    const int64_t origin = 3 * 30 + 6;
    view.data = bytes + origin * bits(dtype) / 8;
    const Array copy = contiguous(view);
    EXPECT_TRUE(is_contiguous(copy));
    EXPECT_EQ(copy.dtype(), dtype);
    for (int64_t flat = 0; flat < copy.num_elements(); ++flat) {
      const int64_t from = origin + element_offset(view, flat);
      if (dtype == DType::i4) {
        EXPECT_EQ(get(copy, flat), load_as_double(bytes, dtype, from));
        continue;
      }
      const int64_t size = bits(dtype) / 8;
      EXPECT_TRUE(std::equal(bytes + from * size, bytes + (from + 1) * size, copy.as<uint8_t>() + flat * size));
    }
  }
}

TEST(Tensor, byte_range_counts_whole_bytes) {
  using Range = std::array<int64_t, 2>;
  EXPECT_EQ(byte_range(Tensor(nullptr, DType::f32, {2, 3}, {-8, 1})), (Range{-32, 12}));
  EXPECT_EQ(byte_range(Tensor(nullptr, DType::i4, {2, 3}, {4, 1})), (Range{0, 4})) << "seven elements";
  EXPECT_EQ(byte_range(Tensor(nullptr, DType::i4, {2, 4}, {-4, 1})), (Range{-2, 2}));
  EXPECT_EQ(byte_range(Tensor(nullptr, DType::f32, {0, 3})), (Range{0, 0}));
  EXPECT_EQ(byte_range(Tensor(nullptr, DType::f64, {2}, {INT64_MAX / 2})), (Range{0, INT64_MAX}));
  EXPECT_EQ(byte_range(Tensor(nullptr, DType::i4, {2}, {INT64_MAX})), (Range{0, INT64_MAX / 2 + 1}));
}

TEST(Array, contiguous_takes_scalars_and_axes_of_one_with_any_stride) {
  float memory[2] = {3, 4};
  EXPECT_EQ(get(contiguous(Tensor(memory, DType::f32, {})), 0), 3);
  const Tensor odd(memory, DType::f32, {1, 2, 1, 1}, {INT64_MAX, 1, INT64_MIN, -7});
  const Array copy = convert(odd, DType::f64);
  EXPECT_EQ(get(copy, 0), 3);
  EXPECT_EQ(get(copy, 1), 4);
  const Tensor broadcast(memory, DType::f32, {2, 3}, {1, 0});
  const Array spread = contiguous(broadcast);
  EXPECT_EQ(get(spread, 2), 3);
  EXPECT_EQ(get(spread, 3), 4);
}

TEST(Array, convert_rounds_once_between_all_dtypes) {
  for (int from = 0; from < kNumDTypes; ++from)
    for (int to = 0; to < kNumDTypes; ++to) {
      const auto source_dtype = static_cast<DType>(from);
      const auto target_dtype = static_cast<DType>(to);
      const Array source(source_dtype, {3, 3});
      for (int64_t i = 0; i < 9; ++i) set(source, i, static_cast<double>(i) * 0.75 - 3);
      Tensor transposed = source;
      transposed.strides = {1, 3};
      const Array target = convert(transposed, target_dtype);
      Array expected(target_dtype, {1});
      for (int64_t i = 0; i < 9; ++i) {
        set(expected, 0, get(transposed, i));
        EXPECT_EQ(get(target, i), get(expected, 0)) << name(source_dtype) << " to " << name(target_dtype);
      }
    }
  EXPECT_FALSE(convert(Tensor{}, DType::f32).present());
}

TEST(Array, device_memory_is_not_read) {
  const Tensor on_gpu(nullptr, DType::f32, {2}, Device{DeviceKind::cuda, 0});
  EXPECT_THROW(contiguous(on_gpu), Unsupported);
  EXPECT_THROW(convert(on_gpu, DType::f64), Unsupported);
}

}  // namespace
}  // namespace ejk
