// How the backward on the CPU shares the keys of a batch among threads: by what each sequence has to do, counted here
// in pairs of a query row and a key, without a clock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <vector>

#include "ejkernel/ejkernel.h"
#include "ejkernel/ops/flash_attention/attention_cpu_internal.h"
#include "ejkernel/platform/cpu/parallel_for.h"

namespace ejk::attn {
namespace {

using ::testing::ElementsAre;

/// A packed self-attention call of these lengths. Rows have no data.
struct Batch {
  std::vector<int32_t> offsets = {0};
  Problem problem;

  Batch(const std::vector<int>& lengths, int64_t q_heads, int64_t kv_heads, FlashAttention::Params params = {}) {
    for (const int length : lengths) offsets.push_back(offsets.back() + length);
    const Tensor cu_seqlens(offsets.data(), DType::i32, {static_cast<int64_t>(offsets.size())});
    const auto rows = [&](int64_t heads) { return Tensor(nullptr, DType::f32, {offsets.back(), heads, 64}); };
    problem = make_problem({.query = rows(q_heads),
                            .key = rows(kv_heads),
                            .value = rows(kv_heads),
                            .cu_seqlens_q = cu_seqlens,
                            .cu_seqlens_k = cu_seqlens},
                           params);
  }
};

/// The keys of all sequences in parts.
struct Cut {
  std::vector<int64_t> memory;
  KeyParts parts;

  Cut(const Problem& p, const CpuBackwardConfig& config)
      : memory(static_cast<size_t>(KeyParts::numbers(p.num_sequences))) {
    parts.build(p, config, 0, p.num_sequences, memory.data());
  }
};

/// The first keys of a task's blocks.
std::vector<int64_t> blocks_of(const Sequence& s, const KeyParts& parts, const KeyParts::Task& task, int block_k) {
  std::vector<int64_t> blocks;
  for (int64_t first = task.part * block_k; first < s.k_len; first += parts.count(s.index) * block_k)
    blocks.push_back(first);
  return blocks;
}

/// Pairs of a query row and a key that it sees.
int64_t work_of(const Problem& p, const KeyParts& parts, const KeyParts::Task& task, int block_k) {
  const Sequence s = p.sequence(task.sequence, nullptr);
  int64_t pairs = 0;
  for (const int64_t first : blocks_of(s, parts, task, block_k))
    for (int64_t i = 0; i < s.q_len; ++i) {
      const Problem::KeyRange seen = p.key_range(s, i);
      pairs += std::max<int64_t>(std::min(seen.end, first + block_k) - std::max(seen.begin, first), 0);
    }
  return pairs * p.group();
}

/// What part of all work the busiest of the threads does, each taking the next task when it is done with one.
double busiest_share(const Batch& batch, int threads) {
  const Problem& p = batch.problem;
  const auto config = cpu_heuristic<CpuBackwardConfig>(p, {.num_units = threads});
  const Cut cut(p, config);
  std::vector<int64_t> done(static_cast<size_t>(threads));
  int64_t all = 0;
  for (int64_t n = 0; n < cut.parts.num_tasks(); ++n) {
    const int64_t work = work_of(p, cut.parts, cut.parts.find(n), config.block_k);
    *std::min_element(done.begin(), done.end()) += work;
    all += work;
  }
  return static_cast<double>(*std::max_element(done.begin(), done.end())) / static_cast<double>(all);
}

TEST(AttentionKeyParts, a_long_sequence_among_short_ones_is_shared_by_all_threads) {
  std::vector<int> lengths(8, 16);
  for (const size_t at : {0, 3, 7}) {
    std::vector<int> ragged = lengths;
    ragged[at] = 2048;
    for (const bool causal : {false, true}) {
      EXPECT_LT(busiest_share({ragged, 4, 1, {.causal = causal}}, 2), 0.55) << at;
      EXPECT_LT(busiest_share({ragged, 1, 1, {.causal = causal}}, 4), 0.31) << at;
      EXPECT_LT(busiest_share({ragged, 8, 2, {.causal = causal}}, 8), 0.18) << at;
    }
  }
}

TEST(AttentionKeyParts, sequences_of_many_lengths_keep_all_threads_busy) {
  std::vector<int> lengths;
  for (int n = 0; n < 24; ++n) lengths.push_back(32 << n % 7);
  for (const int threads : {2, 3, 8})
    EXPECT_LT(busiest_share({lengths, 2, 1, {.causal = true}}, threads), 1.2 / threads);
}

TEST(AttentionKeyParts, parts_go_by_work_and_the_most_work_goes_first) {
  const Batch batch({16, 1024, 512, 0, 512}, 2, 2);
  const Cut cut(batch.problem, {{.block_k = 64}, 8});
  std::vector<int64_t> counts, order;
  for (int64_t n = 0; n < 5; ++n) counts.push_back(cut.parts.count(n));
  EXPECT_THAT(counts, ElementsAre(1, 6, 2, 1, 2));
  for (int64_t n = 0; n < cut.parts.num_tasks(); ++n) order.push_back(cut.parts.find(n).sequence);
  order.erase(std::unique(order.begin(), order.end()), order.end());
  EXPECT_THAT(order, ElementsAre(1, 2, 4, 0, 3));
}

TEST(AttentionKeyParts, alike_sequences_that_are_enough_are_not_cut) {
  EXPECT_EQ(Cut(Batch({256, 256, 256, 256}, 1, 1).problem, {{}, 4}).parts.num_tasks(), 4);
  EXPECT_EQ(Cut(Batch({256, 256}, 1, 1).problem, {{.block_k = 64}, 4}).parts.num_tasks(), 4);
  EXPECT_EQ(Cut(Batch({256}, 1, 1).problem, {{.block_k = 128}, 64}).parts.num_tasks(), 2) << "blocks of keys it has";
}

/// Every block of every (sequence, kv head) is in one task, every task has rows of its own, and there is room for all.
void expect_a_partition(const Problem& p, const CpuBackwardConfig& config) {
  const Cut cut(p, config);
  std::map<std::vector<int64_t>, int> times;
  std::vector<std::pair<int64_t, int64_t>> rows;
  int64_t blocks = 0;
  for (int64_t n = 0; n < cut.parts.num_tasks(); ++n) {
    const KeyParts::Task task = cut.parts.find(n);
    const Sequence s = p.sequence(task.sequence, nullptr);
    for (const int64_t first : blocks_of(s, cut.parts, task, config.block_k))
      EXPECT_EQ((++times[{task.sequence, task.kv_head, first}]), 1);
    rows.emplace_back(cut.parts.first_row(s, task.kv_head, task.part), s.q_len * p.group());
  }
  for (int64_t n = 0; n < p.num_sequences; ++n)
    blocks += (p.sequence(n, nullptr).k_len + config.block_k - 1) / config.block_k * p.num_kv_heads;
  EXPECT_EQ(static_cast<int64_t>(times.size()), blocks);
  std::sort(rows.begin(), rows.end());
  int64_t taken = 0;
  for (const auto& [first, count] : rows) {
    EXPECT_GE(first, taken);
    taken = first + count;
  }
  EXPECT_LE(taken, KeyParts::most_rows(p, config.key_parts));
  EXPECT_LE(cut.parts.num_tasks(), KeyParts::most_tasks(p, config.key_parts));
}

TEST(AttentionKeyParts, are_a_partition_that_there_is_room_for) {
  const std::vector<int> batches[] = {{2048, 16, 16, 16}, {16, 300, 0, 700}, {5}, {0, 0}, {256, 256, 256}};
  for (const std::vector<int>& lengths : batches)
    for (const int key_parts : {1, 2, 8, 64}) {
      expect_a_partition(Batch(lengths, 4, 2).problem, {{.block_k = 64}, key_parts});
      const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
      FlashAttention::Params params;
      params.max_seqlen_q = params.max_seqlen_k = longest;
      expect_a_partition(Batch(lengths, 4, 2, params).problem, {{.block_k = 64}, key_parts});
    }
  for (const int64_t batch : {1, 3, 8})
    for (const int key_parts : {1, 4, 16}) {
      const Tensor rows(nullptr, DType::f32, {batch, 300, 2, 64});
      Problem dense = make_problem({.query = rows, .key = rows, .value = rows}, {});
      expect_a_partition(dense, {{.block_k = 32}, key_parts});
      std::vector<int32_t> lengths(static_cast<size_t>(batch), 7);
      lengths.back() = 300;
      dense.used_q = dense.used_k = Tensor(lengths.data(), DType::i32, {batch});
      expect_a_partition(dense, {{.block_k = 32}, key_parts});
    }
}

TEST(AttentionKeyParts, sums_of_a_batch_take_memory_for_its_longest_sequence) {
  FlashAttention::Params params;
  params.max_seqlen_q = params.max_seqlen_k = 64;
  EXPECT_EQ(KeyParts::most_rows(Batch(std::vector<int>(32, 64), 1, 1, params).problem, 8), 2048 + 8 * 64);
  const Tensor rows(nullptr, DType::f32, {8, 512, 1, 64});
  const Problem dense = make_problem({.query = rows, .key = rows, .value = rows}, {});
  EXPECT_EQ(KeyParts::most_rows(dense, 8), 8 * 512);
}

TEST(AttentionKeyParts, the_heuristic_minds_that_memory) {
  const auto parts = [](const Problem& p) { return cpu_heuristic<CpuBackwardConfig>(p, {.num_units = 64}).key_parts; };
  const std::vector<int> lengths(16, 1024);
  EXPECT_EQ(parts(Batch(lengths, 1, 1).problem), 8) << "one of them may be all of it";
  FlashAttention::Params params;
  params.max_seqlen_q = params.max_seqlen_k = 1024;
  EXPECT_EQ(parts(Batch(lengths, 1, 1, params).problem), 64) << "one is a sixteenth";
  const Tensor rows(nullptr, DType::f32, {16, 1024, 1, 64});
  EXPECT_EQ(parts(make_problem({.query = rows, .key = rows, .value = rows}, {})), 64);
}

TEST(AttentionKeyParts, blocks_are_long_where_each_part_has_two_of_them) {
  const auto block_k = [](int64_t keys, int64_t heads, int threads) {
    const Tensor rows(nullptr, DType::f32, {1, keys, heads, 64});
    const Problem p = make_problem({.query = rows, .key = rows, .value = rows}, {});
    return cpu_heuristic<CpuBackwardConfig>(p, {.num_units = threads}).block_k;
  };
  EXPECT_EQ(block_k(511, 16, 2), 128);
  EXPECT_EQ(block_k(512, 16, 2), 256);
  EXPECT_EQ(block_k(2048, 1, 8), 128) << "eight parts of two short blocks";
  EXPECT_EQ(block_k(4096, 1, 4), 256) << "eight parts of two long ones";
}

TEST(AttentionKeyParts, gradients_of_a_ragged_batch_are_the_same_for_any_number_of_threads) {
  Batch batch({5, 400, 16, 0, 90}, 2, 1);
  const int64_t total = batch.problem.q_rows;
  auto random = [seed = 1u](const Shape& shape) mutable {
    Array array(DType::f32, shape);
    for (int64_t n = 0; n < array.num_elements(); ++n)
      array.as<float>()[n] =
          static_cast<float>(static_cast<int>((seed = seed * 1664525 + 1013904223) >> 16) % 256) / 128 - 1;
    return array;
  };
  const Array query = random({total, 2, 64}), key = random({total, 1, 64}), value = random({total, 1, 64});
  const Array d_out = random({total, 2, 64});
  const FlashAttention::Inputs in{.query = query,
                                  .key = key,
                                  .value = value,
                                  .cu_seqlens_q = batch.problem.cu_seqlens_q,
                                  .cu_seqlens_k = batch.problem.cu_seqlens_k};
  const FlashAttention::Params params{.causal = true};
  const auto forward = flash_attention(in, params, {.plan = {.kernel = "reference"}});
  FlashAttentionBackward::Inputs backward;
  static_cast<FlashAttention::Inputs&>(backward) = in;
  backward.out = forward.out, backward.lse = forward.lse, backward.d_out = d_out;
  const auto expected = execute<FlashAttentionBackward>(backward, params, {.plan = {.kernel = "reference"}});
  const PlanOptions cpu{.kernel = "cpu", .config = ConfigValues{{"block_k", 32}, {"key_parts", 8}}};
  FlashAttentionBackward::Results first;
  for (const int threads : {1, 2, 3, 8}) {
    const cpu::ScopedNumThreads scoped(threads);
    auto results = execute<FlashAttentionBackward>(backward, params, {.plan = cpu});
    if (threads == 1) first = results;
    for (const auto& [name, actual, once, reference] :
         {std::tuple{"query", &results.query, &first.query, &expected.query},
          {"key", &results.key, &first.key, &expected.key},
          {"value", &results.value, &first.value, &expected.value}}) {
      const auto bytes = static_cast<size_t>(actual->num_elements()) * sizeof(float);
      EXPECT_EQ(std::memcmp(actual->data(), once->data(), bytes), 0) << name << ", " << threads << " threads";
      for (int64_t n = 0; n < actual->num_elements(); ++n)
        ASSERT_NEAR(actual->as<float>()[n], reference->as<float>()[n], 2e-5) << name << " " << n;
    }
  }
}

}  // namespace
}  // namespace ejk::attn
