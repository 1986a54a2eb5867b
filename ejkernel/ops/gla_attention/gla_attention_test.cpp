// What gla_attention adds to recurrent_attention: which gates it has, and what they and their gradients are called.
#include "ejkernel/ops/gla_attention/gla_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/gla_attention/gla_attention_cases.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using testing::counting;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using testing::f32;
using ::testing::HasSubstr;
using testing::refusal_of;
using testing::values_of;

class GlaAttentionCalls : public ::testing::TestWithParam<std::string> {
 protected:
  CallOptions options() const { return {.plan = {.kernel = GetParam()}}; }

  // Two rows of the state, of which gk halves the first, and g_gamma both.
  const double half = std::log(0.5);
  const Array query = f32({1, 1, 1, 2}, {1, 1}), key = f32({1, 1, 1, 2}, {1, 2}), value = f32({1, 1, 1, 1}, {10});
  const Array gk = f32({1, 1, 1, 2}, {half, 0}), g_gamma = f32({1}, {half}), state = f32({1, 1, 2, 1}, {4, 8});
  const GlaAttention::Inputs in = {
      .query = query, .key = key, .value = value, .gk = gk, .g_gamma = g_gamma, .initial_state = state};
};

TEST_P(GlaAttentionCalls, decay_by_both_gates) {
  const auto [out, final_state] = gla_attention(in, {.softmax_scale = 1}, options());
  EXPECT_THAT(values_of(final_state), ElementsAre(DoubleNear(11, 1e-5), DoubleNear(24, 1e-5)));
  EXPECT_THAT(values_of(out), ElementsAre(DoubleNear(35, 1e-5)));
}

TEST_P(GlaAttentionCalls, have_gradients_by_the_inputs_names) {
  const Array one = f32({1, 1, 1, 1}, {1});
  const auto d = execute<GlaAttentionBackward>({in, one, {}}, {.softmax_scale = 1}, options());
  EXPECT_THAT(values_of(d.query), ElementsAre(DoubleNear(11, 1e-5), DoubleNear(24, 1e-5)));
  EXPECT_THAT(values_of(d.key), ElementsAre(DoubleNear(10, 1e-5), DoubleNear(10, 1e-5)));
  EXPECT_THAT(values_of(d.value), ElementsAre(DoubleNear(3, 1e-5)));
  EXPECT_THAT(values_of(d.gk), ElementsAre(DoubleNear(1, 1e-5), DoubleNear(4, 1e-5)));
  EXPECT_THAT(values_of(d.g_gamma), ElementsAre(DoubleNear(5, 1e-5)));
  EXPECT_THAT(values_of(d.initial_state), ElementsAre(DoubleNear(0.25, 1e-5), DoubleNear(0.5, 1e-5)));
}

std::vector<std::string> kernels_of_the_host() {
  std::vector<std::string> names;
  for (const testing::Kernel& kernel : testing::kernels_of(testing::declaration<GlaAttention>()))
    names.push_back(kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Kernels, GlaAttentionCalls, ::testing::ValuesIn(kernels_of_the_host()),
                         [](const auto& info) { return info.param; });

TEST(GlaAttention, has_neither_a_scalar_gate_nor_one_of_columns) {
  const Operation& op = testing::declaration<GlaAttention>();
  EXPECT_EQ(find_input(op, "g"), -1);
  EXPECT_EQ(find_input(op, "gv"), -1);
  EXPECT_EQ(op.inputs[static_cast<size_t>(find_input(op, "gk"))].python_name, "g");
}

TEST(GlaAttention, has_the_kernels_of_recurrent_attention) {
  const auto names = [](const Operation& op) {
    std::vector<std::string> names;
    for (const KernelInfo* kernel : op.kernels()) names.push_back(kernel->name);
    return names;
  };
  EXPECT_EQ(names(testing::declaration<GlaAttention>()), names(testing::declaration<RecurrentAttention>()));
  EXPECT_EQ(names(testing::declaration<GlaAttentionBackward>()),
            names(testing::declaration<RecurrentAttentionBackward>()));
}

TEST(GlaAttention, refuses_what_recurrent_attention_refuses_in_its_own_name) {
  const Array three = counting({1, 2, 3, 1}), two = counting({1, 2, 2, 1});
  EXPECT_THAT(refusal_of([&] { gla_attention({.query = three, .key = two, .value = two}); }),
              HasSubstr("gla_attention: query num_q_heads must be a multiple of key num_kv_heads 2, got 3"));
  EXPECT_THAT(
      refusal_of([&] {
        execute<GlaAttentionBackward>({{.query = two, .key = two, .value = two}, two, {}}, {.state_dtype = DType::i8});
      }),
      HasSubstr("gla_attention_backward: state_dtype must be f64, f32, f16 or bf16, got i8"));
}

}  // namespace
}  // namespace ejk
