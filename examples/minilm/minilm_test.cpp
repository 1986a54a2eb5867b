// A model small enough to be written down, against the same model as plain loops in double.
#include "examples/minilm/minilm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ejkernel/core/error.h>

namespace minilm {
namespace {

using ejk::DType;
using testing::HasSubstr;

constexpr int kWidth = 8, kHeads = 2, kWide = 12, kWords = 10, kPositions = 7, kLayers = 2;
constexpr Architecture kSmall = {.num_layers = kLayers, .num_heads = kHeads, .layer_norm_epsilon = 1e-12};

using Row = std::vector<double>;
using Rows = std::vector<Row>;

/// Weights by name, each with its shape and elements, made into a safetensors file in memory.
struct Weights {
  struct Weight {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  std::map<std::string, Weight> all;

  Row row(const std::string& name, int64_t i = 0) const {
    const Weight& weight = all.at(name);
    const int64_t columns = weight.shape.back();
    const auto first = weight.values.begin() + i * columns;
    return Row(first, first + columns);
  }

  SafeTensors file() const {
    std::string header = "{", data;
    for (const auto& [name, weight] : all) {
      const size_t begin = data.size();
      data.append(reinterpret_cast<const char*>(weight.values.data()), weight.values.size() * sizeof(float));
      std::string shape;
      for (int64_t extent : weight.shape) shape += (shape.empty() ? "" : ",") + std::to_string(extent);
      header += (header.size() > 1 ? ",\"" : "\"") + name + R"(":{"dtype":"F32","shape":[)" + shape +
                R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
    }
    header += "}";
    const auto bytes = std::make_shared<std::string>(8, '\0');
    const auto length = static_cast<uint64_t>(header.size());
    std::memcpy(bytes->data(), &length, sizeof(length));  // little endian, as all our machines
    *bytes += header + data;
    return SafeTensors("small", std::as_bytes(std::span(*bytes)), bytes);
  }
};

Weights random_weights() {
  Weights weights;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    size_t size = 1;
    for (int64_t extent : shape) size *= static_cast<size_t>(extent);
    std::vector<float> values(size);
    for (float& value : values) value = normal(random);
    weights.all[name] = {std::move(shape), std::move(values)};
  };
  const auto add_affine = [&](const std::string& name, std::vector<int64_t> shape) {
    add(name + ".bias", {shape[0]});
    add(name + ".weight", std::move(shape));
  };
  add("embeddings.word_embeddings.weight", {kWords, kWidth});
  add("embeddings.position_embeddings.weight", {kPositions, kWidth});
  add("embeddings.token_type_embeddings.weight", {2, kWidth});
  add_affine("embeddings.LayerNorm", {kWidth});
  for (int i = 0; i < kLayers; ++i) {
    const std::string layer = "encoder.layer." + std::to_string(i) + ".";
    for (const char* name :
         {"attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"})
      add_affine(layer + name, {kWidth, kWidth});
    add_affine(layer + "attention.output.LayerNorm", {kWidth});
    add_affine(layer + "intermediate.dense", {kWide, kWidth});
    add_affine(layer + "output.dense", {kWidth, kWide});
    add_affine(layer + "output.LayerNorm", {kWidth});
  }
  return weights;
}

// ---- the model once more, one sentence at a time ----

Row linear(const Weights& w, const std::string& name, const Row& x) {
  Row y = w.row(name + ".bias");
  for (size_t o = 0; o < y.size(); ++o)
    for (size_t i = 0; i < x.size(); ++i) y[o] += w.row(name + ".weight", static_cast<int64_t>(o))[i] * x[i];
  return y;
}

Row normalised(const Weights& w, const std::string& name, Row x) {
  double mean = 0, variance = 0;
  for (double v : x) mean += v / kWidth;
  for (double v : x) variance += (v - mean) * (v - mean) / kWidth;
  const Row scale = w.row(name + ".weight"), shift = w.row(name + ".bias");
  for (size_t i = 0; i < x.size(); ++i) x[i] = (x[i] - mean) / std::sqrt(variance + 1e-12) * scale[i] + shift[i];
  return x;
}

Row sum(Row a, const Row& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

/// What one token sees of all tokens' values, head by head.
Row attend(const Row& query, const Rows& keys, const Rows& values) {
  constexpr size_t kHeadDim = kWidth / kHeads;
  Row out(kWidth, 0.0);
  for (size_t h = 0; h < kHeads; ++h) {
    Row probability;
    double total = 0;
    for (const Row& key : keys) {
      double logit = 0;
      for (size_t d = h * kHeadDim; d < (h + 1) * kHeadDim; ++d) logit += query[d] * key[d];
      total += probability.emplace_back(std::exp(logit / std::sqrt(static_cast<double>(kHeadDim))));
    }
    for (size_t k = 0; k < values.size(); ++k)
      for (size_t d = h * kHeadDim; d < (h + 1) * kHeadDim; ++d) out[d] += probability[k] / total * values[k][d];
  }
  return out;
}

void run_layer(const Weights& w, const std::string& layer, Rows& x) {
  Rows queries, keys, values;
  for (const Row& row : x) {
    queries.push_back(linear(w, layer + "attention.self.query", row));
    keys.push_back(linear(w, layer + "attention.self.key", row));
    values.push_back(linear(w, layer + "attention.self.value", row));
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const Row attended = linear(w, layer + "attention.output.dense", attend(queries[i], keys, values));
    const Row y = normalised(w, layer + "attention.output.LayerNorm", sum(attended, x[i]));
    Row wide = linear(w, layer + "intermediate.dense", y);
    for (double& v : wide) v *= 0.5 * (1 + std::erf(v / std::sqrt(2)));
    x[i] = normalised(w, layer + "output.LayerNorm", sum(linear(w, layer + "output.dense", wide), y));
  }
}

Row embedding(const Weights& w, const std::vector<int32_t>& ids) {
  Rows x;
  for (size_t p = 0; p < ids.size(); ++p) {
    const Row token = sum(w.row("embeddings.word_embeddings.weight", ids[p]),
                          w.row("embeddings.position_embeddings.weight", static_cast<int64_t>(p)));
    x.push_back(normalised(w, "embeddings.LayerNorm", sum(token, w.row("embeddings.token_type_embeddings.weight"))));
  }
  for (int i = 0; i < kLayers; ++i) run_layer(w, "encoder.layer." + std::to_string(i) + ".", x);
  Row mean(kWidth, 0.0);
  for (const Row& row : x) mean = sum(mean, row);
  double length = 0;
  for (double v : mean) length += v * v;
  for (double& v : mean) v /= std::sqrt(length);
  return mean;
}

// ---- tests ----

const std::vector<std::vector<int32_t>> kSentences = {{1, 2, 3}, {4}, {5, 6, 7, 8, 9, 0, 1}, {2, 2}};

void expect_near(const ejk::Tensor& embeddings, const Weights& weights, double tolerance) {
  ASSERT_EQ(to_string(embeddings.shape), "[4, 8]");
  for (size_t s = 0; s < kSentences.size(); ++s) {
    const Row expected = embedding(weights, kSentences[s]);
    for (size_t i = 0; i < kWidth; ++i)
      EXPECT_NEAR(ejk::get(embeddings, static_cast<int64_t>(s * kWidth + i)), expected[i], tolerance) << s << ", " << i;
  }
}

TEST(MiniLm, packed_sentences_are_as_each_one_alone) {
  const Weights weights = random_weights();
  expect_near(MiniLm(weights.file(), DType::f64, {}, kSmall).embed(pack(kSentences)), weights, 1e-12);
  expect_near(MiniLm(weights.file(), DType::f32, {}, kSmall).embed(pack(kSentences)), weights, 2e-5);
}

TEST(MiniLm, many_sentences_on_all_threads) {
  const Weights weights = random_weights();
  std::vector<std::vector<int32_t>> many;
  for (int n = 0; n < 60; ++n) many.insert(many.end(), kSentences.begin(), kSentences.end());
  const MiniLm model(weights.file(), DType::f64, {}, kSmall);
  const ejk::Array few = model.embed(pack(kSentences)), all = model.embed(pack(many));
  for (int64_t n = 0; n < all.num_elements(); ++n)
    ASSERT_NEAR(ejk::get(all, n), ejk::get(few, n % few.num_elements()), 1e-13);
}

TEST(MiniLm, an_empty_batch_is_fine) {
  EXPECT_EQ(MiniLm(random_weights().file(), DType::f32, {}, kSmall).embed(pack({})).num_elements(), 0);
}

TEST(MiniLm, explains_every_operation_and_shape) {
  const MiniLm model(random_weights().file(), DType::f64, {.kernel = "reference"}, kSmall);
  const auto explanations = model.explain(pack(kSentences));
  ASSERT_EQ(explanations.size(), 5u);
  const char* const weights[] = {"k=8 num_groups=1 n=8 ", "k=8 num_groups=1 n=12 ", "k=12 num_groups=1 n=8 "};
  for (size_t n = 0; n < 3; ++n) {
    EXPECT_THAT(explanations[n].problem, HasSubstr("grouped_matmul"));
    EXPECT_THAT(explanations[n].problem, HasSubstr(weights[n]));
  }
  EXPECT_THAT(explanations[3].problem, HasSubstr("flash_attention"));
  EXPECT_THAT(explanations[4].problem, HasSubstr("mean_pooling"));
  for (const ejk::Explanation& explanation : explanations) EXPECT_EQ(explanation.kernel, "reference");
}

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const ejk::InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

TEST(MiniLm, tokens_that_the_model_cannot_take) {
  const MiniLm model(random_weights().file(), DType::f32, {}, kSmall);
  const auto error = [&](std::vector<int32_t> ids) { return error_of([&] { model.embed(pack({std::move(ids)})); }); };
  EXPECT_THAT(error({1, 10}), HasSubstr("token must be below the vocabulary's 10, got 10"));
  EXPECT_THAT(error({-1}), HasSubstr("got -1"));
  EXPECT_THAT(error(std::vector<int32_t>(8, 1)), HasSubstr("sentence 0 must have at most 7 tokens, got 8"));
}

TEST(MiniLm, every_missing_and_misshapen_weight_is_named) {
  const Weights good = random_weights();
  const auto load = [](const Weights& weights) {
    return error_of([&] { MiniLm(weights.file(), DType::f32, {}, kSmall); });
  };
  for (const auto& [name, weight] : good.all) {
    Weights missing = good;
    missing.all.erase(name);
    EXPECT_THAT(load(missing), HasSubstr("'" + name + "' must be in small"));
    Weights flat = good;
    flat.all[name].shape = {1, 1, static_cast<int64_t>(weight.values.size())};
    EXPECT_THAT(load(flat), HasSubstr(" must have the shape ")) << name;
    Weights empty = good;
    empty.all[name] = {{0}, {}};
    EXPECT_THAT(load(empty), HasSubstr(" must have the shape ")) << name;
  }
}

TEST(MiniLm, only_dtypes_that_it_computes_in) {
  EXPECT_THAT(error_of([] { MiniLm(random_weights().file(), DType::bf16, {}, kSmall); }),
              HasSubstr("dtype must be f32 or f64, got bf16"));
  EXPECT_THAT(error_of([] { MiniLm(random_weights().file(), DType::f32, {}, {.num_layers = 2, .num_heads = 3}); }),
              HasSubstr("width must be a multiple of the number of heads 3, got 8"));
}

}  // namespace
}  // namespace minilm
