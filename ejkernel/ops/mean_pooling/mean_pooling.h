// mean_pooling and its gradient: the mean of each sequence's rows, or of each chunk of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ejkernel/core/operation.h"
#include "ejkernel/runtime/api.h"

namespace ejk {

struct MeanPoolingBackward;

/// out = mean of the rows of x that belong together. Which rows those are is the form: `cu_seqlens` packs sequences,
/// `chunk_size` cuts them. The forms do not combine otherwise: a mask belongs to the batched one alone.
struct MeanPooling {
  static constexpr std::string_view kName = "mean_pooling";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Mean over each sequence's rows, or over each chunk of them: masked, packed, per chunk.";
  static constexpr std::string_view kSource = "Reimers and Gurevych, Sentence-BERT (arXiv:1908.10084), section 3";
  static constexpr std::string_view kGradient = "mean_pooling_backward";
  using Gradient = MeanPoolingBackward;

  enum Form { kBatched, kPacked, kChunked, kPackedChunked };
  static constexpr std::array<std::string_view, 4> kForms = {"batched", "packed", "chunked", "packed chunked"};

  struct Inputs {
    Tensor x = {}, mask = {}, cu_seqlens = {};
  };

  struct Params {
    std::optional<int64_t> chunk_size = {};
  };

  template <class T>
  struct Out {
    T out = {}, chunk_offsets = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"x",
                    "float[batch, num_tokens, dim] ; float[num_tokens, dim] ; "
                    "float[batch, num_tokens, num_heads, dim] ; float[num_tokens, num_heads, dim]",
                    "the rows; 4-d (packed: 3-d) with a chunk_size"},
        TensorField{"mask", "bool?[batch, num_tokens] ; - ; - ; -",
                    "true: the row counts; what other rows hold reaches no result"},
        TensorField{"cu_seqlens", "- ; int32[num_seqs+1] ; - ; int32[num_seqs+1]",
                    "packed: sequence s owns rows [s], [s+1); an end before its start is an empty sequence"}};
  }

  static constexpr auto params() {
    return std::array{param<&Params::chunk_size>(
        "chunk_size", Key::value, "rows per chunk, counted from the start of each sequence; absent: whole sequences",
        at_least(1))};
  }

  static constexpr auto outputs() {
    return std::array{
        TensorField{"out",
                    "@x[batch, dim] ; @x[num_seqs, dim] ; @x[batch, total_chunks, num_heads, dim] ; "
                    "@x[total_chunks, num_heads, dim]",
                    "the means; 0 where there is nothing to average. A last chunk divides by its own count. Packed "
                    "chunks stand in order in ceil(num_tokens / chunk_size) + num_seqs rows; rows past the last are 0"},
        TensorField{"chunk_offsets", "- ; - ; - ; int32[num_seqs+1]",
                    "chunks of sequence s are rows [s], [s+1) of out"}};
  }

  static int form(const Inputs& in, const Params& params) {
    if (params.chunk_size) return in.cu_seqlens.present() ? kPackedChunked : kChunked;
    return in.cu_seqlens.present() ? kPacked : kBatched;
  }
  static std::string_view batch_dim(const Params&) { return "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<MeanPooling>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// Every row that was averaged gets its mean's cotangent divided by the number of rows; every other row gets 0. A row
/// that several sequences claim gets the sum.
struct MeanPoolingBackward {
  static constexpr std::string_view kName = "mean_pooling_backward";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "Gradient of mean_pooling for x.";
  static constexpr std::string_view kSource = MeanPooling::kSource;
  static constexpr auto kForms = MeanPooling::kForms;

  struct Inputs {
    Tensor d_out = {}, mask = {}, cu_seqlens = {};
  };

  struct Params {
    std::optional<int64_t> chunk_size = {};
    std::optional<int64_t> num_tokens = {};
  };

  template <class T>
  struct Out {
    T x = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"d_out",
                    "float[batch, dim] ; float[num_seqs, dim] ; float[batch, total_chunks, num_heads, dim] ; "
                    "float[total_chunks, num_heads, dim]",
                    "cotangent of out; its rows past the last chunk are not read"},
        TensorField{"mask", "bool?[batch, num_tokens] ; - ; - ; -", "the forward's mask"},
        TensorField{"cu_seqlens", "- ; int32[num_seqs+1] ; - ; int32[num_seqs+1]", "the forward's cu_seqlens"}};
  }

  static constexpr auto params() {
    return std::array{
        param<&Params::chunk_size>("chunk_size", Key::value, "the forward's chunk_size", at_least(1)),
        param<&Params::num_tokens>("num_tokens", Key::bucket,
                                   "rows of the forward's x; absent: the mask's, which must be given then",
                                   {.low = 0, .high = 0x1p48, .low_open = false, .high_open = false})};
  }

  static constexpr auto outputs() {
    return std::array{TensorField{"x",
                                  "@d_out[batch, num_tokens, dim] ; @d_out[num_tokens, dim] ; "
                                  "@d_out[batch, num_tokens, num_heads, dim] ; @d_out[num_tokens, num_heads, dim]",
                                  "gradient of x"}};
  }

  static int form(const Inputs& in, const Params& params) {
    return MeanPooling::form({.x = {}, .mask = in.mask, .cu_seqlens = in.cu_seqlens}, {params.chunk_size});
  }
  static std::string_view batch_dim(const Params&) { return "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<MeanPoolingBackward>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out, chunk_offsets = mean_pooling(inputs, params); chunk_offsets only with cu_seqlens and chunk_size
inline MeanPooling::Results mean_pooling(const MeanPooling::Inputs& inputs, const MeanPooling::Params& params = {},
                                         const CallOptions& options = {}) {
  return execute<MeanPooling>(inputs, params, options);
}

/// The kernels of this folder, for the lists in mean_pooling.cpp.
namespace mean_pooling_kernels {
const KernelInfo& cuda();
const KernelInfo& cuda_reference();
const KernelInfo& cpu();
const KernelInfo& reference();
const KernelInfo& backward_cuda();
const KernelInfo& backward_cuda_reference();
const KernelInfo& backward_cpu();
const KernelInfo& backward_reference();
}  // namespace mean_pooling_kernels

}  // namespace ejk
