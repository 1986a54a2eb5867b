#include "ejkernel/runtime/gradient.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ejkernel/core/error.h"
#include "ejkernel/ops/gla_attention/gla_attention.h"
#include "ejkernel/ops/rnn/rnn.h"
#include "ejkernel/runtime/api.h"

namespace ejk {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Vjp, an_output_without_a_derivative_has_no_cotangent) {
  const Array input = Array::zeros(DType::f32, {2, 3, 4}), weights = Array::zeros(DType::f32, {1, 8, 4}),
              recurrent = Array::zeros(DType::f32, {1, 8, 2});
  auto [results, pullback] = vjp<Rnn>({.input = input, .weight_ih = weights, .weight_hh = recurrent},
                                      {.cell_type = CellType::lstm, .keep_gates = true});
  ASSERT_TRUE(results.gates.present());
  const Array gates = Array::zeros(results.gates.dtype(), results.gates.shape());
  EXPECT_THAT([&] { pullback({.gates = gates}); },
              ThrowsMessage<Unsupported>(HasSubstr("rnn: its output gates has no derivative")));
  const Array out = Array::zeros(results.out.dtype(), results.out.shape());
  EXPECT_TRUE(pullback({.out = out}).input.present());
}

TEST(Vjp, a_kernel_and_its_config_are_the_forwards_alone) {
  const Array x = Array::zeros(DType::f32, {1, 8, 2, 4});
  // The gradient's kernel has no field of this name.
  auto [results, pullback] = vjp<GlaAttention>({.query = x, .key = x, .value = x}, {},
                                               {.plan = {.kernel = "cpu", .config = ConfigValues{{"chunk", 16}}}});
  EXPECT_TRUE(pullback({.out = results.out}).query.present());
}

TEST(Vjp, what_the_forward_gave_has_to_be_there) {
  const ForwardCall forward{.operation = "flash_attention", .inputs = {}, .params = {}, .outputs = {}};
  const std::vector<Tensor> cotangents(2);
  EXPECT_THAT([&] { pull_back(forward, cotangents, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the forward's outputs must be 2 tensors, got 0")));
}

}  // namespace
}  // namespace ejk
