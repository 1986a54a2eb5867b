// ejk::vjp on a GPU: forward and gradient by the GPU's own kernels, from tensors in its memory to tensors in its
// memory.
#include <gtest/gtest.h>

#include <cmath>

#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/synthetic.h"

namespace ejk::testing {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};

Array normal(std::initializer_list<int64_t> shape, uint64_t seed) {
  Array array(DType::bf16, shape);
  fill_normal(array, seed);
  return array;
}

/// |got - wanted| / |wanted|, by L2 norms.
double distance(const Array& got, const Array& wanted) {
  const Array g = convert(to_host(got), DType::f64), w = convert(wanted, DType::f64);
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < w.num_elements(); ++i) {
    const double wi = w.as<double>()[i], d = g.as<double>()[i] - wi;
    difference += d * d;
    norm += wi * wi;
  }
  return std::sqrt(difference / norm);
}

class VjpOnDevice : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, VjpOnDevice, ::testing::Values(40, 64, 128, 256));

TEST_P(VjpOnDevice, runs_forward_and_backward_there) {
  const int64_t dim = GetParam();
  const Array q = normal({2, 300, 4, dim}, 1), k = normal({2, 300, 2, dim}, 2), v = normal({2, 300, 2, dim}, 3),
              d_out = normal({2, 300, 4, dim}, 4);
  const FlashAttention::Params params = {.causal = true, .deterministic = true};

  const Array q64 = convert(q, DType::f64), k64 = convert(k, DType::f64), v64 = convert(v, DType::f64),
              d64 = convert(d_out, DType::f64);
  const auto [right, right_pullback] = vjp<FlashAttention>({.query = q64, .key = k64, .value = v64}, params);
  const auto right_gradients = right_pullback({.out = d64});

  const Array q_there = to_device(q, kGpu), k_there = to_device(k, kGpu), v_there = to_device(v, kGpu),
              d_there = to_device(d_out, kGpu);
  const auto [results, pullback] = vjp<FlashAttention>({.query = q_there, .key = k_there, .value = v_there}, params);
  const auto gradients = pullback({.out = d_there});

  for (const Array* array : {&results.out, &gradients.query, &gradients.key, &gradients.value})
    EXPECT_EQ(array->view().device, kGpu);
  EXPECT_LT(distance(results.out, right.out), 0.005);
  EXPECT_LT(distance(gradients.query, right_gradients.query), 0.01);
  EXPECT_LT(distance(gradients.key, right_gradients.key), 0.01);
  EXPECT_LT(distance(gradients.value, right_gradients.value), 0.01);
}

/// Rule 9, where the rows' own tile has keys that other rows see, and their values are not numbers.
TEST_P(VjpOnDevice, rows_that_see_nothing_are_zero_whatever_others_see) {
  constexpr int64_t kBlind = 200, kKeys = 100;
  const int64_t dim = GetParam();
  const Array q = to_device(normal({1, kBlind + kKeys, 4, dim}, 1), kGpu);
  const Array k = to_device(normal({1, kKeys, 2, dim}, 2), kGpu);
  Array values = normal({1, kKeys, 2, dim}, 3);
  for (int64_t n = 0; n < values.num_elements(); ++n) set(values, n, n % 3 == 0 ? INFINITY : NAN);
  const Array v = to_device(values, kGpu);
  for (const char* kernel : {"", "cuda_sm80"}) {
    const auto results =
        execute<FlashAttention>({.query = q, .key = k, .value = v}, {.causal = true}, {.plan = {.kernel = kernel}});
    const Array out = to_host(results.out), lse = to_host(results.lse);
    for (int64_t n = 0; n < kBlind * 4 * dim; ++n) ASSERT_EQ(get(out, n), 0) << kernel << " " << n;
    for (int64_t head = 0; head < 4; ++head)
      for (int64_t row = 0; row < kBlind; ++row)
        ASSERT_EQ(get(lse, head * (kBlind + kKeys) + row), -INFINITY) << kernel << " " << head << ", " << row;
    EXPECT_TRUE(std::isnan(get(out, out.num_elements() - 1)));
  }
}

}  // namespace
}  // namespace ejk::testing
