// Which tile a block of the kernel for Ampere computes and which keys the tile reads, against brute force.
#include "ejkernel/ops/flash_attention/flash_attention_sm80.cuh"

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/platform/cuda/program.h"

namespace ejk {
namespace {

using cuda::AttentionProblem;
using cuda::AttentionSequence;
using cuda::int64;

constexpr int kKeys = 32;

AttentionProblem problem(int64 left, int64 right, bool causal) {
  AttentionProblem p;
  p.window_left = left, p.window_right = right, p.causal = causal;
  return p;
}

bool sees(const AttentionProblem& p, const AttentionSequence& s, int64 i, int64 j) { return p.visible(s, 0, i, j); }

void expect_as_visible(const AttentionProblem& p, const AttentionSequence& s) {
  const FlashSm80Keys keys(p, s);
  for (int i = 0; i < s.q_len; ++i)
    for (int j = 0; j < s.k_len; ++j)
      ASSERT_EQ(j >= keys.begin(i) && j < keys.end(i), sees(p, s, i, j)) << i << ", " << j;

  for (int first = 0; first < s.q_len; first += 16) {
    const int past = std::min<int>(first + 16, static_cast<int>(s.q_len));
    const FlashSm80Blocks blocks = key_blocks<kKeys>(keys, first, past);
    ASSERT_LE(blocks.first, blocks.past);
    int num_seen = 0;
    for (int j = 0; j < s.k_len; ++j) {
      int rows = 0;
      for (int i = first; i < past; ++i) rows += sees(p, s, i, j);
      // What is read is what some row sees, and lies in the blocks that are walked.
      ASSERT_EQ(j >= keys.begin(first) && j<blocks.end, rows> 0) << first << ", " << j;
      if (rows > 0) {
        ASSERT_TRUE(j / kKeys >= blocks.first && j / kKeys < blocks.past) << first << ", " << j;
      }
      num_seen += rows > 0;
      // A whole block needs no mask.
      if (all_see_block<kKeys>(keys, first, past - 1, j / kKeys)) {
        ASSERT_EQ(rows, past - first) << first << ", " << j;
      }
    }
    for (int n = 0; n * kKeys < s.k_len; ++n)
      if (all_see_block<kKeys>(keys, first, past - 1, n)) {
        ASSERT_LE((n + 1) * kKeys, s.k_len);
      }
    // Every block that is walked has a key that some row sees.
    ASSERT_LE(blocks.past - blocks.first, num_seen);
  }
}

/// What the kernels compute in float32 must not be 0 or infinite there, and a cap multiplies the error of its tanh.
TEST(FlashCuda, kernels_leave_scales_and_caps_that_float32_cannot_hold_to_the_reference) {
  const DeviceProperties device = cuda::made_up_device("sm_90a");
  const Tensor rows(nullptr, DType::bf16, {1, 64, 1, 128}, device.device);
  const auto inputs = to_array(FlashAttention::Inputs{.query = rows, .key = rows, .value = rows});
  const auto takes = [&](const KernelInfo& kernel, const FlashAttention::Params& params) {
    const ParamsBlock block = ParamsBlock::of(params);
    const std::vector<Tensor> outputs(2);
    return kernel.supports({.inputs = inputs, .params = &block, .outputs = outputs}, device).ok;
  };
  for (const KernelInfo* kernel : {&flash_attention_kernels::cuda_sm90(), &flash_attention_kernels::cuda_sm80()}) {
    for (const double scale : {1.0, 1e-37, 1e37}) EXPECT_TRUE(takes(*kernel, {.softmax_scale = scale})) << scale;
    for (const double scale : {0.0, -1.0, 1e-39, 1e-50, 2.4e38, 1e50})
      EXPECT_FALSE(takes(*kernel, {.softmax_scale = scale})) << kernel->name << scale;
  }
  const KernelInfo& capped = flash_attention_kernels::cuda_sm80();
  for (const double cap : {1e-300, 0.1, 50.0, 1000.0}) EXPECT_TRUE(takes(capped, {.logits_soft_cap = cap})) << cap;
  for (const double cap : {1001.0, 1e7, 1e300}) EXPECT_FALSE(takes(capped, {.logits_soft_cap = cap})) << cap;
  EXPECT_FALSE(takes(capped, {.softmax_scale = 1e-37, .logits_soft_cap = 50.0}));
}

TEST(FlashSm80Blocks, are_those_whose_keys_a_row_sees) {
  for (const int64 q_len : {1, 5, 16, 40})
    for (const int64 k_len : {0, 1, 31, 32, 33, 64, 100})
      for (const int64 offset : {int64{0}, k_len - q_len, int64{7}, int64{-45}})
        for (const int64 left : {-1, 0, 1, 20, 33, 200})
          for (const int64 right : {-1, 0, 3, 64})
            for (const bool causal : {false, true})
              expect_as_visible(
                  problem(left, right, causal),
                  {.index = 0, .q_begin = 0, .q_len = q_len, .k_begin = 0, .k_len = k_len, .offset = offset});
}

TEST(FlashSm80Blocks, take_any_window) {
  constexpr int64 kHuge = std::numeric_limits<int64>::max();
  const AttentionSequence s = {.index = 0, .q_begin = 0, .q_len = 40, .k_begin = 0, .k_len = 70, .offset = 30};
  for (const int64 left : {int64{-1}, int64{2}, int64{1} << 31, kHuge})
    for (const int64 right : {int64{-1}, int64{2}, int64{1} << 31, kHuge})
      for (const bool causal : {false, true}) expect_as_visible(problem(left, right, causal), s);
}

TEST(FlashSm80Tiles, every_tile_has_one_block_and_a_heads_last_comes_first) {
  constexpr int kRows = 64;
  for (const int q_len : {1, 64, 65, 1000})
    for (const int heads : {1, 3, 8})
      for (const int batch : {1, 2, 5}) {
        const int tiles = cuda::ceil_div(q_len, kRows);
        const FlashSm80Arguments args = {.problem = {},
                                         .to = {},
                                         .num_blocks = tiles * heads * batch,
                                         .blocks_per_head = 0,
                                         .tiles = cuda::Divisor(tiles),
                                         .heads = cuda::Divisor(heads),
                                         .scale_log2 = 1,
                                         .cap_in = 0,
                                         .cap_out = 0,
                                         .out_is_aligned = true};
        std::set<std::tuple<int, int, int>> seen;
        for (int index = 0; index < args.num_blocks; ++index) {
          const FlashSm80Tile tile = args.tile(index, kRows);
          EXPECT_TRUE(tile.sequence >= 0 && tile.sequence < batch && tile.head >= 0 && tile.head < heads);
          EXPECT_TRUE(tile.first_row >= 0 && tile.first_row < q_len && tile.first_row % kRows == 0);
          if (index % tiles == 0) {
            EXPECT_GE(tile.first_row + kRows, q_len);
          }
          seen.insert({tile.sequence, tile.head, tile.first_row});
        }
        EXPECT_EQ(seen.size(), static_cast<size_t>(args.num_blocks));
      }
}

}  // namespace
}  // namespace ejk
