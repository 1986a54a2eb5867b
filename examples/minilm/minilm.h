// all-MiniLM-L6-v2, a BERT encoder that makes sentences into vectors: sentences of like meaning point the same way.
//
//   embeddings -> 6 x (attention -> add, normalise -> feed forward -> add, normalise) -> mean over tokens -> length 1
//
// Sentences of different lengths stand one after another in one packed batch. Nothing is padded: attention and pooling
// are told where each sentence begins (cu_seqlens), and every other layer treats all tokens alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ejkernel/ejkernel.h>
#include <ejkernel/runtime/explain.h>
#include "examples/minilm/safetensors.h"

namespace minilm {

/// What the model's config.json says. Everything else follows from the shapes of the weights.
struct Architecture {
  int64_t num_layers = 6;
  int64_t num_heads = 12;
  double layer_norm_epsilon = 1e-12;
};

/// Sentences one after another: sentence s is ids [cu_seqlens[s], cu_seqlens[s+1]).
struct PackedTokens {
  std::vector<int32_t> ids;
  ejk::Array cu_seqlens;  // int32[num_sentences + 1]
};
PackedTokens pack(const std::vector<std::vector<int32_t>>& sentences);

class MiniLm {
 public:
  /// Weights of dtype `dtype` stay in the mapped file, others are converted. `options` go to every call of the library.
  /// Throws ejk::InvalidArgument when a weight is missing or has another shape than the model needs.
  MiniLm(const SafeTensors& file, ejk::DType dtype, ejk::PlanOptions options = {}, Architecture architecture = {});

  /// One vector of length 1 per sentence, [num_sentences, width]. Throws ejk::InvalidArgument for a token that is not
  /// in the vocabulary and for a sentence that is longer than the model has positions.
  ejk::Array embed(const PackedTokens& tokens) const;

  /// Which kernels and configs the calls of `embed(tokens)` get, and why: one explanation per operation and shape.
  std::vector<ejk::Explanation> explain(const PackedTokens& tokens) const;

  /// What `embed(tokens)` has to compute in its linear layers and its attention; a multiply-add is two operations.
  double operations(const PackedTokens& tokens) const;

  int64_t width() const { return width_; }
  int64_t vocabulary_size() const { return words_.shape()[0]; }
  int64_t num_heads() const { return architecture_.num_heads; }
  int64_t num_layers() const { return architecture_.num_layers; }

 private:
  struct Affine {  // of a linear layer or a normalisation
    ejk::Array weight, bias;
  };
  struct Layer {
    Affine query, key, value, attended, attention_norm, expand, contract, output_norm;
  };

  Affine affine(const SafeTensors& file, const std::string& name, const ejk::Shape& weight) const;
  ejk::FlashAttention::Inputs attention_inputs(const ejk::Tensor& query, const ejk::Tensor& key,
                                               const ejk::Tensor& value, const ejk::Tensor& cu_seqlens) const;
  void check(const PackedTokens& tokens) const;
  ejk::Array embed_tokens(const PackedTokens& tokens) const;
  ejk::Array run_layer(const Layer& layer, const ejk::Tensor& cu_seqlens, const ejk::Tensor& x) const;
  ejk::Array linear(const Affine& layer, const ejk::Tensor& x) const;
  ejk::GroupedMatmul::Inputs linear_inputs(const Affine& layer, const ejk::Tensor& x,
                                           const ejk::Tensor& one_group) const;

  ejk::DType dtype_;
  ejk::PlanOptions options_;
  Architecture architecture_;
  int64_t width_ = 0;
  ejk::Array words_, positions_, types_;  // f32 or f64, each as the file has it
  Affine embedding_norm_;
  std::vector<Layer> layers_;
};

}  // namespace minilm
