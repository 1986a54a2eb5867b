// What is special to the CPU kernels of grouped_matmul and its gradients: how work is split, any number of threads, any
// instruction set, no allocation in run, and products on a matrix unit, for which an emulation stands in. Every
// kernel's results are tested by the harness.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ejkernel/ejkernel.h"
#include "ejkernel/ops/grouped_matmul/grouped_matmul_cpu_internal.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cpu/simd_target.h"
#include "ejkernel/testing/allocation_counter.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/emulated_tiles.h"
#include "ejkernel/testing/emulated_tiles_harness.h"
#include "ejkernel/testing/operations.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

const PlanOptions kCpu{.kernel = "cpu"};

PlanOptions cpu_with(ConfigValues config) { return {.kernel = "cpu", .config = std::move(config)}; }

// ---- how work is split ----

TEST(GroupedMatmulBlocks, cover_a_range_and_never_cross_a_cut) {
  for (const int64_t block : {1, 4, 7})
    for (const int64_t cut : {0, 1, 3, 4, 10, 100})
      for (const int64_t begin : {0, 5, 12})
        for (const int64_t end : {0, 5, 6, 12, 40}) {
          const gmm::Product::Range range{begin, end};
          const gmm::Blocks blocks(block, cut, begin);
          int64_t at = begin;
          for (int64_t i = 0; i < blocks.count(range); ++i) {
            const gmm::Product::Range found = blocks.find(range, i);
            EXPECT_EQ(found.begin, at);
            EXPECT_LT(found.begin, found.end);
            EXPECT_LE(found.end - found.begin, block);
            if (cut > 0) {
              EXPECT_EQ(found.begin / cut, (found.end - 1) / cut);
            }
            at = found.end;
          }
          EXPECT_EQ(at, std::max(begin, end)) << block << " " << cut << " " << begin << " " << end;
        }
}

/// Every element of out belongs to one task, whatever the sizes of the groups are.
TEST(GroupedMatmulTasks, cover_every_element_once) {
  const std::vector<std::vector<int32_t>> all_sizes = {
      {0, 0, 0}, {100, 0, 30}, {1, 2, 200}, {-5, 400, 7}, {64, 64, 64}};
  for (const auto& sizes : all_sizes)
    for (const bool masked : {false, true})
      for (const int64_t offset : {0, 1}) {
        const auto groups = static_cast<int64_t>(sizes.size());
        const Array lhs(DType::f32, {210, 8}), rhs(DType::f32, {groups - offset, 8, 150}), out(DType::f32, {210, 150});
        const Array group_sizes(DType::i32, {groups}), mask(DType::boolean, {6, 4});
        std::copy(sizes.begin(), sizes.end(), group_sizes.as<int32_t>());
        Call<GroupedMatmul> call{.inputs = {.lhs = lhs, .rhs = rhs, .group_sizes = group_sizes},
                                 .params = {.group_offset = offset},
                                 .outputs = {.out = out}};
        if (masked) call.inputs.out_mask = mask, call.params.block_m = 40, call.params.block_n = 48;
        const gmm::Product p = gmm::out_product(call);
        const gmm::CpuConfig config{.block_rows = 64, .block_columns = 64};
        std::vector<int64_t> offsets(static_cast<size_t>(p.num_offsets())), first(static_cast<size_t>(groups + 1));
        const gmm::TaskMap map(p, config, offsets.data(), first.data(), nullptr);
        EXPECT_LE(map.num_tasks(), gmm::TaskMap::most_tasks(p, config));
        std::vector<int> times(210 * 150);
        for (int64_t task = 0; task < map.num_tasks(); ++task) {
          const gmm::TaskMap::Tile tile = map.find(task);
          for (int64_t r = tile.rows.begin; r < tile.rows.end; ++r)
            for (int64_t c = tile.columns.begin; c < tile.columns.end; ++c) ++times[static_cast<size_t>(r * 150 + c)];
          if (!tile.is_owned) continue;
          EXPECT_GE(tile.rows.begin, offsets[static_cast<size_t>(tile.group)]);
          EXPECT_LE(tile.rows.end, offsets[static_cast<size_t>(tile.group) + 1]);
        }
        EXPECT_THAT(times, ::testing::Each(1));
      }
}

/// The more threads, the smaller the blocks, down to where packing would cost more than waiting; groups of few rows
/// take long pieces of columns.
TEST(GroupedMatmulTasks, blocks_leave_every_thread_a_few) {
  const auto blocks = [](int64_t groups, int64_t rows, int64_t size, int threads) {
    const Tensor lhs(nullptr, DType::f32, {groups * rows, size}), rhs(nullptr, DType::f32, {groups, size, size}),
        out(nullptr, DType::f32, {groups * rows, size}), group_sizes(nullptr, DType::i32, {groups});
    const Call<GroupedMatmul> call{
        .inputs = {.lhs = lhs, .rhs = rhs, .group_sizes = group_sizes}, .params = {}, .outputs = {.out = out}};
    const gmm::CpuConfig config = gmm::cpu_heuristic(gmm::out_product(call), {.num_units = threads});
    return std::pair(config.block_rows, config.block_columns);
  };
  EXPECT_EQ(blocks(1, 2048, 2048, 1), std::pair(1024, 512));
  EXPECT_EQ(blocks(1, 2048, 2048, 2), std::pair(512, 512));
  EXPECT_EQ(blocks(1, 2048, 2048, 16), std::pair(256, 256));
  EXPECT_EQ(blocks(1, 512, 512, 2), std::pair(256, 256));
  EXPECT_EQ(blocks(1, 2048, 2048, 128), std::pair(256, 128));
  EXPECT_EQ(blocks(1, 4096, 4096, 2), std::pair(1024, 512));
  EXPECT_EQ(blocks(1, 4096, 512, 1), std::pair(512, 512)) << "sums leave the registers soon";
  EXPECT_EQ(blocks(8, 512, 2048, 2), std::pair(512, 512));
  EXPECT_EQ(blocks(128, 4, 512, 2), std::pair(64, 2048));
  EXPECT_EQ(blocks(1, 4, 4096, 2), std::pair(64, 512));
}

// ---- calls ----

/// Three groups, of which one streams its matrix, and their gradient.
struct MatmulCall {
  Array lhs, rhs, group_sizes{DType::i32, {3}};
  GroupedMatmul::Params params;

  MatmulCall(DType dtype, bool transposed, double magnitude = 1)
      : lhs(dtype, {150, 70}), rhs(dtype, transposed ? Shape{3, 90, 70} : Shape{3, 70, 90}) {
    Random random(5);
    fill_normal(lhs, random, magnitude);
    fill_normal(rhs, random, magnitude);
    const int32_t sizes[] = {100, 5, 40};
    std::copy_n(sizes, 3, group_sizes.as<int32_t>());
    params.transpose_rhs = transposed;
  }
  GroupedMatmul::Inputs inputs() const { return {.lhs = lhs, .rhs = rhs, .group_sizes = group_sizes}; }
  Array forward(const PlanOptions& options) const { return grouped_matmul(inputs(), params, {.plan = options}).out; }
  GroupedMatmulBackward::Inputs backward_inputs(const Array& d_out) const {
    return {.lhs = lhs, .rhs = rhs, .group_sizes = group_sizes, .d_out = d_out};
  }
  GroupedMatmulBackward::Results backward(const Array& d_out, const PlanOptions& options) const {
    return execute<GroupedMatmulBackward>(backward_inputs(d_out), params, {.plan = options});
  }
};

bool same_bits(const Array& a, const Array& b) {
  return std::memcmp(a.data(), b.data(), static_cast<size_t>(num_bytes(a.dtype(), a.shape()))) == 0;
}

TEST(GroupedMatmulCpu, results_do_not_depend_on_the_number_of_threads) {
  const ScopedEmulatedMatrixUnit unit;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int dot : {0, 1, 2}) {
      const MatmulCall call(dtype, dot == 1);
      const PlanOptions options = cpu_with({{"block_rows", 64}, {"block_columns", 64}, {"bf16_dot", dot}});
      Array out;
      GroupedMatmulBackward::Results gradients;
      for (const int threads : {1, 2, 5}) {
        const cpu::ScopedNumThreads scoped(threads);
        const Array again = call.forward(options);
        const auto gradients_again = call.backward(again, options);
        if (threads == 1) out = again, gradients = gradients_again;
        EXPECT_TRUE(same_bits(out, again));
        EXPECT_TRUE(same_bits(gradients.lhs, gradients_again.lhs));
        EXPECT_TRUE(same_bits(gradients.rhs, gradients_again.rhs));
      }
    }
}

TEST(GroupedMatmulCpu, sums_of_floats_do_not_depend_on_blocks_or_other_rows) {
  const MatmulCall call(DType::f32, false);
  const Array out = call.forward(cpu_with({{"block_rows", 2048}, {"block_columns", 512}, {"bf16_dot", 0}}));
  EXPECT_TRUE(same_bits(out, call.forward(cpu_with({{"block_rows", 64}, {"block_columns", 64}, {"bf16_dot", 0}}))));
  // The group of 40 rows alone, 5 of them at a time: its matrix is streamed.
  const Tensor rhs = call.rhs;
  const Tensor last(rhs.as<float>() + 2 * rhs.strides[0], DType::f32, {1, 70, 90});
  for (int64_t row = 105; row < 145; row += 5) {
    const Array five(DType::i32, {1});
    five.as<int32_t>()[0] = 5;
    const Tensor rows(call.lhs.as<float>() + row * 70, DType::f32, {5, 70});
    const auto part = grouped_matmul({.lhs = rows, .rhs = last, .group_sizes = five}, {}, {.plan = kCpu});
    EXPECT_EQ(std::memcmp(part.out.data(), out.as<float>() + row * 90, 5 * 90 * sizeof(float)), 0);
  }
}

/// What masks leave out is 0, whatever its scale; so is a sum of nothing.
TEST(GroupedMatmulCpu, a_scale_of_nothing_is_never_read_into_a_result) {
  const auto filled = [](DType dtype, const Shape& shape, std::vector<double> values) {
    Array array(dtype, shape);
    for (int64_t n = 0; n < array.num_elements(); ++n) set(array, n, values[static_cast<size_t>(n) % values.size()]);
    return array;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Array sizes = filled(DType::i32, {2}, {4, 4}), rhs = filled(DType::i8, {2, 16, 8}, {1, -2, 3});
  const Array row_scales = filled(DType::f32, {8}, {nan}), column_scales = filled(DType::f32, {2, 8}, {nan});
  const Array nowhere = filled(DType::boolean, {2, 2}, {0}), no_weight = filled(DType::boolean, {2, 2, 2}, {0});
  const Array empty_rhs(DType::i8, {2, 0, 8});
  for (const DType dtype : {DType::i8, DType::bf16, DType::f32}) {
    const Array lhs = filled(dtype, {8, 16}, {1, 2, -1}), empty_lhs(dtype, {8, 0});
    std::vector<GroupedMatmul::Inputs> calls = {
        {.lhs = lhs, .rhs = rhs, .group_sizes = sizes, .rhs_scale = column_scales, .out_mask = nowhere},
        {.lhs = lhs, .rhs = rhs, .group_sizes = sizes, .rhs_scale = column_scales, .rhs_mask = no_weight},
        {.lhs = empty_lhs, .rhs = empty_rhs, .group_sizes = sizes, .rhs_scale = column_scales}};
    if (dtype == DType::i8)
      calls.push_back({.lhs = lhs, .rhs = rhs, .group_sizes = sizes, .lhs_scale = row_scales, .out_mask = nowhere});
    for (const GroupedMatmul::Inputs& in : calls) {
      GroupedMatmul::Params params;
      if (in.out_mask.present()) params = {.block_m = 4, .block_n = 4};
      if (in.rhs_mask.present()) params = {.block_k = 8, .block_n = 4};
      const auto results = grouped_matmul(in, params, {.plan = kCpu});
      for (int64_t n = 0; n < results.out.num_elements(); ++n) ASSERT_EQ(get(results.out, n), 0) << name(dtype);
    }
  }
}

TEST(GroupedMatmulCpu, run_does_not_allocate) {
  const ScopedEmulatedMatrixUnit unit;
  const MatmulCall call(DType::bf16, true);
  const Array out = call.forward(kCpu);
  const auto in = call.backward_inputs(out);
  const auto forward = ejk::plan<GroupedMatmul>(call.inputs(), call.params, kCpu);
  const auto backward = ejk::plan<GroupedMatmulBackward>(in, call.params, kCpu);
  const auto gradients = backward.allocate_outputs();
  const Array workspace(DType::u8,
                        {static_cast<int64_t>(std::max(forward.workspace_bytes(), backward.workspace_bytes()))});
  const RunOptions options{.workspace = {workspace.as<std::byte>(), static_cast<size_t>(workspace.num_elements())}};
  const auto run = [&] {
    forward.run(call.inputs(), {.out = out}, options);
    backward.run(in, {.lhs = gradients.lhs, .rhs = gradients.rhs}, options);
  };
  run();  // starts the pool's threads
  const int64_t before = num_news();
  run();
  EXPECT_EQ(num_news(), before);
}

// ---- on a matrix unit ----

class MatmulHarnessOnMatrixUnit : public HarnessOnMatrixUnit {
 protected:
  ConfigValues config_of(size_t n) const override {
    return {
        {"block_rows", nth_of({64, 128, 512, 1024}, n)}, {"block_columns", nth_of({64, 128, 256}, n)}, {"bf16_dot", 2}};
  }
};
INSTANTIATE_TEST_SUITE_P(Operations, MatmulHarnessOnMatrixUnit,
                         ::testing::Values("grouped_matmul", "transposed_grouped_matmul", "grouped_matmul_backward"),
                         name_of_operation);

TEST_P(MatmulHarnessOnMatrixUnit, meets_the_error_rule_at_random) { check_random(1, 24); }
TEST_P(MatmulHarnessOnMatrixUnit, is_right_beside_vectors_of_every_width) { check_random_on_every_target(1, 32); }
TEST_P(MatmulHarnessOnMatrixUnit, survives_hostile_indices) {
  check_random(1, 30, {.size = Size::small, .hostile = true});
}
TEST_P(MatmulHarnessOnMatrixUnit, is_exact_where_every_arithmetic_is) { check_exact("lhs", 12); }

std::string planned(const MatmulCall& call, const PlanOptions& options = kCpu) {
  const Plan plan = ejk::plan<GroupedMatmul>(call.inputs(), call.params, options);
  return to_string(plan.kernel(), plan.choice().config);
}

TEST(MatmulOnMatrixUnit, is_the_heuristics_choice_for_bf16) {
  const ScopedEmulatedMatrixUnit unit;
  EXPECT_THAT(planned(MatmulCall(DType::bf16, false)), HasSubstr("bf16_dot=2"));
  for (const DType dtype : {DType::f16, DType::f32})
    EXPECT_THAT(planned(MatmulCall(dtype, false)), HasSubstr("bf16_dot=0"));
}

TEST(MatmulOnMatrixUnit, is_refused_and_not_offered_where_there_is_none) {
  const cpu::ScopedMatrixUnit none(nullptr);
  const MatmulCall call(DType::bf16, false);
  EXPECT_THAT(planned(call), Not(HasSubstr("bf16_dot=2")));
  EXPECT_THAT(
      [&] {
        planned(call, cpu_with({{"bf16_dot", 2}}));
      },
      ThrowsMessage<Unsupported>(HasSubstr("bf16_dot=2 needs AMX")));
  const gmm::Product p = gmm::out_product(Call<GroupedMatmul>{.inputs = call.inputs(), .params = {}, .outputs = {}});
  const auto is_offered = [&] {
    const auto offered = gmm::cpu_candidates(p);
    return std::any_of(offered.begin(), offered.end(), [](const auto& config) { return config.bf16_dot == 2; });
  };
  EXPECT_FALSE(is_offered());
  const ScopedEmulatedMatrixUnit unit;
  EXPECT_TRUE(is_offered());
}

TEST(MatmulOnMatrixUnit, tiny_tensors_are_widened) {
  const ScopedEmulatedMatrixUnit unit;
  const MatmulCall call(DType::bf16, false, 1e-19);
  const Array out = call.forward(cpu_with({{"bf16_dot", 2}}));
  EXPECT_TRUE(same_bits(out, call.forward(cpu_with({{"bf16_dot", 0}}))));
  EXPECT_EQ(unit.num_products(), 0);
}

}  // namespace
}  // namespace ejk::testing
