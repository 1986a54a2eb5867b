// What a cache of codes costs: attention over it against attention over the numbers it was made of, both in float64
// (operations §16). The figures are those of docs/kernels/paged_attention_cpu.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ejkernel/ops/page_attention/page_attention.h"
#include "ejkernel/testing/random.h"

namespace ejk::testing {
namespace {

constexpr int64_t kSequences = 2, kTokens = 512, kPageSize = 16, kQueryHeads = 4, kHeads = 2, kDim = 128;
constexpr int64_t kPages = kSequences * kTokens / kPageSize;

/// Keys or values. With outliers: two channels of each head are 10 times as large, as those of trained models are, and
/// one number in 2000 is another 5 times as large.
Array numbers(uint64_t seed, bool outliers) {
  Random random(seed);
  Array a(DType::f64, {kPages, kPageSize, kHeads, kDim});
  for (int64_t n = 0; n < a.num_elements(); ++n) {
    const int64_t channel = n % kDim;
    const bool is_large = outliers && (channel == 17 || channel == 90);
    const bool is_rare = outliers && random.chance(1.0 / 2000);
    set(a, n, random.normal() * (is_large ? 10 : 1) * (is_rare ? 5 : 1));
  }
  return a;
}

double largest_code(DType dtype) {
  switch (dtype) {
    case DType::i8:
      return 127;
    case DType::i4:
      return 7;
    case DType::e4m3:
      return 448;
    default:
      return 57344;
  }
}

/// How many elements share a scale.
enum class Shared : uint8_t { everywhere, head, slot, group };

struct Codes {
  Array codes, scale;
};

/// The largest magnitude of those that share a scale becomes the largest code.
Codes quantised(const Array& from, DType dtype, Shared shared, int64_t group) {
  if (bits(dtype) > 8) return {convert(from, dtype), Array()};
  const int64_t groups = shared == Shared::group ? kDim / group : 1;
  Shape shape;
  if (shared == Shared::head) shape = {kHeads};
  if (shared == Shared::slot || shared == Shared::group) shape = {kPages, kPageSize, kHeads, groups};
  Codes to{Array(dtype, from.shape()), Array::zeros(DType::f32, shape)};
  auto scale_of = [&](int64_t n) {
    if (shared == Shared::everywhere) return int64_t{0};
    return shared == Shared::head ? n / kDim % kHeads : n / kDim * groups + n % kDim / (kDim / groups);
  };
  float* scales = to.scale.as<float>();
  for (int64_t n = 0; n < from.num_elements(); ++n) {
    const auto needed = static_cast<float>(std::abs(get(from, n)) / largest_code(dtype));
    scales[scale_of(n)] = std::max(scales[scale_of(n)], needed);
  }
  for (int64_t n = 0; n < from.num_elements(); ++n)
    set(to.codes, n, get(from, n) / static_cast<double>(scales[scale_of(n)]));
  return to;
}

PageAttention::Results attend(const Codes& keys, const Codes& values) {
  Random random(7);
  const Array query(DType::f64, {kSequences, kQueryHeads, kDim}), lens(DType::i32, {kSequences}),
      tables(DType::i32, {kSequences, kTokens / kPageSize});
  for (int64_t n = 0; n < query.num_elements(); ++n) set(query, n, random.normal());
  for (int64_t n = 0; n < kSequences; ++n) set(lens, n, kTokens);
  for (int64_t n = 0; n < kPages; ++n) set(tables, n, static_cast<double>(n));
  PageAttention::Inputs in = {.query = query,
                              .key_cache = keys.codes,
                              .value_cache = values.codes,
                              .context_lens = lens,
                              .block_tables = tables};
  if (keys.scale.present()) in.k_scale = keys.scale, in.v_scale = values.scale;
  return page_attention(in, {}, {.plan = {.kernel = "reference"}});
}

/// ||x - exact|| / ||exact||.
double relative_error(const Tensor& x, const Tensor& exact) {
  double error = 0, size = 0;
  for (int64_t n = 0; n < x.num_elements(); ++n) {
    error += std::pow(get(x, n) - get(exact, n), 2);
    size += std::pow(get(exact, n), 2);
  }
  return std::sqrt(error / size);
}

struct Row {
  std::string name;
  DType dtype;
  Shared shared;
  int64_t group;
  double ordinary, outliers;  ///< relative errors of out, in per cent
};

TEST(QuantisedCaches, cost_what_the_documentation_says) {
  const std::vector<Row> rows = {
      {"bf16", DType::bf16, Shared::everywhere, 0, 0.23, 0.39},
      {"int8, one scale", DType::i8, Shared::everywhere, 0, 1.49, 20.1},
      {"int8, per head", DType::i8, Shared::head, 0, 1.39, 19.6},
      {"int8, per slot and head", DType::i8, Shared::slot, 0, 0.89, 6.2},
      {"int8, groups of 32", DType::i8, Shared::group, 32, 0.74, 1.68},
      {"e4m3, one scale", DType::e4m3, Shared::everywhere, 0, 3.5, 9.86},
      {"e4m3, groups of 32", DType::e4m3, Shared::group, 32, 3.23, 2.8},
      {"e5m2, one scale", DType::e5m2, Shared::everywhere, 0, 7.65, 9.44},
      {"int4, one scale", DType::i4, Shared::everywhere, 0, 26.4, 97.5},
      {"int4, per slot and head", DType::i4, Shared::slot, 0, 16.9, 36.3},
      {"int4, groups of 32", DType::i4, Shared::group, 32, 13.6, 27.8},
      {"int4, groups of 16", DType::i4, Shared::group, 16, 11.5, 18.5},
  };
  for (const bool outliers : {false, true}) {
    const Array keys = numbers(1, outliers), values = numbers(2, outliers);
    const PageAttention::Results exact = attend({keys, {}}, {values, {}});
    for (const Row& row : rows) {
      const PageAttention::Results got = attend(quantised(keys, row.dtype, row.shared, row.group),
                                                quantised(values, row.dtype, row.shared, row.group));
      const double per_cent = 100 * relative_error(got.out, exact.out), stated = outliers ? row.outliers : row.ordinary;
      EXPECT_NEAR(per_cent, stated, 0.1 * stated) << row.name << (outliers ? ", with outliers" : "");
    }
  }
}

}  // namespace
}  // namespace ejk::testing
