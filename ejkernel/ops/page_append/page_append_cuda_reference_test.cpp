// The device code of page_append as host C++, against the reference: bit for bit, whatever the caller's indices hold.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "ejkernel/ops/page_append/page_append_formula.cuh"
#include "ejkernel/ops/page_attention/paged_cuda_reference_internal.h"
#include "ejkernel/testing/host_block.h"
#include "ejkernel/testing/random.h"
#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

constexpr int64_t kNewRows = 9, kSequences = 3, kEntries = 4, kPages = 6, kPageSize = 4, kHeads = 2;
constexpr int64_t kHeadDim = 6, kValueDim = 5;

/// Numbers of every size, exact halves of codes and what is not finite among them.
Array numbers(testing::Random& random, DType dtype, const Shape& shape) {
  Array a(dtype, shape);
  for (int64_t n = 0; n < a.num_elements(); ++n) {
    const double wide = random.normal() * std::exp2(static_cast<double>(random.below(24) - 12));
    const double half = static_cast<double>(random.below(600) - 300) / 2;
    constexpr double kInf = std::numeric_limits<double>::infinity();
    set(a, n, random.pick({wide, wide, half, half, kInf, -kInf, std::nan("")}));
  }
  return a;
}
/// Bytes as they come: what is not written must keep them.
Array bytes(testing::Random& random, DType dtype, const Shape& shape) {
  Array a(dtype, shape);
  for (int64_t n = 0; n < num_bytes(dtype, shape); ++n) a.as<uint8_t>()[n] = static_cast<uint8_t>(random.bits());
  return a;
}
bool equal_bytes(const Array& a, const Array& b) {
  return std::memcmp(a.data(), b.data(), static_cast<size_t>(num_bytes(a.dtype(), a.shape()))) == 0;
}

/// A call with caches of its own. Pages are one sequence's alone, so that no two rows meet, unless `shared`.
struct Written {
  Array keys, values, key_cache, value_cache, lens, tables, starts, k_scale, v_scale;
  PageAppend::Params params;
  uint32_t status = 0;

  Written(testing::Random& random, DType dtype, DType cache, bool hostile, bool shared) {
    params.cache_layout = random.chance(0.5) ? CacheLayout::head_major : CacheLayout::page_major;
    const bool head_major = params.cache_layout == CacheLayout::head_major;
    const auto cache_shape = [&](int64_t dims) {
      return head_major ? Shape{kPages, kHeads, kPageSize, dims} : Shape{kPages, kPageSize, kHeads, dims};
    };
    keys = numbers(random, dtype, {kNewRows, kHeads, kHeadDim});
    values = numbers(random, dtype, {kNewRows, kHeads, kValueDim});
    key_cache = bytes(random, cache, cache_shape(kHeadDim));
    value_cache = bytes(random, cache, cache_shape(kValueDim));
    lens = testing::i32({5, 16, 3});
    starts = testing::i32({0, 2, 8, 9});
    tables = testing::array_of(DType::i32, {kSequences, kEntries}, {5, 0, 9, -1, 2, 1, -7, 4, 3, 99, 99, 99});
    if (shared) tables = testing::array_of(DType::i32, {kSequences, kEntries}, {5, 2, 2, 2, 2, 2, 5, 2, 5, 2, 5, 5});
    if (hostile) {
      const std::vector<double> any = {0, 1, 2, 5, 8, 9, -1, 17, 1 << 20, INT32_MIN, INT32_MAX};
      for (int64_t n = 0; n < kSequences; ++n) set(lens, n, random.pick(any));
      for (int64_t n = 1; n <= kSequences; ++n) set(starts, n, std::max(get(starts, n - 1), random.pick(any)));
    }
    const auto positive = [&](const Shape& shape) {
      Array scale(DType::f32, shape);
      for (int64_t n = 0; n < scale.num_elements(); ++n) set(scale, n, std::exp2(random.normal()));
      return scale;
    };
    if (random.chance(0.7)) k_scale = positive({kHeads});
    if (random.chance(0.7)) v_scale = positive({});
  }
  Written copy() const {
    Written other = *this;
    other.key_cache = key_cache.clone(), other.value_cache = value_cache.clone();
    return other;
  }
  attn::Problem cache() const {
    Call<PageAppend> call;
    call.inputs = {.keys = keys,
                   .values = values,
                   .key_cache = key_cache,
                   .value_cache = value_cache,
                   .context_lens = lens,
                   .block_tables = tables,
                   .query_start_loc = starts,
                   .k_scale = k_scale,
                   .v_scale = v_scale};
    call.params = params;
    return attn::append_problem(call);
  }
};

void write_by_reference(Written& to) {
  const attn::Problem cache = to.cache();
  const attn::Append append = {to.keys, to.values, cache};
  for (int64_t n = 0; n < kSequences; ++n) append.write(n, &to.status);
}
void write_by_device_code(Written& to) {
  constexpr int kThreads = 3;
  const attn::Problem cache = to.cache();
  const cuda::PageAppendProblem p = attn::cuda_append_problem({to.keys, to.values, cache}, &to.status);
  for (int block = 0; block < 2; ++block) {
    cuda::int64 owners[kThreads];
    testing::run_block(kThreads, [&](testing::HostBlock threads) {
      const cuda::PageAppendFormula<testing::HostBlock, kThreads> formula(p, threads, owners);
      if (block == 0) formula.raise_faults();
      formula.write(block, 2);
    });
  }
}

TEST(PageAppendFormula, writes_the_bits_of_the_reference) {
  testing::Random random(1);
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const DType cache : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::i8})
      for (int round = 0; round < 12; ++round) {
        const bool hostile = round >= 4, shared = round % 3 == 2;
        Written expected(random, dtype, cache, hostile, shared), got = expected.copy();
        const Written before = expected.copy();
        write_by_reference(expected);
        write_by_device_code(got);
        EXPECT_TRUE(equal_bytes(got.key_cache, expected.key_cache)) << name(dtype) << " to " << name(cache);
        EXPECT_TRUE(equal_bytes(got.value_cache, expected.value_cache)) << name(dtype) << " to " << name(cache);
        EXPECT_EQ(got.status, expected.status);
        if (!hostile) {
          EXPECT_FALSE(equal_bytes(expected.key_cache, before.key_cache)) << "nothing was written";
          EXPECT_EQ(expected.status, shared ? 0 : status::kPageId);
        }
      }
}

}  // namespace
}  // namespace ejk
