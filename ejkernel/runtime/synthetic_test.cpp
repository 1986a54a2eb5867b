// Inputs made up from declarations: what their numbers mean holds.
#include "ejkernel/runtime/synthetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/rnn/rnn.h"
#include "ejkernel/runtime/registry.h"

namespace ejk {
namespace {

/// A call by field names, with contents made up for specs.
class Made {
 public:
  Made(std::string_view operation, const std::vector<std::pair<std::string_view, Tensor>>& specs,
       const ParamsBlock* params = nullptr)
      : operation_(*KernelRegistry::instance().find(operation)->declaration) {
    std::vector<Tensor> inputs(operation_.inputs.size());
    for (const auto& [name, spec] : specs) inputs[static_cast<size_t>(find_input(operation_, name))] = spec;
    made_ = make_synthetic_inputs(operation_, inputs, params == nullptr ? operation_.default_params : *params, 7);
  }
  const Tensor& tensor(std::string_view name) const {
    return made_.tensors[static_cast<size_t>(find_input(operation_, name))];
  }
  std::vector<int64_t> numbers(std::string_view name) const {
    const Tensor& t = tensor(name);
    std::vector<int64_t> all;
    for (int64_t n = 0; n < t.num_elements(); ++n) all.push_back(static_cast<int64_t>(get(t, n)));
    return all;
  }

 private:
  const Operation& operation_;
  SyntheticInputs made_;
};

Tensor spec(DType dtype, const Shape& shape) { return Tensor(nullptr, dtype, shape); }

TEST(SyntheticInputs, pages_are_real_ones_and_lengths_fill_the_table) {
  const Made made("page_attention", {{"query", spec(DType::f32, {3, 4, 8})},
                                     {"key_cache", spec(DType::i4, {12, 2, 2, 8})},
                                     {"value_cache", spec(DType::i4, {12, 2, 2, 8})},
                                     {"context_lens", spec(DType::i32, {3})},
                                     {"block_tables", spec(DType::i32, {3, 4})}});
  EXPECT_EQ(made.numbers("context_lens"), (std::vector<int64_t>{8, 8, 8}));
  const std::vector<int64_t> pages = made.numbers("block_tables");
  EXPECT_EQ(std::set<int64_t>(pages.begin(), pages.end()).size(), 12u);
  EXPECT_GE(*std::min_element(pages.begin(), pages.end()), 0);
  EXPECT_LT(*std::max_element(pages.begin(), pages.end()), 12);
}

TEST(SyntheticInputs, flat_tables_counts_and_offsets_agree) {
  const Made made("ragged_page_attention_v3", {{"queries", spec(DType::f32, {10, 4, 8})},
                                               {"keys", spec(DType::f32, {10, 2, 8})},
                                               {"values", spec(DType::f32, {10, 2, 8})},
                                               {"kv_cache", spec(DType::i8, {5, 4, 4, 8})},
                                               {"context_lens", spec(DType::i32, {3})},
                                               {"block_tables", spec(DType::i32, {6})},
                                               {"query_start_loc", spec(DType::i32, {4})},
                                               {"distribution", spec(DType::i32, {3})}});
  EXPECT_EQ(made.numbers("context_lens"), (std::vector<int64_t>{8, 8, 8}));
  EXPECT_EQ(made.numbers("distribution"), (std::vector<int64_t>{0, 0, 3}));
  const std::vector<int64_t> offsets = made.numbers("query_start_loc");
  EXPECT_EQ(offsets.front(), 0);
  EXPECT_EQ(offsets.back(), 10);
  EXPECT_TRUE(std::is_sorted(offsets.begin(), offsets.end()));
}

/// Else logits are in the hundreds, and of two float32 kernels' answers either may be right.
TEST(SyntheticInputs, values_that_integers_stand_for_are_near_one) {
  for (const DType dtype : {DType::i8, DType::i4})
    for (const bool is_scaled : {true, false}) {
      std::vector<std::pair<std::string_view, Tensor>> specs = {{"query", spec(DType::f32, {3, 4, 64})},
                                                                {"key_cache", spec(dtype, {12, 2, 2, 64})},
                                                                {"value_cache", spec(dtype, {12, 2, 2, 64})},
                                                                {"context_lens", spec(DType::i32, {3})},
                                                                {"block_tables", spec(DType::i32, {3, 4})}};
      if (is_scaled) specs.emplace_back("k_scale", spec(DType::f32, {2}));
      const Made made("page_attention", specs);
      const Tensor keys = made.tensor("key_cache");
      double squares = 0;
      for (int64_t n = 0; n < keys.num_elements(); ++n) squares += get(keys, n) * get(keys, n);
      const double rms = std::sqrt(squares / static_cast<double>(keys.num_elements()));
      const double scale = is_scaled ? get(made.tensor("k_scale"), 0) : 1;
      EXPECT_GT(rms * scale, 0.4);
      EXPECT_LT(rms * scale, 1.7);
    }
}

TEST(SyntheticInputs, gates_make_states_decay) {
  const Tensor q = spec(DType::f32, {1, 50, 2, 8});
  const Made made("recurrent_attention", {{"query", q},
                                          {"key", q},
                                          {"value", q},
                                          {"g", spec(DType::bf16, {1, 50, 2})},
                                          {"g_gamma", spec(DType::f32, {2})},
                                          {"gk", q},
                                          {"gv", q}});
  for (const char* gate : {"g", "g_gamma", "gk", "gv"}) {
    const Tensor t = made.tensor(gate);
    for (int64_t n = 0; n < t.num_elements(); ++n) {
      ASSERT_LE(get(t, n), 0) << gate;
      ASSERT_GE(get(t, n), -0.11) << gate;
    }
  }
}

TEST(SyntheticInputs, kept_gates_are_those_that_the_forward_gives) {
  constexpr int64_t kBatch = 2, kSteps = 5, kInput = 3, kHidden = 4;
  const ParamsBlock params = ParamsBlock::of(Rnn::Params{.keep_gates = true});
  const Tensor gates(nullptr, DType::f32, {1, kBatch, kSteps, 4 * kHidden},
                     {kBatch * kSteps * 4 * kHidden, 4 * kHidden, kBatch * 4 * kHidden, 1});  // steps lie outside
  const Made made("rnn_backward",
                  {{"input", spec(DType::bf16, {kBatch, kSteps, kInput})},
                   {"weight_ih", spec(DType::bf16, {1, 4 * kHidden, kInput})},
                   {"weight_hh", spec(DType::bf16, {1, 4 * kHidden, kHidden})},
                   {"gates", gates}},
                  &params);
  const Rnn::Results forward =
      rnn({.input = made.tensor("input"), .weight_ih = made.tensor("weight_ih"), .weight_hh = made.tensor("weight_hh")},
          {.keep_gates = true});
  const Tensor kept = made.tensor("gates");
  for (int64_t n = 0; n < kept.num_elements(); ++n) ASSERT_EQ(get(kept, n), get(forward.gates, n)) << n;
}

TEST(SyntheticInputs, a_decode_uses_the_whole_cache) {
  const Made made("ragged_decode_attention", {{"query", spec(DType::f32, {2, 4, 8})},
                                              {"key", spec(DType::f32, {2, 6, 2, 8})},
                                              {"value", spec(DType::f32, {2, 6, 2, 8})},
                                              {"sequence_start", spec(DType::i32, {2})},
                                              {"sequence_end", spec(DType::i32, {2})}});
  EXPECT_EQ(made.numbers("sequence_start"), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(made.numbers("sequence_end"), (std::vector<int64_t>{6, 6}));
}

}  // namespace
}  // namespace ejk
