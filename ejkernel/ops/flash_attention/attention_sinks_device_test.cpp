// Sinks that are no numbers, on every kernel of a GPU: rows that see keys take part in them, rows that see none are 0.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "ejkernel/core/error.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/synthetic.h"
#include "ejkernel/testing/values.h"

namespace ejk::testing {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};

class SinksOnDevice : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kernels, SinksOnDevice, ::testing::Values("cuda_sm80", "cuda_reference"),
                         [](const auto& info) { return info.param; });

TEST_P(SinksOnDevice, that_are_no_numbers_leave_rows_that_see_nothing_zero) {
  constexpr int64_t kRows = 4, kKeys = 2, kDim = 64;  // aligned at the bottom right: rows 0 and 1 see nothing
  Array query(DType::bf16, {1, kRows, 1, kDim}), key(DType::bf16, {1, kKeys, 1, kDim});
  fill_normal(query, 1), fill_normal(key, 2);
  const Array q = to_device(query, kGpu), k = to_device(key, kGpu);
  for (const double sink : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const Array sinks = to_device(f32({1, 1}, {sink}), kGpu);
    const auto results =
        flash_attention({.query = q, .key = k, .value = k, .softmax_aux = sinks},
                        {.causal = true, .causal_align = CausalAlign::bottom_right}, {.plan = {.kernel = GetParam()}});
    const Array out = to_host(results.out), lse = to_host(results.lse);
    for (int64_t n = 0; n < 2 * kDim; ++n) EXPECT_EQ(get(out, n), 0) << "sink " << sink << ", element " << n;
    for (int64_t row = 0; row < kRows; ++row) EXPECT_FALSE(std::isfinite(get(lse, row))) << "sink " << sink;
    if (std::isnan(sink)) {
      EXPECT_TRUE(std::isnan(get(out, 3 * kDim))) << "a row that sees keys";
    }
  }
}

}  // namespace
}  // namespace ejk::testing
