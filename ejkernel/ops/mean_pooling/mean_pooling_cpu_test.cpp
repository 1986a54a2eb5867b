// What is special to the CPU kernels of mean_pooling: every instruction set, every number of threads, no allocation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cpu/simd_target.h"
#include "ejkernel/testing/allocation_counter.h"
#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using testing::bools;
using testing::i32;

/// Inputs of one forward call and what owns them.
struct Drawn {
  std::vector<Array> owners;
  MeanPooling::Inputs in;
  MeanPooling::Params params;
};

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}

  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  Array normal(DType dtype, const Shape& shape) {
    Array a(dtype, shape);
    std::normal_distribution<double> normal;
    for (int64_t n = 0; n < a.num_elements(); ++n) set(a, n, normal(random_));
    return a;
  }

  /// Any form, some with gaps between the rows, between the heads, or both.
  Drawn problem(DType dtype, int64_t most_tokens) {
    Drawn drawn;
    const int64_t tokens = between(0, most_tokens), dim = between(1, 70) * between(1, 12), batch = between(1, 3);
    const bool packed = between(0, 1) == 1, chunked = between(0, 1) == 1;
    const int64_t heads = chunked ? between(1, 3) : 1, head_gap = chunked ? between(0, 1) * 3 : 0,
                  row_gap = between(0, 1);
    const int64_t head_stride = dim + head_gap, row_stride = heads * head_stride + row_gap;
    drawn.owners.push_back(normal(dtype, {(packed ? 1 : batch) * tokens * row_stride}));
    Shape shape, strides;
    if (!packed) shape.push_back(batch), strides.push_back(tokens * row_stride);
    shape.push_back(tokens), strides.push_back(row_stride);
    if (chunked) shape.push_back(heads), strides.push_back(head_stride);
    shape.push_back(dim), strides.push_back(1);
    drawn.in.x = Tensor(drawn.owners[0].data(), dtype, shape, strides);
    if (chunked) drawn.params.chunk_size = between(1, tokens + 2);
    if (packed) add_offsets(drawn, tokens);
    if (!packed && !chunked && between(0, 1) == 1) add_mask(drawn, batch, tokens);
    return drawn;
  }

 private:
  /// Rising offsets, or now and then whatever comes.
  void add_offsets(Drawn& drawn, int64_t tokens) {
    std::vector<double> offsets;
    for (int64_t n = between(1, 6); n > 0; --n) offsets.push_back(static_cast<double>(between(-1, tokens + 1)));
    if (between(0, 2) > 0) std::sort(offsets.begin(), offsets.end());
    drawn.owners.push_back(i32(offsets));
    drawn.in.cu_seqlens = drawn.owners.back();
  }
  void add_mask(Drawn& drawn, int64_t batch, int64_t tokens) {
    std::vector<double> selected;
    for (int64_t n = 0; n < batch * tokens; ++n) selected.push_back(static_cast<double>(between(0, 1)));
    drawn.owners.push_back(bools({batch, tokens}, selected));
    drawn.in.mask = drawn.owners.back();
  }

  std::mt19937 random_;
};

CallOptions by(const std::string& kernel) { return {.plan = {.kernel = kernel}}; }

/// Gradient of x for the cotangent 1, 2, 3 … of out.
Array gradient(const Drawn& drawn, const Array& d_out, const std::string& kernel) {
  return execute<MeanPoolingBackward>({.d_out = d_out, .mask = drawn.in.mask, .cu_seqlens = drawn.in.cu_seqlens},
                                      {.chunk_size = drawn.params.chunk_size,
                                       .num_tokens = drawn.in.x.shape[drawn.in.cu_seqlens.present() ? 0 : 1]},
                                      by(kernel))
      .x;
}

bool same_bits(const Array& a, const Array& b) {
  if (!(a.shape() == b.shape())) return false;
  const auto bytes = static_cast<size_t>(num_bytes(a.dtype(), a.shape()));
  return bytes == 0 || std::memcmp(a.data(), b.data(), bytes) == 0;  // an empty array may have no memory
}

/// Relative to the larger of 1 and the value: f32 results are the reference's own bits.
void expect_close(const Array& actual, const Array& expected, const std::string& what) {
  if (actual.dtype() == DType::f32) {
    EXPECT_TRUE(same_bits(actual, expected)) << what;
  }
  const double u = unit_roundoff(actual.dtype());
  for (int64_t n = 0; n < actual.num_elements(); ++n)
    ASSERT_NEAR(get(actual, n), get(expected, n), 2 * u * std::max(1.0, std::abs(get(expected, n))))
        << what << " " << n;
}

TEST(MeanPoolingCpu, agrees_with_the_reference_on_every_instruction_set) {
  for (const std::string_view target : cpu::simd_targets()) {
    const cpu::ScopedSimdTarget scoped(target);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (uint32_t seed = 0; seed < 40; ++seed) {
        Draw draw(seed);
        const Drawn drawn = draw.problem(dtype, 90);
        const std::string what = std::string(target) + " " + std::string(name(dtype)) + " seed " + std::to_string(seed);
        const auto actual = mean_pooling(drawn.in, drawn.params, by("cpu"));
        const auto expected = mean_pooling(drawn.in, drawn.params, by("reference"));
        expect_close(actual.out, expected.out, what);
        if (expected.chunk_offsets.present()) {
          EXPECT_TRUE(same_bits(actual.chunk_offsets, expected.chunk_offsets)) << what;
        }
        const Array d_out = draw.normal(dtype, actual.out.shape());
        const Array actual_gradient = gradient(drawn, d_out, "cpu"),
                    expected_gradient = gradient(drawn, d_out, "reference");
        const double u = unit_roundoff(dtype) + unit_roundoff(DType::f32);
        for (int64_t n = 0; n < actual_gradient.num_elements(); ++n)
          ASSERT_NEAR(get(actual_gradient, n), get(expected_gradient, n), 12 * u) << what << " gradient " << n;
      }
  }
}

TEST(MeanPoolingCpu, long_groups_are_cut_into_parts_that_add_up) {
  Draw draw(1);
  const int64_t tokens = 20011, dim = 37;
  const Array x = draw.normal(DType::f32, {1, tokens, dim});
  std::vector<double> selected;
  for (int64_t n = 0; n < tokens; ++n) selected.push_back(n % 3 == 0 ? 1 : 0);
  const Array mask = bools({1, tokens}, selected), cu_seqlens = i32({7, 19000, 19000, 20000});
  const Tensor packed(x.data(), DType::f32, {tokens, dim});
  for (const MeanPooling::Inputs& in :
       {MeanPooling::Inputs{.x = x}, {.x = x, .mask = mask}, {.x = packed, .cu_seqlens = cu_seqlens}}) {
    const Array actual = mean_pooling(in, {}, by("cpu")).out, expected = mean_pooling(in, {}, by("reference")).out;
    for (int64_t n = 0; n < actual.num_elements(); ++n) EXPECT_NEAR(get(actual, n), get(expected, n), 1e-8) << n;
  }
}

TEST(MeanPoolingCpu, results_do_not_depend_on_how_they_lie) {
  // Heads with gaps between them in out alone: more and smaller pieces than those of a contiguous out.
  const int64_t tokens = 9000, heads = 3, dim = 5;
  const Array x = Draw(2).normal(DType::f32, {1, tokens, heads, dim});
  const MeanPooling::Params params = {.chunk_size = tokens};
  const auto plan = ejk::plan<MeanPooling>({.x = x}, params, {.kernel = "cpu"});
  const Array workspace(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())});
  const RunOptions run = {.workspace = {workspace.as<std::byte>(), plan.workspace_bytes()}};
  const Array storage = Array::zeros(DType::f32, {heads, dim + 2});
  const Tensor out(storage.data(), DType::f32, {1, 1, heads, dim}, {heads * (dim + 2), heads * (dim + 2), dim + 2, 1});
  plan.run({.x = x}, {.out = out}, run);
  EXPECT_TRUE(same_bits(contiguous(out), mean_pooling({.x = x}, params, by("cpu")).out));
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t d = dim; d < dim + 2; ++d) EXPECT_EQ(get(storage, h * (dim + 2) + d), 0);
}

TEST(MeanPoolingCpu, results_do_not_depend_on_the_number_of_threads) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    Draw draw(seed);
    const Drawn drawn = draw.problem(DType::bf16, seed < 4 ? 12000 : 500);
    std::vector<Array> results;
    for (const int threads : {1, 2, 3, 7}) {
      const cpu::ScopedNumThreads scoped(threads);
      results.push_back(mean_pooling(drawn.in, drawn.params, by("cpu")).out);
      results.push_back(gradient(drawn, results[0], "cpu"));
    }
    for (size_t n = 2; n < results.size(); ++n) EXPECT_TRUE(same_bits(results[n], results[n % 2])) << seed << " " << n;
  }
}

TEST(MeanPoolingCpu, run_does_not_allocate) {
  const Array x = Draw(3).normal(DType::f32, {5000, 4, 16}), cu_seqlens = i32({0, 4500, 5000});
  const MeanPooling::Inputs in = {.x = x, .cu_seqlens = cu_seqlens};
  const MeanPooling::Params params = {.chunk_size = 4200};
  const auto plan = ejk::plan<MeanPooling>(in, params, {.kernel = "cpu"});
  const MeanPooling::Results to = plan.allocate_outputs();
  const MeanPooling::Outputs outputs = {.out = to.out, .chunk_offsets = to.chunk_offsets};
  const MeanPoolingBackward::Inputs d_in = {.d_out = to.out, .cu_seqlens = cu_seqlens};
  const auto d_plan = ejk::plan<MeanPoolingBackward>(d_in, {.chunk_size = 4200, .num_tokens = 5000}, {.kernel = "cpu"});
  const MeanPoolingBackward::Results d_to = d_plan.allocate_outputs();
  const size_t bytes = std::max(plan.workspace_bytes(), d_plan.workspace_bytes());
  const Array workspace(DType::u8, {static_cast<int64_t>(bytes)});
  const RunOptions run = {.workspace = {workspace.as<std::byte>(), bytes}};
  const auto both = [&] {
    plan.run(in, outputs, run);
    d_plan.run(d_in, {.x = d_to.x}, run);
  };
  both();  // the pool's threads start
  const int64_t before = testing::num_news();
  both();
  EXPECT_EQ(testing::num_news(), before);
}

TEST(MeanPoolingCpu, declines_float64_with_its_reason) {
  const Array x = testing::f64({1, 1, 1}, {1});
  try {
    mean_pooling({.x = x}, {}, by("cpu"));
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("x dtype must be f32, f16 or bf16, got f64"), std::string::npos);
  }
  EXPECT_EQ(get(mean_pooling({.x = x}).out, 0), 1);
}

}  // namespace
}  // namespace ejk
