// Batches of the library's operations: every slice holds what a call of its own gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ejkernel/ops/operations.h"
#include "ejkernel/runtime/batch.h"
#include "ejkernel/testing/problem.h"
#include "ejkernel/testing/random.h"
#include "ejkernel/testing/relation.h"
#include "ejkernel/testing/values.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSlices = 3;

Tensor slice_of(const Tensor& t, int axis, int64_t n) {
  Shape shape, strides;
  for (int i = 0; i < t.rank(); ++i) {
    if (i == axis) continue;
    shape.push_back(t.shape[i]);
    strides.push_back(t.strides[i]);
  }
  return Tensor(t.as<std::byte>() + n * t.strides[axis] * bits(t.dtype) / 8, t.dtype, shape, strides);
}

/// A slice's shape with the axis of the slices put in.
Shape with_slices(const Shape& slice, int axis) {
  Shape shape;
  for (int i = 0; i <= slice.rank(); ++i) {
    if (i == axis) shape.push_back(kSlices);
    if (i < slice.rank()) shape.push_back(slice[i]);
  }
  return shape;
}

Array normal(const Shape& shape, DType dtype = DType::f32) {
  static Random random(7);
  Array array(dtype, shape);
  fill_normal(array, random);
  return array;
}

/// A batch of calls, input by input.
struct Batched {
  explicit Batched(std::string_view name)
      : operation(*KernelRegistry::instance().find(name)->declaration),
        params(operation.default_params),
        inputs(operation.inputs.size()) {}

  /// One for every slice.
  Batched& whole(std::string_view name, const Array& array) {
    inputs[static_cast<size_t>(find_input(operation, name))] = array;
    return *this;
  }
  /// One with an axis that runs over the slices.
  Batched& mapped(std::string_view name, const Array& array, int axis) {
    axes.push_back({name, axis});
    return whole(name, array);
  }
  /// The same of normal numbers, by the shape of a slice.
  Batched& mapped(std::string_view name, const Shape& slice, int axis = 0) {
    return mapped(name, normal(with_slices(slice, axis)), axis);
  }
  template <class Params>
  Batched& with(const Params& values) {
    params = ParamsBlock::of(values);
    return *this;
  }

  std::vector<Tensor> views() const { return {inputs.begin(), inputs.end()}; }

  /// "" where the batch folds, else why not. Each slice of the results was compared with a call of its own: bit for bit
  /// where the batch does not fold.
  std::string why_looped(int out = 0) const {
    const BatchAxes where{InAxes(axes), out};
    const Support folding = BatchPlan::make(operation.name, views(), where, params).folding();
    const std::vector<Array> results = vmap_with_config(operation.name, views(), where, params);
    for (int64_t n = 0; n < kSlices; ++n) {
      std::vector<Tensor> slice = views();
      for (const InAxes::Named& axis : axes) {
        Tensor& input = slice[static_cast<size_t>(find_input(operation, axis.input))];
        input = slice_of(input, axis.axis, n);
      }
      const std::vector<Array> alone = execute(operation.name, slice, params);
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_EQ(results[i].present(), alone[i].present());
        if (!alone[i].present()) continue;
        const Tensor got = slice_of(results[i], out, n);
        EXPECT_EQ(folding.ok ? compare(got, alone[i], 1e-5) : compare_bits(got, alone[i]), "")
            << operation.name << ", " << operation.outputs[i].name << " of slice " << n;
      }
    }
    return folding.reason;
  }

  const Operation& operation;
  ParamsBlock params;
  std::vector<Array> inputs;
  std::vector<InAxes::Named> axes = {};
};

/// Query, key and value of `batch` entries each, mapped at an axis.
Batched attention_at(int axis, int64_t batch, std::string_view name = "flash_attention") {
  Batched b(name);
  b.mapped("query", Shape{batch, 5, 4, 8}, axis);
  b.mapped("key", Shape{batch, 7, 2, 8}, axis);
  b.mapped("value", Shape{batch, 7, 2, 6}, axis);
  return b;
}

TEST(BatchOfFlashAttention, has_its_slices_at_any_axis) {
  for (int in = 0; in <= 3; ++in)
    for (int out = 0; out <= 2; ++out) {
      const bool in_one_order = in == out && in <= 1;
      EXPECT_EQ(attention_at(in, 2).why_looped(out).empty(), in_one_order) << in << ", " << out;
      EXPECT_EQ(attention_at(in, 1).why_looped(out), "") << in << ", " << out;
    }
}

TEST(BatchOfFlashAttention, has_its_slices_at_an_axis_per_input) {
  Batched b("flash_attention");
  b.mapped("query", Shape{1, 5, 4, 8}, 3).mapped("key", Shape{1, 7, 2, 8}, 1).mapped("value", Shape{1, 7, 2, 6}, 2);
  EXPECT_EQ(b.why_looped(), "");
}

TEST(BatchOfFlashAttention, shares_keys_and_values) {
  for (const int64_t batch : {1, 2}) {
    Batched b("flash_attention");
    b.mapped("query", Shape{batch, 5, 4, 8});
    b.whole("key", normal({batch, 7, 2, 8})).whole("value", normal({batch, 7, 2, 6}));
    EXPECT_THAT(b.why_looped(), HasSubstr(batch == 1 ? "" : "no one axis of key"));
    EXPECT_EQ(b.why_looped().empty(), batch == 1);
  }
}

TEST(BatchOfFlashAttention, folds_with_bias_masks_segments_and_lengths) {
  const Array mask = Array::zeros(DType::boolean, {kSlices, 2, 1, 1, 7}),
              ids = Array::zeros(DType::i32, {kSlices, 2, 5}), key_ids = Array::zeros(DType::i32, {kSlices, 2, 7}),
              used(DType::i32, {kSlices, 2});
  fill(mask, [](int64_t n) { return n % 3 != 0; });
  fill(ids, [](int64_t n) { return n % 2; });
  fill(key_ids, [](int64_t n) { return n % 2; });
  fill(used, [](int64_t n) { return n + 1; });
  Batched b = attention_at(0, 2);
  b.mapped("bias", Shape{2, 4, 1, 7}).mapped("attention_mask", mask, 0).mapped("seqused_k", used, 0);
  b.mapped("q_segment_ids", ids, 0).mapped("kv_segment_ids", key_ids, 0);
  b.whole("softmax_aux", normal({4, 1}));
  EXPECT_EQ(b.with(FlashAttention::Params{.causal = true, .sliding_window = 4}).why_looped(), "");
  EXPECT_EQ(attention_at(0, 2).whole("bias", normal({1, 1, 5, 7})).why_looped(), "");
}

TEST(BatchOfFlashAttention, does_not_fold_what_has_no_batch_entries) {
  EXPECT_EQ(attention_at(0, 2).mapped("softmax_aux", Shape{4, 1}).why_looped(),
            "softmax_aux differs from slice to slice and has no dimension batch");
  Batched packed("flash_attention");
  packed.mapped("query", Shape{5, 4, 8}).mapped("key", Shape{7, 2, 8}).mapped("value", Shape{7, 2, 8});
  packed.whole("cu_seqlens_q", i32({0, 2, 5})).whole("cu_seqlens_k", i32({0, 3, 7}));
  EXPECT_EQ(packed.why_looped(), "this form has no dimension batch");
}

/// The mask is drawn by the entry's number: slice by slice every slice has the mask of a call of its own.
TEST(BatchOfFlashAttention, does_not_fold_under_dropout) {
  Batched b = attention_at(0, 2).with(FlashAttention::Params{.dropout_prob = 0.5});
  EXPECT_EQ(b.why_looped(), "with these parameters a result depends on its entry's number");
  const Array seeds(DType::u32, {kSlices, 2});
  fill(seeds, [](int64_t n) { return n; });
  EXPECT_THAT(b.mapped("dropout_seed", seeds, 0).why_looped(), HasSubstr("number"));
}

TEST(BatchOfFlashAttention, maps_scales_of_eight_bit_operands) {
  Batched b("flash_attention");
  for (const auto& [name, heads] : {std::pair("query", 4), std::pair("key", 2), std::pair("value", 2)})
    b.mapped(name, normal({kSlices, 2, 5, heads, 8}, DType::e4m3), 0);
  b.mapped("k_scale", Shape{2, 1, 2});
  EXPECT_EQ(b.why_looped(), "");
  b.mapped("q_scale", Shape{});
  EXPECT_EQ(b.why_looped(), "q_scale differs from slice to slice and has no dimension batch");
}

TEST(BatchOfAttention, has_weights_per_slice) {
  EXPECT_EQ(attention_at(0, 2, "attention").why_looped(), "");
  EXPECT_NE(attention_at(1, 2, "attention").why_looped(2), "");
}

TEST(BatchOfSdpa, has_lengths_per_slice_or_for_all) {
  const Array lengths(DType::i32, {kSlices, 2});
  fill(lengths, [](int64_t n) { return n; });
  Batched b = attention_at(0, 2, "scaled_dot_product_attention");
  EXPECT_EQ(b.mapped("key_value_seq_lengths", lengths, 0).why_looped(), "");
  EXPECT_NE(b.whole("query_seq_lengths", i32({2, 5})).why_looped(), "");
}

TEST(BatchOfMeanPooling, has_its_slices_at_any_axis) {
  for (int in = 0; in <= 2; ++in)
    for (int out = 0; out <= 1; ++out) {
      EXPECT_EQ(Batched("mean_pooling").mapped("x", Shape{2, 9, 5}, in).why_looped(out).empty(), in == out && in <= 1);
      EXPECT_EQ(Batched("mean_pooling").mapped("x", Shape{1, 9, 5}, in).why_looped(out), "");
    }
}

TEST(BatchOfMeanPooling, shares_a_mask_or_has_one_per_slice) {
  const Array masks(DType::boolean, {kSlices, 2, 9}), mask(DType::boolean, {1, 9});
  fill(masks, [](int64_t n) { return n % 3 != 1; });
  fill(mask, [](int64_t n) { return n % 2; });
  EXPECT_EQ(Batched("mean_pooling").mapped("x", Shape{2, 9, 5}).mapped("mask", masks, 0).why_looped(), "");
  EXPECT_EQ(Batched("mean_pooling").mapped("x", Shape{1, 9, 5}).whole("mask", mask).why_looped(), "");
}

TEST(BatchOfMeanPooling, folds_chunks_and_loops_over_packed_sequences) {
  const MeanPooling::Params chunks{.chunk_size = 4};
  EXPECT_EQ(Batched("mean_pooling").mapped("x", Shape{2, 9, 3, 5}).with(chunks).why_looped(), "");
  const Array offsets = i32({0, 4, 9});
  EXPECT_EQ(Batched("mean_pooling").mapped("x", Shape{9, 5}).whole("cu_seqlens", offsets).why_looped(),
            "this form has no dimension batch");
  Batched both = Batched("mean_pooling").mapped("x", Shape{9, 3, 5}).whole("cu_seqlens", offsets).with(chunks);
  EXPECT_EQ(both.why_looped(), "this form has no dimension batch");
}

// ---- gradients ----

/// The gradient's batch of a forward one, mapped at axis 0, with cotangents of out.
Batched gradient_of(const Batched& forward) {
  const std::vector<Array> results =
      vmap_with_config(forward.operation.name, forward.views(), {InAxes(forward.axes)}, forward.params);
  Batched gradient(forward.operation.gradient);
  gradient.params = forward.params;
  for (size_t i = 0; i < forward.inputs.size(); ++i) gradient.inputs[i] = forward.inputs[i];
  gradient.axes = forward.axes;
  return gradient.mapped("out", results[0], 0)
      .mapped("lse", results[1], 0)
      .mapped("d_out", normal(results[0].shape()), 0);
}

TEST(BatchOfGradients, folds) {
  EXPECT_EQ(gradient_of(attention_at(0, 2)).why_looped(), "");
  EXPECT_EQ(gradient_of(attention_at(0, 2).mapped("bias", Shape{2, 1, 5, 7})).why_looped(), "");
  EXPECT_EQ(gradient_of(attention_at(0, 1).mapped("bias", Shape{1, 1, 5, 7})).why_looped(), "");
  EXPECT_EQ(gradient_of(attention_at(0, 2, "scaled_dot_product_attention")).why_looped(), "");
  Batched pooling("mean_pooling_backward");
  EXPECT_EQ(pooling.mapped("d_out", Shape{2, 5}).with(MeanPoolingBackward::Params{.num_tokens = 9}).why_looped(), "");
}

TEST(BatchOfGradients, does_not_fold_sums_over_entries) {
  EXPECT_EQ(gradient_of(attention_at(0, 2).whole("softmax_aux", normal({4, 1}))).why_looped(),
            "softmax_aux is no result per entry of batch");
  EXPECT_EQ(gradient_of(attention_at(0, 2).mapped("bias", Shape{1, 1, 5, 7})).why_looped(),
            "bias is no result per entry of batch")
      << "the entries of a slice share a bias, slices do not";
  EXPECT_EQ(gradient_of(attention_at(0, 1).whole("bias", normal({1, 1, 5, 7}))).why_looped(),
            "bias is no result per entry of batch")
      << "each slice has a gradient of the bias that all share";
}

}  // namespace
}  // namespace ejk::testing
