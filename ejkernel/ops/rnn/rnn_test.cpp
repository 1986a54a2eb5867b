// The rules of operations §12, one test each, on every kernel of the host, with values worked out by hand.
#include "ejkernel/ops/rnn/rnn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using ::testing::Contains;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::f32;
using ::testing::HasSubstr;
using testing::i32;
using ::testing::Not;
using ::testing::Pointwise;
using testing::refusal_of;
using testing::values_of;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Sums of what was: h = x + h.
constexpr Rnn::Params kSums = {.cell_type = CellType::rnn, .activation = CellActivation::identity};

class RnnRules : public ::testing::TestWithParam<std::string> {
 protected:
  CallOptions options() { return {.plan = {.kernel = GetParam()}, .status = &status}; }
  Rnn::Results run(const Rnn::Inputs& in, const Rnn::Params& params) { return rnn(in, params, options()); }
  RnnBackward::Results gradients(const RnnBackward::Inputs& in, const Rnn::Params& params) {
    return execute<RnnBackward>(in, params, options());
  }

  const Array one = f32({1, 1, 1}, {1}), both = f32({2, 1, 1}, {1, 1});
  uint32_t status = 0;
};

TEST_P(RnnRules, each_step_starts_from_the_one_before) {
  const auto [out, h, c, gates] =
      run({.input = f32({1, 4, 1}, {1, 2, 3, 4}), .hidden = f32({1, 1, 1}, {10}), .weight_ih = one, .weight_hh = one},
          kSums);
  EXPECT_THAT(values_of(out), ElementsAre(11, 13, 16, 20));
  EXPECT_THAT(values_of(h), ElementsAre(20));
  EXPECT_FALSE(c.present());
}

TEST_P(RnnRules, one_state_needs_no_axis_of_its_own) {
  const Array input = f32({2, 1, 1}, {1, 2});
  const auto [out, h, c, gates] =
      run({.input = input, .hidden = f32({2, 1}, {10, 20}), .weight_ih = one, .weight_hh = one}, kSums);
  EXPECT_THAT(values_of(out), ElementsAre(11, 22));
  EXPECT_EQ(h.shape(), (Shape{1, 2, 1}));
}

TEST_P(RnnRules, a_sequence_ends_at_its_length_and_the_rest_is_not_read) {
  const Array input = f32({3, 3, 1}, {1, 2, 3, 4, kNaN, kNaN, kNaN, kNaN, kNaN});
  const auto [out, h, c, gates] = run({.input = input,
                                       .hidden = f32({1, 3, 1}, {0, 0, 7}),
                                       .weight_ih = one,
                                       .weight_hh = one,
                                       .lengths = i32({3, 1, 0})},
                                      kSums);
  EXPECT_THAT(values_of(out), ElementsAre(1, 3, 6, 4, 0, 0, 0, 0, 0));
  EXPECT_THAT(values_of(h), ElementsAre(6, 4, 7));
  EXPECT_EQ(status, 0u);
}

TEST_P(RnnRules, lengths_out_of_range_are_clamped_with_their_status_bit) {
  const Array input = f32({2, 2, 1}, {1, 2, kNaN, kNaN});
  const auto result = run({.input = input, .weight_ih = one, .weight_hh = one, .lengths = i32({INT32_MAX, -1})}, kSums);
  EXPECT_THAT(values_of(result.out), ElementsAre(1, 3, 0, 0));
  EXPECT_EQ(status, status::kLength);
}

TEST_P(RnnRules, the_way_back_begins_at_each_sequences_own_end) {
  Rnn::Params params = kSums;
  params.bidirectional = true;
  const Array input = f32({2, 3, 1}, {1, 2, 3, 4, 5, kNaN});
  const auto [out, h, c, gates] =
      run({.input = input, .weight_ih = both, .weight_hh = both, .lengths = i32({3, 2})}, params);
  EXPECT_THAT(values_of(out), ElementsAre(1, 6, 3, 5, 6, 3, 4, 9, 9, 5, 0, 0));
  EXPECT_THAT(values_of(h), ElementsAre(6, 9, 6, 9));
}

TEST_P(RnnRules, a_layer_reads_what_the_one_below_gives) {
  Rnn::Params params = kSums;
  params.num_layers = 2;
  const auto [out, h, c, gates] =
      run({.input = f32({1, 3, 1}, {1, 1, 1}), .weight_ih = one, .weight_ih_upper = one, .weight_hh = both}, params);
  EXPECT_THAT(values_of(out), ElementsAre(1, 3, 6));
  EXPECT_THAT(values_of(h), ElementsAre(3, 6));
}

TEST_P(RnnRules, an_lstms_gates_stand_as_i_f_g_o) {
  // Biases of ±100 open and shut gates; g is tanh(1).
  const Array zero = f32({1, 4, 1}, {0, 0, 0, 0});
  const auto cell_after = [&](double i, double f, double o) {
    return run({.input = f32({1, 1, 1}, {0}),
                .cell = f32({1, 1, 1}, {5}),
                .weight_ih = zero,
                .weight_hh = zero,
                .bias_ih = f32({1, 4}, {i, f, 1, o})},
               {});
  };
  const double g = std::tanh(1.0);
  EXPECT_NEAR(get(cell_after(100, -100, 100).final_cell, 0), g, 1e-6);
  EXPECT_NEAR(get(cell_after(-100, 100, 100).final_cell, 0), 5, 1e-6);
  EXPECT_NEAR(get(cell_after(-100, 100, 100).out, 0), std::tanh(5.0), 1e-6);
  EXPECT_NEAR(get(cell_after(100, 100, -100).out, 0), 0, 1e-30);
}

TEST_P(RnnRules, a_grus_reset_gate_scales_the_whole_of_what_the_state_gives) {
  // r and z shut or open by their biases; n = tanh(b_in + r * (W_hn h + b_hn)).
  const auto n_of = [&](double r) {
    return run({.input = f32({1, 1, 1}, {0}),
                .hidden = f32({1, 1, 1}, {2}),
                .weight_ih = f32({1, 3, 1}, {0, 0, 0}),
                .weight_hh = f32({1, 3, 1}, {0, 0, 0.25}),
                .bias_ih = f32({1, 3}, {r, -100, 0.5}),
                .bias_hh = f32({1, 3}, {0, 0, 0.125})},
               {.cell_type = CellType::gru});
  };
  EXPECT_NEAR(get(n_of(100).out, 0), std::tanh(0.5 + 0.25 * 2 + 0.125), 1e-6);
  EXPECT_NEAR(get(n_of(-100).out, 0), std::tanh(0.5), 1e-6);
}

TEST_P(RnnRules, what_lies_past_a_length_reaches_no_gradient) {
  RnnBackward::Inputs in;
  const Array input = f32({2, 2, 1}, {1, kNaN, kNaN, kNaN}), lengths = i32({1, 0});
  const Array d_out = f32({2, 2, 1}, {3, kNaN, kNaN, kNaN}), d_final = f32({1, 2, 1}, {10, 20});
  const Array hidden = f32({1, 2, 1}, {5, 6});
  in.input = input, in.weight_ih = one, in.weight_hh = one, in.lengths = lengths;
  in.hidden = hidden, in.d_out = d_out, in.d_final_hidden = d_final;
  const RnnBackward::Results d = gradients(in, kSums);
  EXPECT_THAT(values_of(d.input), ElementsAre(13, 0, 0, 0));
  EXPECT_THAT(values_of(d.hidden), ElementsAre(13, 20));
  EXPECT_THAT(values_of(d.weight_ih), ElementsAre(13));
  EXPECT_THAT(values_of(d.weight_hh), ElementsAre(13 * 5));
  EXPECT_FALSE(d.cell.present());
  EXPECT_FALSE(d.bias_ih.present());
}

TEST_P(RnnRules, without_cotangents_gradients_are_zero) {
  RnnBackward::Inputs in;
  const Array input = f32({1, 2, 1}, {1, 2}), weights = f32({1, 4, 1}, {1, 1, 1, 1});
  in.input = input, in.weight_ih = weights, in.weight_hh = weights;
  const RnnBackward::Results d = gradients(in, {});
  EXPECT_THAT(values_of(d.input), Each(0));
  EXPECT_THAT(values_of(d.weight_hh), Each(0));
}

/// `shape` filled with numbers in [-1, 1].
Array random_f32(std::mt19937& random, const Shape& shape) {
  Array made = Array::zeros(DType::f32, shape);
  std::uniform_real_distribution<float> number(-1, 1);
  for (int64_t n = 0; n < made.num_elements(); ++n) made.as<float>()[n] = number(random);
  return made;
}

TEST_P(RnnRules, weights_may_lie_backwards_in_memory) {
  std::mt19937 random(1);
  const Array input = random_f32(random, {1, 2, 1}), weight_ih = random_f32(random, {1, 24, 1}),
              forwards = random_f32(random, {1, 24, 8}), weight_hh = random_f32(random, {2, 24, 8}),
              d_out = random_f32(random, {1, 2, 8});
  Array backwards = Array::zeros(DType::f32, {1, 24, 8});
  for (int64_t row = 0; row < 24; ++row)
    std::copy_n(forwards.as<float>() + row * 8, 8, backwards.as<float>() + (23 - row) * 8);
  RnnBackward::Inputs in;
  in.input = input, in.weight_ih = weight_ih, in.weight_ih_upper = forwards, in.weight_hh = weight_hh;
  in.d_out = d_out;
  const Rnn::Params params = {.cell_type = CellType::gru, .num_layers = 2};
  const RnnBackward::Results expected = gradients(in, params);
  in.weight_ih_upper.data = backwards.as<float>() + size_t{23} * 8, in.weight_ih_upper.strides[1] = -8;
  const RnnBackward::Results d = gradients(in, params);
  EXPECT_EQ(values_of(d.input), values_of(expected.input));
  EXPECT_EQ(values_of(d.weight_ih_upper), values_of(expected.weight_ih_upper));
  EXPECT_THAT(values_of(d.input), Contains(Not(0)));
}

TEST_P(RnnRules, gates_may_be_kept_for_the_gradient) {
  std::mt19937 random(1);
  for (const auto& [cell, gate_rows] : {std::pair{CellType::lstm, 12}, {CellType::gru, 9}, {CellType::rnn, 3}}) {
    const Array input = random_f32(random, {2, 4, 2}), weight_ih = random_f32(random, {2, gate_rows, 2}),
                upper = random_f32(random, {2, gate_rows, 6}), weight_hh = random_f32(random, {4, gate_rows, 3}),
                lengths = i32({4, 2}), d_out = random_f32(random, {2, 4, 6});
    RnnBackward::Inputs in;
    in.input = input, in.weight_ih = weight_ih, in.weight_ih_upper = upper, in.weight_hh = weight_hh;
    in.lengths = lengths, in.d_out = d_out;
    Rnn::Params params = {.cell_type = cell, .bidirectional = true, .num_layers = 2};
    const RnnBackward::Results anew = gradients(in, params);
    params.keep_gates = true;
    const Array gates = run(in, params).gates;
    in.gates = gates;
    const RnnBackward::Results kept = gradients(in, params);
    const auto near_all = [](const Array& values) { return Pointwise(DoubleNear(1e-6), values_of(values)); };
    EXPECT_THAT(values_of(kept.input), near_all(anew.input));
    EXPECT_THAT(values_of(kept.weight_ih), near_all(anew.weight_ih));
    EXPECT_THAT(values_of(kept.weight_ih_upper), near_all(anew.weight_ih_upper));
    EXPECT_THAT(values_of(kept.weight_hh), near_all(anew.weight_hh));
    EXPECT_THAT(values_of(kept.input), Contains(Not(0)));
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, RnnRules, ::testing::Values("cpu", "reference"),
                         [](const auto& info) { return info.param; });

// ---- refusals ----

class RnnRefusals : public ::testing::Test {
 protected:
  std::string refusal(const Rnn::Inputs& in, const Rnn::Params& params) {
    return refusal_of([&] { rnn(in, params); });
  }
  const Array input = f32({1, 1, 2}, {1, 2}), weight_ih = Array::zeros(DType::f32, {1, 12, 2}),
              weight_hh = Array::zeros(DType::f32, {1, 12, 3});
};

TEST_F(RnnRefusals, weights_must_have_the_rows_of_the_cells_gates) {
  EXPECT_THAT(refusal({.input = input, .weight_ih = weight_ih, .weight_hh = weight_hh}, {.cell_type = CellType::gru}),
              HasSubstr("weight_ih gate_rows must equal 3 * hidden_size = 9, got 12"));
}

TEST_F(RnnRefusals, directions_and_layers_must_be_those_of_the_weights) {
  EXPECT_THAT(refusal({.input = input, .weight_ih = weight_ih, .weight_hh = weight_hh}, {.bidirectional = true}),
              HasSubstr("num_directions must equal 1, or 2 when bidirectional = 2, got 1"));
  EXPECT_THAT(refusal({.input = input, .weight_ih = weight_ih, .weight_hh = weight_hh}, {.num_layers = 2}),
              HasSubstr("num_states must equal num_layers * num_directions = 2, got 1"));
  const Array two = Array::zeros(DType::f32, {2, 12, 3});
  EXPECT_THAT(refusal({.input = input, .weight_ih = weight_ih, .weight_hh = two}, {.num_layers = 2}),
              HasSubstr("weight_ih_upper must be given with several layers"));
  EXPECT_THAT(refusal({.input = input, .weight_ih = weight_ih, .weight_ih_upper = two, .weight_hh = weight_hh}, {}),
              HasSubstr("weight_ih_upper must be left out with one layer"));
}

TEST_F(RnnRefusals, states_without_their_axis_are_one) {
  Rnn::Params params = {.num_layers = 2};
  EXPECT_THAT(refusal({.input = input,
                       .hidden = Array::zeros(DType::f32, {1, 3}),
                       .weight_ih = weight_ih,
                       .weight_ih_upper = Array::zeros(DType::f32, {1, 12, 3}),
                       .weight_hh = Array::zeros(DType::f32, {2, 12, 3})},
                      params),
              HasSubstr("hidden must have an axis of states where there are 2"));
}

TEST_F(RnnRefusals, only_a_vanilla_cell_has_an_activation_and_only_an_lstm_a_cell) {
  EXPECT_THAT(
      refusal({.input = input, .weight_ih = weight_ih, .weight_hh = weight_hh}, {.activation = CellActivation::relu}),
      HasSubstr("activation must be left at tanh unless cell_type is rnn, got relu"));
  const Array nine = Array::zeros(DType::f32, {1, 9, 2}), hidden = Array::zeros(DType::f32, {1, 9, 3});
  EXPECT_THAT(
      refusal({.input = input, .cell = Array::zeros(DType::f32, {1, 1, 3}), .weight_ih = nine, .weight_hh = hidden},
              {.cell_type = CellType::gru}),
      HasSubstr("cell must be left out in the gru or rnn form"));
}

}  // namespace
}  // namespace ejk
