#include "ejkernel/platform/cpu/chunk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "ejkernel/platform/cpu/simd_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/platform/cpu/chunk_test.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h:
#include "ejkernel/platform/cpu/chunk-inl.h"

#ifndef EJK_CHUNK_TEST_ONCE
#define EJK_CHUNK_TEST_ONCE
namespace ejk::cpu {
namespace {

/// A chunk's inputs and results in memory of their own; `keys` and `values` are their numbers.
struct Chunk {
  std::vector<std::byte> memory;
  ChunkRows query, key, key_decay, value, d_out, value_decay, out;
  ChunkRows d_query, d_key, d_value, key_gate, d_out_gate, value_gate, key_rows, value_rows;
  ChunkRows scores, value_scores, table;
  ChunkState state, cotangent;
  float *panel, *whole_keys, *whole_values, *key_ends, *value_ends, *turned;

  Chunk(int64_t keys, int64_t values) {
    Carver measure;
    carve(measure, keys, values);
    memory.resize(measure.used() + kAlignment);
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    Carver carver(memory.data() + (kAlignment - address % kAlignment) % kAlignment);
    carve(carver, keys, values);
  }

 private:
  void carve(Carver& c, int64_t keys, int64_t values) {
    for (ChunkRows* rows : {&query, &key, &key_decay, &d_query, &d_key, &key_gate, &key_rows})
      *rows = ChunkRows::take(c, keys);
    for (ChunkRows* rows : {&value, &d_out, &value_decay, &out, &d_value, &value_gate, &d_out_gate, &value_rows})
      *rows = ChunkRows::take(c, values);
    for (ChunkRows* rows : {&scores, &value_scores, &table}) *rows = ChunkRows::take(c, kChunk);
    state = ChunkState::at(c.take<float>(ChunkState::size(keys, values)), keys, values);
    cotangent = ChunkState::at(c.take<float>(ChunkState::size(keys, values)), keys, values);
    panel = c.take<float>(kChunk * padded(std::max(keys, values)));
    whole_keys = c.take<float>(padded(keys)), key_ends = c.take<float>(padded(keys));
    whole_values = c.take<float>(padded(values)), value_ends = c.take<float>(padded(values));
    turned = c.take<float>(ChunkState::turned_size(keys, values));
  }
};

}  // namespace
}  // namespace ejk::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {
namespace {

/// out, and the state after the chunk in place of the one before it.
void pass_forward(const Chunk& c) {
  decayed_scores(c.query, c.key, c.key_decay, c.panel, c.scores);
  decayed_sums(c.scores, c.value, c.value_decay, c.out);
  decay_from_start(c.key_decay, c.query, c.key_rows);
  read_state<false>(c.state, c.key_rows, c.value_rows);
  decay_from_start(c.value_decay, c.value_rows, c.value_rows);
  add_rows(c.value_rows, c.out);
  decay_to_end(c.key_decay, c.key, c.key_rows, c.whole_keys);
  decay_to_end(c.value_decay, c.value, c.value_rows, c.whole_values);
  update_state(c.state.data, c.state, c.whole_keys, c.whole_values, c.key_rows, c.value_rows);
}

/// d_query, d_key and key_gate, from the state before the chunk and the cotangent of the one after it.
void pass_backward(const Chunk& c) {
  decayed_scores(c.d_out, c.value, c.value_decay, c.panel, c.value_scores);
  decay_from_start(c.value_decay, c.d_out, c.value_rows);
  read_state_across(c.state, c.value_rows, c.turned, c.d_query);
  decay_from_start(c.key_decay, c.d_query, c.d_query);
  decay_to_end(c.value_decay, c.value, c.value_rows, c.whole_values);
  read_state_across(c.cotangent, c.value_rows, c.turned, c.d_key);
  decay_to_end(c.key_decay, c.d_key, c.d_key, c.whole_keys);
  sum_state_products(c.state, c.cotangent, c.whole_keys, c.whole_values, c.key_ends, c.value_ends);
  find_end_gradients(c.key_ends, c.query, c.d_query, c.key, c.d_key, c.key_gate);
  add_pair_gradients(c.value_scores, c.query, c.key, c.key_decay, c.d_query, c.d_key, c.key_gate);
}

/// The two ways to scores and their gradients where a token's decay is one number: by rows, and by a table.
void pass_scalar(const Chunk& c, float* by_rows, float* by_table) {
  decayed_scores(c.query, c.key, c.key_decay, c.panel, c.scores);
  decay_table(c.key_decay, c.table);
  plain_scores(c.query, c.key, c.table, c.panel, c.value_scores);
  std::copy_n(c.scores.data, kChunk * kChunk, by_rows);
  std::copy_n(c.value_scores.data, kChunk * kChunk, by_table);
}

}  // namespace
}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::cpu {
namespace {

HWY_EXPORT(pass_forward);
HWY_EXPORT(pass_backward);
HWY_EXPORT(pass_scalar);

class ChunkAlgebra : public testing::TestWithParam<std::string_view> {
 protected:
  ScopedSimdTarget target{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Targets, ChunkAlgebra, testing::ValuesIn(simd_targets()),
                         [](const auto& info) { return std::string(info.param); });

void fill(float* data, int64_t rows, int64_t columns, int64_t stride, const auto& draw) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < stride; ++c) data[r * stride + c] = c < columns ? static_cast<float>(draw()) : 0;
}

/// Decays from none to complete, and some growth.
void draw_chunk(const Chunk& c, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  for (const ChunkRows* rows : {&c.query, &c.key, &c.value, &c.d_out})
    fill(rows->data, kChunk, rows->columns, rows->stride, [&] { return normal(random); });
  for (const ChunkRows* rows : {&c.key_decay, &c.value_decay})
    fill(rows->data, kChunk, rows->columns, rows->stride,
         [&] { return random() % 32 == 0 ? 0 : 1.1 * std::sqrt(uniform(random)); });
  for (const ChunkState* state : {&c.state, &c.cotangent})
    fill(state->data, state->keys, state->values, state->stride, [&] { return normal(random); });
}

using Matrix = std::vector<double>;  // [keys][values]

double decay_at(const Chunk& c, int64_t t, int64_t k, int64_t v) {
  return static_cast<double>(c.key_decay.row(t)[k]) * static_cast<double>(c.value_decay.row(t)[v]);
}

Matrix matrix_of(const ChunkState& s) {
  Matrix m;
  for (int64_t k = 0; k < s.keys; ++k)
    for (int64_t v = 0; v < s.values; ++v) m.push_back(s.data[k * s.stride + v]);
  return m;
}

/// Visits (k, v, element) of a [keys][values] matrix.
template <class F>
void for_each_element(const Chunk& c, F f) {
  for (int64_t k = 0; k < c.state.keys; ++k)
    for (int64_t v = 0; v < c.state.values; ++v) f(k, v, static_cast<size_t>(k * c.state.values + v));
}

TEST_P(ChunkAlgebra, a_chunk_is_sixteen_steps) {
  std::mt19937 random(1);
  for (const auto& [keys, values] : {std::pair{1, 1}, {16, 33}, {37, 20}, {64, 64}}) {
    const Chunk c(keys, values);
    draw_chunk(c, random);
    Matrix state = matrix_of(c.state), out;
    for (int64_t t = 0; t < kChunk; ++t) {
      std::vector<double> row(static_cast<size_t>(values));
      for_each_element(c, [&](int64_t k, int64_t v, size_t n) {
        state[n] = decay_at(c, t, k, v) * state[n] + static_cast<double>(c.key.row(t)[k]) * c.value.row(t)[v];
        row[static_cast<size_t>(v)] += c.query.row(t)[k] * state[n];
      });
      out.insert(out.end(), row.begin(), row.end());
    }
    HWY_DYNAMIC_DISPATCH(pass_forward)(c);
    for_each_element(
        c, [&](int64_t k, int64_t v, size_t n) { EXPECT_NEAR(c.state.data[k * c.state.stride + v], state[n], 1e-5); });
    for (int64_t t = 0; t < kChunk; ++t)
      for (int64_t v = 0; v < values; ++v)
        EXPECT_NEAR(c.out.row(t)[v], out[static_cast<size_t>(t * values + v)], 1e-4) << t << " " << v;
  }
}

TEST_P(ChunkAlgebra, gradients_are_those_of_sixteen_steps) {
  std::mt19937 random(2);
  for (const auto& [keys, values] : {std::pair{1, 1}, {19, 34}}) {
    const Chunk c(keys, values);
    draw_chunk(c, random);
    HWY_DYNAMIC_DISPATCH(pass_backward)(c);
    std::vector<Matrix> before = {matrix_of(c.state)};
    for (int64_t t = 0; t < kChunk; ++t) {
      before.push_back(before.back());
      for_each_element(c, [&](int64_t k, int64_t v, size_t n) {
        before.back()[n] =
            decay_at(c, t, k, v) * before.back()[n] + static_cast<double>(c.key.row(t)[k]) * c.value.row(t)[v];
      });
    }
    Matrix d_state = matrix_of(c.cotangent);
    for (int64_t t = kChunk - 1; t >= 0; --t) {
      Matrix d_query(static_cast<size_t>(keys)), d_key = d_query, gate = d_query;
      for_each_element(c, [&](int64_t k, int64_t v, size_t n) {
        d_state[n] += static_cast<double>(c.query.row(t)[k]) * c.d_out.row(t)[v];
        const auto at = static_cast<size_t>(k);
        d_query[at] += before[static_cast<size_t>(t + 1)][n] * c.d_out.row(t)[v];
        d_key[at] += d_state[n] * c.value.row(t)[v];
        d_state[n] *= decay_at(c, t, k, v);
        gate[at] += before[static_cast<size_t>(t)][n] * d_state[n];
      });
      for (int64_t k = 0; k < keys; ++k) {
        const auto at = static_cast<size_t>(k);
        EXPECT_NEAR(c.d_query.row(t)[k], d_query[at], 1e-4) << t << " " << k;
        EXPECT_NEAR(c.d_key.row(t)[k], d_key[at], 1e-4) << t << " " << k;
        EXPECT_NEAR(c.key_gate.row(t)[k], gate[at], 3e-4) << t << " " << k;
      }
    }
  }
}

TEST_P(ChunkAlgebra, a_decay_of_one_number_needs_a_table_only) {
  std::mt19937 random(3);
  const Chunk c(21, 1);
  draw_chunk(c, random);
  for (int64_t t = 0; t < kChunk; ++t)
    std::fill_n(c.key_decay.row(t), 21, t == 5 ? 0 : 1 - 0.05f * static_cast<float>(t));
  float by_rows[kChunk * kChunk], by_table[kChunk * kChunk];
  HWY_DYNAMIC_DISPATCH(pass_scalar)(c, by_rows, by_table);
  for (int64_t n = 0; n < kChunk * kChunk; ++n) EXPECT_NEAR(by_rows[n], by_table[n], 2e-5) << n;
  for (int64_t i = 0; i < kChunk; ++i)
    for (int64_t j = 0; j < kChunk; ++j) {
      if (j > i || (i >= 5 && j < 5)) {
        EXPECT_EQ(by_table[i * kChunk + j], 0) << i << " " << j;
      }
    }
}

}  // namespace
}  // namespace ejk::cpu
#endif
