// The C++ API as an installed library's user sees it: call, plan and run, gradient, error.
#include <ejkernel/ejkernel.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

int failures = 0;
void expect(bool ok, const char* what) {
  if (!ok) std::printf("wrong: %s\n", what);
  failures += !ok;
}

ejk::Array filled(ejk::DType dtype, const ejk::Shape& shape, double first, double step) {
  ejk::Array array(dtype, shape);
  for (int64_t i = 0; i < array.num_elements(); ++i) ejk::set(array, i, first + step * static_cast<double>(i));
  return array;
}

/// A scope may last, and calls may come, until the process has ended.
struct UntilTheEnd {
  const ejk::Overlay overlay{"mean_pooling", "cpu", {}};
  ~UntilTheEnd() {
    const ejk::Array row = filled(ejk::DType::f32, {1, 1, 1, 8}, 1, 0);
    const auto [out, lse] = ejk::flash_attention({.query = row, .key = row, .value = row});
    if (ejk::get(out, 0) != 1) std::_Exit(1);
  }
};
const UntilTheEnd until_the_end;

}  // namespace

int main() {
  // Equal logits: out is the mean of the values, here 0 and 1 of two keys; lse is log(2).
  const ejk::Array q = filled(ejk::DType::f32, {1, 3, 2, 8}, 0, 0);
  const ejk::Array k = filled(ejk::DType::f32, {1, 2, 1, 8}, 1, 0);
  const ejk::Array v = filled(ejk::DType::f32, {1, 2, 1, 1}, 0, 1);
  const auto [out, lse] = ejk::flash_attention({.query = q, .key = k, .value = v});
  expect(std::abs(ejk::get(out, 5) - 0.5) < 1e-6, "out");
  expect(std::abs(ejk::get(lse, 0) - std::log(2.0)) < 1e-6, "lse");

  const auto plan = ejk::plan<ejk::FlashAttention>({.query = q, .key = k, .value = v}, {.causal = true});
  auto results = plan.allocate_outputs(/*stream=*/nullptr);
  const ejk::Array workspace(ejk::DType::u8, {static_cast<int64_t>(plan.workspace_bytes())});
  plan.run({.query = q, .key = k, .value = v}, {results.out, results.lse},
           {.workspace = {workspace.as<std::byte>(), plan.workspace_bytes()}});
  expect(ejk::get(results.out, 0) == 0, "the first query sees no key: the diagonal ends bottom right");

  // No fast kernel computes in double: the reference answers, and says so to nobody who did not ask.
  const ejk::Array q64 = ejk::convert(q, ejk::DType::f64), k64 = ejk::convert(k, ejk::DType::f64);
  const ejk::Array v64 = ejk::convert(v, ejk::DType::f64);
  const auto [result, pullback] = ejk::vjp<ejk::FlashAttention>({.query = q64, .key = k64, .value = v64});
  const auto gradients = pullback({.out = filled(ejk::DType::f64, {1, 3, 2, 1}, 1, 0)});
  expect(std::abs(ejk::get(gradients.value, 0) - 3) < 1e-12, "every row and head gives half to each value");

  try {
    ejk::flash_attention({.query = q, .key = filled(ejk::DType::f32, {1, 2, 1, 4}, 0, 0), .value = v});
    expect(false, "another head_dim is refused");
  } catch (const ejk::InvalidArgument& error) {
    expect(std::string(error.what()).find("key head_dim must equal query head_dim 8, got 4") != std::string::npos,
           "the error's text");
  }
  std::printf(failures == 0 ? "all right\n" : "failed\n");
  return failures;
}
