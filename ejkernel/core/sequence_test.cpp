#include "ejkernel/core/sequence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/error.h"

namespace ejk {
namespace {

using Numbers = std::vector<int64_t>;

Array ints(const Numbers& numbers) {
  Array array(DType::i32, {static_cast<int64_t>(numbers.size())});
  for (size_t i = 0; i < numbers.size(); ++i) set(array, static_cast<int64_t>(i), static_cast<double>(numbers[i]));
  return array;
}

Array bools(const std::vector<Numbers>& rows) {
  const auto width = static_cast<int64_t>(rows.empty() ? 0 : rows[0].size());
  Array array(DType::boolean, {static_cast<int64_t>(rows.size()), width});
  int64_t i = 0;
  for (const Numbers& row : rows)
    for (int64_t x : row) set(array, i++, static_cast<double>(x));
  return array;
}

Numbers numbers(const Tensor& tensor) {
  Numbers all;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) all.push_back(static_cast<int64_t>(get(tensor, i)));
  return all;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

/// Every list of at most `most` lengths from 0 to `longest`.
void for_each_lengths(size_t most, int64_t longest, const std::function<void(const Numbers&)>& visit) {
  std::vector<Numbers> lists = {{}};
  for (size_t next = 0; next < lists.size(); ++next) {
    visit(lists[next]);
    if (lists[next].size() == most) continue;
    for (int64_t length = 0; length <= longest; ++length) {
      Numbers longer = lists[next];
      longer.push_back(length);
      lists.push_back(longer);
    }
  }
}

/// All forms of some lengths, written down token by token.
struct Forms {
  Numbers cu_seqlens = {0}, sequence_ids, position_ids;
  explicit Forms(const Numbers& lengths, int64_t padding = 0) {
    for (size_t n = 0; n < lengths.size(); ++n) {
      cu_seqlens.push_back(cu_seqlens.back() + lengths[n]);
      for (int64_t i = 0; i < lengths[n]; ++i) {
        sequence_ids.push_back(static_cast<int64_t>(n));
        position_ids.push_back(i);
      }
    }
    for (int64_t i = 0; i < padding; ++i) {
      sequence_ids.push_back(-1);
      position_ids.push_back(-1);
    }
  }
  int64_t num_tokens() const { return static_cast<int64_t>(sequence_ids.size()); }
};

TEST(Sequence, every_form_agrees_with_writing_it_down_and_goes_back) {
  for_each_lengths(4, 3, [](const Numbers& lengths) {
    const auto num_sequences = static_cast<int64_t>(lengths.size());
    for (int64_t padding = 0; padding < 3; ++padding) {
      const Forms forms(lengths, padding);
      const Array cu_seqlens = cu_seqlens_from_lengths(ints(lengths));
      ASSERT_EQ(numbers(cu_seqlens), forms.cu_seqlens);
      ASSERT_EQ(numbers(lengths_from_cu_seqlens(cu_seqlens)), lengths);
      const Array sequence_ids = sequence_ids_from_cu_seqlens(cu_seqlens, forms.num_tokens());
      ASSERT_EQ(numbers(sequence_ids), forms.sequence_ids);
      ASSERT_EQ(numbers(cu_seqlens_from_sequence_ids(sequence_ids, num_sequences)), forms.cu_seqlens);
      const Array position_ids = position_ids_from_cu_seqlens(cu_seqlens, forms.num_tokens());
      ASSERT_EQ(numbers(position_ids), forms.position_ids);
      ASSERT_EQ(numbers(position_ids_from_sequence_ids(sequence_ids)), forms.position_ids);

      Numbers not_empty = lengths;
      not_empty.erase(std::remove(not_empty.begin(), not_empty.end(), 0), not_empty.end());
      ASSERT_EQ(numbers(sequence_ids_from_position_ids(position_ids)), Forms(not_empty, padding).sequence_ids);
    }
  });
}

TEST(Sequence, mask_and_lengths_go_both_ways) {
  for_each_lengths(3, 3, [](const Numbers& lengths) {
    for (int64_t width = 3; width < 5; ++width) {
      const Array mask = mask_from_lengths(ints(lengths), width);
      EXPECT_EQ(mask.dtype(), DType::boolean);
      ASSERT_EQ(mask.shape(), (Shape{static_cast<int64_t>(lengths.size()), width}));
      for (int64_t i = 0; i < mask.num_elements(); ++i)
        ASSERT_EQ(get(mask, i) != 0, i % width < lengths[static_cast<size_t>(i / width)]);
      ASSERT_EQ(numbers(lengths_from_mask(mask)), lengths);
    }
  });
  EXPECT_EQ(numbers(lengths_from_mask(Array(DType::boolean, {2, 0}))), (Numbers{0, 0}));
}

TEST(Sequence, every_mask_that_is_not_a_prefix_is_an_error) {
  for (int pattern = 0; pattern < 32; ++pattern) {
    Numbers row;
    for (int bit = 0; bit < 5; ++bit) row.push_back(pattern >> bit & 1);
    const bool is_prefix = std::is_sorted(row.rbegin(), row.rend());
    const auto convert = [&] { lengths_from_mask(bools({{1, 1, 1, 0, 0}, row})); };
    EXPECT_EQ(error_of(convert) == "no InvalidArgument", is_prefix) << pattern;
  }
  EXPECT_EQ(error_of([] {
              lengths_from_mask(bools({{1, 0}, {0, 1}}));
            }),
            "lengths_from_mask: mask must be true for the first positions of each row and false after, got true at "
            "[1, 1] after false at [1, 0]; use segment ids for masks with holes");
}

TEST(Sequence, chunk_ids_and_offsets_agree_with_counting) {
  for_each_lengths(3, 7, [](const Numbers& lengths) {
    for (int64_t chunk_size : {1, 2, 3, 8}) {
      for (int64_t padding : {0, 5}) {
        const Forms forms(lengths, padding);
        Numbers rows, offsets = {0};
        for (size_t n = 0; n < lengths.size(); ++n) {
          for (int64_t chunk = 0; chunk * chunk_size < lengths[n]; ++chunk)
            rows.insert(rows.end(), {static_cast<int64_t>(n), chunk});
          offsets.push_back(static_cast<int64_t>(rows.size()) / 2);
        }
        const int64_t num_rows =
            (forms.num_tokens() + chunk_size - 1) / chunk_size + static_cast<int64_t>(lengths.size());
        ASSERT_LE(static_cast<int64_t>(rows.size()), 2 * num_rows);
        rows.resize(static_cast<size_t>(2 * num_rows), -1);

        const Array cu_seqlens = ints(forms.cu_seqlens);
        const Array ids = chunk_ids_from_cu_seqlens(cu_seqlens, chunk_size, forms.num_tokens());
        ASSERT_EQ(ids.shape(), (Shape{num_rows, 2}));
        ASSERT_EQ(numbers(ids), rows);
        ASSERT_EQ(numbers(chunk_offsets_from_cu_seqlens(cu_seqlens, chunk_size)), offsets);
      }
    }
  });
}

TEST(Sequence, strided_arguments_are_read_by_their_strides) {
  const Array reversed = ints({5, 99, 2, 99, 0});
  Tensor offsets = reversed;
  offsets.data = reversed.as<int32_t>() + 4;
  offsets.shape = {3};
  offsets.strides = {-2};
  EXPECT_EQ(numbers(lengths_from_cu_seqlens(offsets)), (Numbers{2, 3}));
}

TEST(Sequence, contents_that_mean_nothing_are_refused) {
  EXPECT_EQ(error_of([] {
              cu_seqlens_from_lengths(ints({3, -1}));
            }),
            "cu_seqlens_from_lengths: lengths must not be negative, got lengths[1] = -1; use 0 for an empty sequence");
  EXPECT_EQ(error_of([] {
              lengths_from_cu_seqlens(ints({0, 4, 3, 5}));
            }),
            "lengths_from_cu_seqlens: cu_seqlens must never fall, got cu_seqlens[2] = 3 after 4; sum the lengths up");
  EXPECT_EQ(error_of([] {
              sequence_ids_from_position_ids(ints({0, 1, 3}));
            }),
            "sequence_ids_from_position_ids: position_ids must count up from 0 in each sequence, got "
            "position_ids[2] = 3 after 1; give the packed sequences one after another");
  const std::function<void()> calls[] = {
      [] {
        cu_seqlens_from_lengths(ints({INT32_MAX, 1}));
      },
      [] { lengths_from_cu_seqlens(ints({})); },
      [] {
        lengths_from_cu_seqlens(ints({1, 2}));
      },
      [] { mask_from_lengths(ints({4}), 3); },
      [] { mask_from_lengths(ints({0}), -1); },
      [] {
        sequence_ids_from_cu_seqlens(ints({0, 4}), 3);
      },
      [] { sequence_ids_from_cu_seqlens(ints({0}), -1); },
      [] {
        position_ids_from_cu_seqlens(ints({0, INT32_MAX}), 8);
      },
      [] {
        cu_seqlens_from_sequence_ids(ints({0, 2}), 2);
      },
      [] {
        cu_seqlens_from_sequence_ids(ints({1, 0}), 2);
      },
      [] {
        cu_seqlens_from_sequence_ids(ints({0, -1, 1}), 2);
      },
      [] { cu_seqlens_from_sequence_ids(ints({-2}), 2); },
      [] { cu_seqlens_from_sequence_ids(ints({}), -1); },
      [] { cu_seqlens_from_sequence_ids(ints({0}), 0); },
      [] { position_ids_from_sequence_ids(ints({INT32_MIN})); },
      [] { sequence_ids_from_position_ids(ints({1})); },
      [] {
        sequence_ids_from_position_ids(ints({0, INT32_MIN}));
      },
      [] {
        sequence_ids_from_position_ids(ints({0, -1, 0}));
      },
      [] {
        sequence_ids_from_position_ids(ints({0, -1, 1}));
      },
      [] {
        chunk_ids_from_cu_seqlens(ints({0, 4}), 0, 4);
      },
      [] {
        chunk_offsets_from_cu_seqlens(ints({0, 4}), -1);
      },
  };
  for (const auto& call : calls) EXPECT_NE(error_of(call), "no InvalidArgument") << &call - calls;
}

TEST(Sequence, other_dtypes_ranks_and_devices_are_refused) {
  EXPECT_EQ(error_of([] { cu_seqlens_from_lengths(Array(DType::f32, {2})); }),
            "cu_seqlens_from_lengths: lengths must be i32 of rank 1 in host memory, got f32[2] on cpu; convert or copy "
            "it first");
  EXPECT_THROW(lengths_from_cu_seqlens(Array::zeros(DType::i32, {1, 2})), InvalidArgument);
  EXPECT_THROW(lengths_from_cu_seqlens(Tensor{}), InvalidArgument);
  EXPECT_THROW(lengths_from_mask(Array::zeros(DType::i32, {1, 2})), InvalidArgument);
  EXPECT_THROW(lengths_from_cu_seqlens(Tensor(nullptr, DType::i32, {3}, Device{DeviceKind::cuda, 0})), InvalidArgument);
  EXPECT_THROW(global_cumsum(Array(DType::f16, {2}), 0), InvalidArgument);
  EXPECT_THROW(global_cumsum(Array(DType::f32, {2}), 1), InvalidArgument);
  EXPECT_THROW(global_cumsum(Array(DType::f32, {2}), -2), InvalidArgument);
  EXPECT_THROW(global_cumsum(Array(DType::f32, {}), 0), InvalidArgument);
  EXPECT_THROW(local_cumsum(Array(DType::f32, {2}), 0, 0), InvalidArgument);
  const Array cu_seqlens = ints({0, 3});
  EXPECT_THROW(global_cumsum(Array(DType::f32, {2}), 0, {.cu_seqlens = cu_seqlens}), InvalidArgument);
}

/// Sums by the definition: element t adds every u of its own run on its side.
double sum_by_definition(const Tensor& values, const Numbers& cu_seqlens, int64_t chunk_size, bool reverse, int64_t row,
                         int64_t column, int64_t num_columns) {
  for (size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
    if (row < cu_seqlens[n] || row >= cu_seqlens[n + 1]) continue;
    double sum = 0;
    for (int64_t u = cu_seqlens[n]; u < cu_seqlens[n + 1]; ++u) {
      const bool same_chunk = (u - cu_seqlens[n]) / chunk_size == (row - cu_seqlens[n]) / chunk_size;
      if (same_chunk && (reverse ? u >= row : u <= row)) sum += get(values, u * num_columns + column);
    }
    return sum;
  }
  return 0;
}

TEST(Cumsum, packed_sums_agree_with_the_definition) {
  std::mt19937 random(11);
  constexpr int64_t kColumns = 2;
  for_each_lengths(3, 4, [&](const Numbers& lengths) {
    const Forms forms(lengths, static_cast<int64_t>(random() % 3));
    const Array cu_seqlens = ints(forms.cu_seqlens);
    for (DType dtype : {DType::f32, DType::f64, DType::i32}) {
      Array values(dtype, {forms.num_tokens(), kColumns});
      for (int64_t i = 0; i < values.num_elements(); ++i) set(values, i, static_cast<double>(random() % 100) - 50);
      for (int64_t chunk_size : {1, 2, 3, 100}) {
        for (bool reverse : {false, true}) {
          const CumsumOptions options = {.reverse = reverse, .cu_seqlens = cu_seqlens};
          const Array sums =
              chunk_size == 100 ? global_cumsum(values, 0, options) : local_cumsum(values, -2, chunk_size, options);
          ASSERT_EQ(sums.dtype(), dtype);
          for (int64_t i = 0; i < values.num_elements(); ++i)
            ASSERT_EQ(get(sums, i), sum_by_definition(values, forms.cu_seqlens, chunk_size, reverse, i / kColumns,
                                                      i % kColumns, kColumns));
        }
      }
    }
  });
}

TEST(Cumsum, any_axis_of_any_view_is_summed_and_the_source_stays) {
  const Array base(DType::f32, {2, 3, 4});
  for (int64_t i = 0; i < 24; ++i) set(base, i, static_cast<double>(i * i % 7));
  Tensor view = base;  // axes reversed
  view.shape = {4, 3, 2};
  view.strides = {1, 4, 12};
  const Array before = contiguous(view);
  for (int axis = 0; axis < 3; ++axis) {
    const Array sums = global_cumsum(view, axis);
    const int64_t stride = before.view().strides[axis];
    for (int64_t i = 0; i < 24; ++i) {
      double expected = 0;
      for (int64_t t = i / stride % view.shape[axis], j = i; t >= 0; --t, j -= stride) expected += get(before, j);
      EXPECT_EQ(get(sums, i), expected);
    }
  }
  EXPECT_EQ(numbers(view), numbers(before));
}

TEST(Cumsum, floats_are_summed_in_double_and_rounded_once) {
  Array values(DType::f32, {1000});
  double exact = 0;
  for (int64_t i = 0; i < 1000; ++i) set(values, i, i == 0 ? 16777216.0 : 0.5);
  const Array sums = global_cumsum(values, 0);
  for (int64_t i = 0; i < 1000; ++i) {
    exact += get(values, i);
    EXPECT_EQ(sums.as<float>()[i], static_cast<float>(exact));  // float sums would stay at 2^24
  }
}

TEST(Cumsum, integers_that_do_not_fit_are_an_error_and_not_a_wrap) {
  const Array values = ints({INT32_MAX, 1, -1});
  EXPECT_EQ(error_of([&] { global_cumsum(values, 0); }),
            "global_cumsum: values must have sums that fit i32, got 2147483648; convert them to f64");
  EXPECT_EQ(numbers(global_cumsum(values, 0, {.reverse = true})), (Numbers{INT32_MAX, 0, -1}));
  EXPECT_EQ(numbers(local_cumsum(values, 0, 1)), numbers(values));
}

TEST(Cumsum, empty_axes_and_tensors_are_fine) {
  EXPECT_EQ(global_cumsum(Array(DType::f64, {0, 3}), 0).shape(), (Shape{0, 3}));
  EXPECT_EQ(local_cumsum(Array(DType::f64, {3, 0}), 0, 2).shape(), (Shape{3, 0}));
  const Array no_sequences = ints({0});
  const Array values = ints({1, 2});
  EXPECT_EQ(numbers(global_cumsum(values, 0, {.cu_seqlens = no_sequences})), (Numbers{0, 0}));
}

TEST(Sequence, running_out_of_memory_anywhere_is_a_typed_error_without_a_leak) {
  const Array cu_seqlens = ints({0, 2, 5});
  const int64_t before = num_host_blocks();
  const auto use_all = [&] {
    chunk_ids_from_cu_seqlens(cu_seqlens, 2, 5);
    global_cumsum(ints({1, 2, 3, 4, 5}), 0, {.cu_seqlens = cu_seqlens});
  };
  int failures = 0;
  for (int64_t k = 1;; ++k) {
    fail_host_allocation(k);
    try {
      use_all();
      break;
    } catch (const Internal& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
      ++failures;
    }
    EXPECT_EQ(num_host_blocks(), before);
  }
  fail_host_allocation(0);
  EXPECT_GE(failures, 6);
}

}  // namespace
}  // namespace ejk
