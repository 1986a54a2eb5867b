// What is special to the CPU kernels of recurrent_attention: every instruction set, every config, every number of
// threads, no allocation, little memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_cpu_internal.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cpu/simd_target.h"
#include "ejkernel/testing/allocation_counter.h"
#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using testing::i32;
using Backward = RecurrentAttentionBackward;

CallOptions by(const std::string& kernel) { return {.plan = {.kernel = kernel}}; }
CallOptions by_cpu(const ConfigValues& config) { return {.plan = {.kernel = "cpu", .config = config}}; }

/// Which gates a problem has: bits of g, g_gamma, gk, gv.
enum Gates { kG = 1, kGamma = 2, kGk = 4, kGv = 8 };

struct Shapes {
  int64_t batch = 1, tokens = 40, q_heads = 2, kv_heads = 1, keys = 20, values = 24;
  int gates = kG | kGk;
  bool packed = false, reverse = false, states = true;
};

/// Inputs of a call and of its gradient, and what owns them.
class Drawn {
 public:
  Drawn(const Shapes& s, uint32_t seed, DType dtype = DType::f32) : random_(seed) {
    const int64_t sequences = s.packed ? 4 : s.batch;
    in.query = normal(dtype, rows(s, {s.q_heads, s.keys}));
    in.key = normal(dtype, rows(s, {s.kv_heads, s.keys}));
    in.value = normal(dtype, rows(s, {s.kv_heads, s.values}));
    if (s.gates & kG) in.g = gates(rows(s, {s.q_heads}));
    if (s.gates & kGamma) in.g_gamma = gates({s.q_heads});
    if (s.gates & kGk) in.gk = gates(rows(s, {s.q_heads, s.keys}));
    if (s.gates & kGv) in.gv = gates(rows(s, {s.q_heads, s.values}));
    const Shape states = {sequences, s.q_heads, s.keys, s.values};
    if (s.states) in.initial_state = normal(DType::f32, states);
    if (s.packed) {
      const auto t = static_cast<double>(s.tokens);
      owners_.push_back(i32({1, std::floor(t / 2), std::floor(t / 2), t - 3, t}));
      in.cu_seqlens = owners_.back();
    }
    in.d_out = normal(dtype, rows(s, {s.q_heads, s.values}));
    if (s.states) in.d_final_state = normal(DType::f32, states);
    params.reverse = s.reverse;
  }

  Backward::Inputs in;
  RecurrentAttention::Params params;

 private:
  static Shape rows(const Shapes& s, std::initializer_list<int64_t> rest) {
    Shape shape;
    if (!s.packed) shape.push_back(s.batch);
    shape.push_back(s.tokens);
    for (const int64_t extent : rest) shape.push_back(extent);
    return shape;
  }
  Tensor normal(DType dtype, const Shape& shape) {
    std::normal_distribution<double> normal;
    owners_.emplace_back(dtype, shape);
    for (int64_t n = 0; n < owners_.back().num_elements(); ++n) set(owners_.back(), n, normal(random_));
    return owners_.back();
  }
  /// Decays of all strengths, some of them complete.
  Tensor gates(const Shape& shape) {
    owners_.emplace_back(DType::f32, shape);
    std::uniform_real_distribution<double> uniform;
    for (int64_t n = 0; n < owners_.back().num_elements(); ++n) {
      const uint32_t kind = random_() % 64;
      double gate = -std::exp(-6 * uniform(random_));
      if (kind == 0) gate = -1e4;
      if (kind == 1) gate = -std::numeric_limits<double>::infinity();
      if (kind == 2) gate = -40;
      if (kind == 3) gate = 0.1;
      set(owners_.back(), n, gate);
    }
    return owners_.back();
  }

  std::mt19937 random_;
  std::vector<Array> owners_;
};

bool same_bits(const Array& a, const Array& b) {
  if (!(a.shape() == b.shape())) return false;
  const auto bytes = static_cast<size_t>(num_bytes(a.dtype(), a.shape()));
  return bytes == 0 || std::memcmp(a.data(), b.data(), bytes) == 0;
}

template <class Results>
std::vector<Array> all_of(const Results& results) {
  if constexpr (requires { results.final_state; })
    return {results.out, results.final_state};
  else
    return {results.query, results.key, results.value, results.g,
            results.g_gamma, results.gk, results.gv, results.initial_state};
}

/// The largest difference, relative to the largest number.
void expect_close(const std::vector<Array>& actual, const std::vector<Array>& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t a = 0; a < actual.size(); ++a) {
    double largest = 0, error = 0;
    for (int64_t n = 0; n < expected[a].num_elements(); ++n) {
      largest = std::max(largest, std::abs(get(expected[a], n)));
      const double difference = std::abs(get(actual[a], n) - get(expected[a], n));
      error = difference <= error ? error : difference;  // NaN stays
    }
    EXPECT_LE(error, tolerance * std::max(largest, 1e-6)) << what << ": output " << a;
  }
}

std::vector<Shapes> every_kind() {
  std::vector<Shapes> all;
  for (int gates = 0; gates < 16; ++gates)
    all.push_back({.batch = 1 + gates % 2,
                   .tokens = 33 + gates,
                   .q_heads = 2,
                   .kv_heads = 1 + gates / 2 % 2,
                   .keys = 5 + 9 * (gates % 4),
                   .values = 40 - 7 * (gates % 5),
                   .gates = gates,
                   .packed = gates % 3 == 0,
                   .reverse = gates % 4 >= 2,
                   .states = gates % 8 != 5});
  return all;
}

std::string name_of(const Shapes& s) { return "gates " + std::to_string(s.gates); }

TEST(RecurrentAttentionCpu, agrees_with_the_reference_on_every_instruction_set) {
  for (const Shapes& s : every_kind()) {
    const Drawn drawn(s, 1);
    const auto expected = recurrent_attention(drawn.in, drawn.params, by("reference"));
    for (const std::string_view target : cpu::simd_targets()) {
      const cpu::ScopedSimdTarget scoped(target);
      for (const int chunk : {1, 16})
        expect_close(all_of(recurrent_attention(drawn.in, drawn.params, by_cpu({{"chunk", chunk}, {"block_v", 32}}))),
                     all_of(expected), 2e-6, std::string(target) + " chunk " + std::to_string(chunk) + " " + name_of(s));
    }
  }
}

TEST(RecurrentAttentionCpu, columns_do_not_depend_on_how_they_are_cut) {
  for (const Shapes& s : every_kind()) {
    const Drawn drawn(s, 2);
    const auto whole = recurrent_attention(drawn.in, drawn.params, by_cpu({{"chunk", 16}, {"block_v", 512}}));
    const auto parts = recurrent_attention(drawn.in, drawn.params, by_cpu({{"chunk", 16}, {"block_v", 16}}));
    EXPECT_TRUE(same_bits(whole.out, parts.out) && same_bits(whole.final_state, parts.final_state)) << name_of(s);
  }
}

}  // namespace
}  // namespace ejk
