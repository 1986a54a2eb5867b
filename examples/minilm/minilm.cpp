#include "examples/minilm/minilm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include <ejkernel/core/sequence.h>
#include <ejkernel/core/validate.h>
#include <ejkernel/runtime/devices.h>
#include "examples/minilm/layers.h"

namespace minilm {
namespace {

using ejk::Array;
using ejk::DType;
using ejk::Shape;
using ejk::Tensor;

constexpr int64_t kMinRowsPerThread = 32;  // below, starting a thread costs more than it saves

/// A weight in one of the two dtypes that layers compute in; mapped, not copied, where the file has it in that one.
Array weight_of(const SafeTensors& file, const std::string& name, DType dtype) {
  Array weight = file.tensor(name);
  return weight.dtype() == dtype ? weight : cast(weight, dtype);
}

void check_shape(const std::string& name, const Array& weight, const Shape& expected) {
  if (weight.shape() == expected) return;
  ejk::throw_invalid("minilm", "'" + name + "'", "have the shape " + to_string(expected), to_string(weight.shape()),
                     "is it the right model?");
}

/// A table of embeddings stays as the file has it, since only the rows of the tokens at hand are read.
Array table_of(const SafeTensors& file, const std::string& name, int64_t width) {
  Array table = file.tensor("embeddings." + name + ".weight");
  if (table.dtype() != DType::f32 && table.dtype() != DType::f64) table = cast(table, DType::f32);
  if (table.shape().rank() == 2 && table.shape()[0] > 0 && (width == 0 || table.shape()[1] == width)) return table;
  ejk::throw_invalid("minilm", "'" + name + "'",
                     "have the shape [rows, " + (width ? std::to_string(width) : "width") + "]",
                     to_string(table.shape()), "is it the right model?");
}

/// Rows [begin, end) of a contiguous tensor.
struct Rows {
  int64_t begin, end;
  Tensor operator()(const Tensor& t) const {
    Shape shape = t.shape;
    const int64_t row = begin < end ? t.num_elements() / shape[0] : 0;
    shape[0] = end - begin;
    return {t.as<std::byte>() + begin * row * bits(t.dtype) / 8, t.dtype, shape};
  }
};

/// f(Rows) for all rows, on as many threads as the library uses. Layers treat rows alike, so where they are cut does
/// not matter.
template <class F>
void for_rows(int64_t num_rows, const F& f) {
  const int64_t most = std::max<int64_t>(1, num_rows / kMinRowsPerThread);
  const int64_t num_threads = std::min<int64_t>(ejk::device_properties({}).num_units, most);
  const auto part = [&](int64_t i) { f(Rows{num_rows * i / num_threads, num_rows * (i + 1) / num_threads}); };
  std::vector<std::jthread> threads;
  for (int64_t i = 1; i < num_threads; ++i) threads.emplace_back(part, i);
  part(0);
}

}  // namespace

PackedTokens pack(const std::vector<std::vector<int32_t>>& sentences) {
  PackedTokens packed;
  Array lengths(DType::i32, {static_cast<int64_t>(sentences.size())});
  for (size_t s = 0; s < sentences.size(); ++s) {
    lengths.as<int32_t>()[s] = static_cast<int32_t>(sentences[s].size());
    packed.ids.insert(packed.ids.end(), sentences[s].begin(), sentences[s].end());
  }
  packed.cu_seqlens = ejk::cu_seqlens_from_lengths(lengths);
  return packed;
}

MiniLm::MiniLm(const SafeTensors& file, DType dtype, ejk::PlanOptions options, Architecture architecture)
    : dtype_(dtype), options_(std::move(options)), architecture_(architecture) {
  if (dtype != DType::f32 && dtype != DType::f64)
    ejk::throw_invalid("minilm", "dtype", "be f32 or f64", std::string(name(dtype)), "layers compute in these");
  words_ = table_of(file, "word_embeddings", 0);
  width_ = words_.shape()[1];
  if (width_ == 0 || width_ % architecture.num_heads != 0)
    ejk::throw_invalid("minilm", "width",
                       "be a multiple of the number of heads " + std::to_string(architecture.num_heads),
                       std::to_string(width_), "is it the right model?");
  positions_ = table_of(file, "position_embeddings", width_);
  types_ = table_of(file, "token_type_embeddings", width_);
  embedding_norm_ = affine(file, "embeddings.LayerNorm", {width_});

  for (int64_t i = 0; i < architecture.num_layers; ++i) {
    const std::string layer = "encoder.layer." + std::to_string(i) + ".";
    const int64_t wide = file.tensor(layer + "intermediate.dense.bias").num_elements();
    layers_.push_back({.query = affine(file, layer + "attention.self.query", {width_, width_}),
                       .key = affine(file, layer + "attention.self.key", {width_, width_}),
                       .value = affine(file, layer + "attention.self.value", {width_, width_}),
                       .attended = affine(file, layer + "attention.output.dense", {width_, width_}),
                       .attention_norm = affine(file, layer + "attention.output.LayerNorm", {width_}),
                       .expand = affine(file, layer + "intermediate.dense", {wide, width_}),
                       .contract = affine(file, layer + "output.dense", {width_, wide}),
                       .output_norm = affine(file, layer + "output.LayerNorm", {width_})});
  }
}

MiniLm::Affine MiniLm::affine(const SafeTensors& file, const std::string& name, const Shape& weight) const {
  Affine loaded = {weight_of(file, name + ".weight", dtype_), weight_of(file, name + ".bias", dtype_)};
  check_shape(name + ".weight", loaded.weight, weight);
  check_shape(name + ".bias", loaded.bias, {weight[0]});
  return loaded;
}

Array MiniLm::embed(const PackedTokens& tokens) const {
  check(tokens);
  Array x = embed_tokens(tokens);
  for (const Layer& layer : layers_) x = run_layer(layer, tokens.cu_seqlens, x);
  auto [sentences, chunks] = ejk::mean_pooling({.x = x, .cu_seqlens = tokens.cu_seqlens}, {}, {.plan = options_});
  normalise_length(sentences);
  return sentences;
}

void MiniLm::check(const PackedTokens& tokens) const {
  const int64_t vocabulary = words_.shape()[0], longest = positions_.shape()[0];
  for (int32_t id : tokens.ids)
    if (id < 0 || id >= vocabulary)
      ejk::throw_invalid("minilm", "token", "be below the vocabulary's " + std::to_string(vocabulary),
                         std::to_string(id), "use the model's own vocab.txt");
  const Array lengths = ejk::lengths_from_cu_seqlens(tokens.cu_seqlens);
  for (int64_t s = 0; s < lengths.num_elements(); ++s)
    if (lengths.as<int32_t>()[s] > longest)
      ejk::throw_invalid("minilm", "sentence " + std::to_string(s),
                         "have at most " + std::to_string(longest) + " tokens",
                         std::to_string(lengths.as<int32_t>()[s]), "cut it");
}

Array MiniLm::embed_tokens(const PackedTokens& tokens) const {
  const auto num_tokens = static_cast<int64_t>(tokens.ids.size());
  const Array positions = ejk::position_ids_from_cu_seqlens(tokens.cu_seqlens, num_tokens);
  const std::vector<int32_t> first_type(tokens.ids.size(), 0);  // the second is for pairs of sentences
  Array x = Array::zeros(dtype_, {num_tokens, width_});
  add_rows(words_, tokens.ids, x);
  add_rows(positions_, {positions.as<const int32_t>(), tokens.ids.size()}, x);
  add_rows(types_, first_type, x);
  add_and_normalise(x, {}, embedding_norm_.weight, embedding_norm_.bias, architecture_.layer_norm_epsilon);
  return x;
}

Array MiniLm::run_layer(const Layer& layer, const Tensor& cu_seqlens, const Tensor& x) const {
  const Array query = linear(layer.query, x), key = linear(layer.key, x), value = linear(layer.value, x);
  auto [attended, lse] = ejk::flash_attention(attention_inputs(query, key, value, cu_seqlens), {}, {.plan = options_});
  const Tensor by_token(attended.data(), dtype_, x.shape);  // the heads' outputs side by side

  const auto normalise = [&](const Tensor& y, const Tensor& residual, const Affine& norm) {
    for_rows(y.shape[0], [&](const Rows& rows) {
      add_and_normalise(rows(y), rows(residual), norm.weight, norm.bias, architecture_.layer_norm_epsilon);
    });
  };
  const Array y = linear(layer.attended, by_token);
  normalise(y, x, layer.attention_norm);
  const Array expanded = linear(layer.expand, y);
  for_rows(y.shape()[0], [&](const Rows& rows) { gelu(rows(expanded)); });
  Array contracted = linear(layer.contract, expanded);
  normalise(contracted, y, layer.output_norm);
  return contracted;
}

Array MiniLm::linear(const Affine& layer, const Tensor& x) const {
  auto num_rows = static_cast<int32_t>(x.shape[0]);
  const Tensor one_group(&num_rows, DType::i32, {1});
  return ejk::grouped_matmul(linear_inputs(layer, x, one_group), {.transpose_rhs = true}, {.plan = options_}).out;
}

/// All rows are one group, weights [outputs, inputs] as the file has them, and every row is added to the bias.
ejk::GroupedMatmul::Inputs MiniLm::linear_inputs(const Affine& layer, const Tensor& x, const Tensor& one_group) const {
  const Shape& weight = layer.weight.shape();
  return {.lhs = x,
          .rhs = Tensor(layer.weight.data(), dtype_, {1, weight[0], weight[1]}),
          .group_sizes = one_group,
          .existing_out = Tensor(layer.bias.data(), dtype_, {x.shape[0], weight[0]}, {0, 1})};
}

/// [num_tokens, width] is [num_tokens, num_heads, head_dim] without moving anything.
ejk::FlashAttention::Inputs MiniLm::attention_inputs(const Tensor& query, const Tensor& key, const Tensor& value,
                                                     const Tensor& cu_seqlens) const {
  const Shape by_head = {query.shape[0], architecture_.num_heads, width_ / architecture_.num_heads};
  return {.query = Tensor(query.data, dtype_, by_head),
          .key = Tensor(key.data, dtype_, by_head),
          .value = Tensor(value.data, dtype_, by_head),
          .cu_seqlens_q = cu_seqlens,
          .cu_seqlens_k = cu_seqlens};
}

std::vector<ejk::Explanation> MiniLm::explain(const PackedTokens& tokens) const {
  const Tensor x(nullptr, dtype_, {static_cast<int64_t>(tokens.ids.size()), width_});
  const auto attention = to_array(attention_inputs(x, x, x, tokens.cu_seqlens));
  const auto pooling = to_array(ejk::MeanPooling::Inputs{.x = x, .cu_seqlens = tokens.cu_seqlens});
  const auto explain_linear = [&](const Affine& layer) {
    const Tensor rows(nullptr, dtype_, {x.shape[0], layer.weight.shape()[1]});
    return ejk::explain(ejk::GroupedMatmul::kName,
                        to_array(linear_inputs(layer, rows, Tensor(nullptr, DType::i32, {1}))),
                        ejk::ParamsBlock::of(ejk::GroupedMatmul::Params{.transpose_rhs = true}), options_);
  };
  const Layer& layer = layers_.front();
  return {explain_linear(layer.query),  // key, value and attended are of the same shape
          explain_linear(layer.expand), explain_linear(layer.contract),
          ejk::explain(ejk::FlashAttention::kName, attention, ejk::ParamsBlock::of(ejk::FlashAttention::Params{}),
                       options_),
          ejk::explain(ejk::MeanPooling::kName, pooling, ejk::ParamsBlock::of(ejk::MeanPooling::Params{}), options_)};
}

double MiniLm::operations(const PackedTokens& tokens) const {
  double weights = 0, pairs = 0;  // of a query and a key
  for (const Layer& layer : layers_)
    for (const Affine* linear :
         {&layer.query, &layer.key, &layer.value, &layer.attended, &layer.expand, &layer.contract})
      weights += static_cast<double>(linear->weight.num_elements());
  const Array lengths = ejk::lengths_from_cu_seqlens(tokens.cu_seqlens);
  for (int64_t s = 0; s < lengths.num_elements(); ++s) pairs += std::pow(lengths.as<int32_t>()[s], 2);
  const auto num_tokens = static_cast<double>(tokens.ids.size()), width = static_cast<double>(width_);
  return 2 * weights * num_tokens + 2 * 2 * width * pairs * static_cast<double>(layers_.size());
}

}  // namespace minilm
