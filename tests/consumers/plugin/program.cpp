// Uses what my_plugin.cpp adds; EJKERNEL_PLUGINS names it.
#include <ejkernel/c_api.h>

#include <cmath>
#include <cstdio>

#include "square.h"

namespace {

int failures = 0;
void expect(bool ok, const char* what) {
  if (!ok) std::printf("wrong: %s\n", what);
  failures += !ok;
}

ejk::Array waves(const ejk::Shape& shape, double frequency) {
  ejk::Array array(ejk::DType::f32, shape);
  for (int64_t i = 0; i < array.num_elements(); ++i)
    ejk::set(array, i, std::sin(frequency * static_cast<double>(i + 1)));
  return array;
}

}  // namespace

int main() {
  // The plug-in's kernel answers what it supports, and the library's kernels the rest.
  const ejk::Array q = waves({2, 5, 4, 8}, 0.3), k = waves({2, 7, 2, 8}, 0.7), v = waves({2, 7, 2, 6}, 1.1);
  const ejk::FlashAttention::Inputs inputs = {.query = q, .key = k, .value = v};
  expect(ejk::plan<ejk::FlashAttention>(inputs).kernel().name == "mine", "the plug-in's kernel comes first");
  expect(ejk::plan<ejk::FlashAttention>(inputs, {.causal = true}).kernel().name != "mine", "it declines options");
  const auto mine = ejk::flash_attention(inputs);
  const auto reference = ejk::flash_attention(inputs, {}, {.plan = {.platform = ejk::Platform::reference}});
  for (int64_t i = 0; i < mine.out.num_elements(); ++i)
    expect(std::abs(ejk::get(mine.out, i) - ejk::get(reference.out, i)) < 1e-5, "out");
  for (int64_t i = 0; i < mine.lse.num_elements(); ++i)
    expect(std::abs(ejk::get(mine.lse, i) - ejk::get(reference.lse, i)) < 1e-5, "lse");

  // The plug-in's operation, its gradient, its errors, and its place in the C ABI.
  const ejk::Array x = waves({3, 4}, 0.5);
  const auto [y, pullback] = ejk::vjp<mine::Square>({.x = x}, {.factor = 3});
  const auto gradients = pullback({.y = x});
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    const double value = ejk::get(x, i);
    expect(std::abs(ejk::get(y.y, i) - 3 * value * value) < 1e-6, "y");
    expect(std::abs(ejk::get(gradients.x, i) - 6 * value * value) < 1e-5, "its gradient");
  }
  try {
    ejk::execute<mine::Square>({.x = waves({3}, 1)});
    expect(false, "another rank is refused");
  } catch (const ejk::InvalidArgument&) {
  }
  ejk_params_t* params = nullptr;
  expect(ejk_params_new("square", &params) == EJK_OK, "the C ABI knows it");
  ejk_params_free(params);

  std::printf(failures == 0 ? "all right\n" : "failed\n");
  return failures;
}
