// page_append: stores new keys and values in the pages of their sequences.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "ejkernel/core/operation.h"
#include "ejkernel/ops/flash_attention/attention_params.h"
#include "ejkernel/runtime/api.h"

namespace ejk {

/// Row r of sequence s goes to position t = context_lens[s] - (its number of rows) + r of its cache: slot
/// t mod page_size of page block_tables[s][t div page_size]. In place: nothing else is touched. A write to a page that
/// does not exist, or to a negative position, is dropped. Of two rows for one slot, one is stored.
struct PageAppend {
  static constexpr std::string_view kName = "page_append";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "Stores new keys and values in a paged cache, in place.";
  static constexpr std::string_view kSource = "Kwon et al., PagedAttention (arXiv:2309.06180), section 4.3";

  enum Form { kPageMajor, kHeadMajor };
  static constexpr std::array<std::string_view, 2> kForms = {"page-major", "head-major"};

  struct Inputs {
    Tensor keys = {}, values = {}, key_cache = {}, value_cache = {};
    Tensor context_lens = {}, block_tables = {}, query_start_loc = {};
    Tensor k_scale = {}, v_scale = {};
  };

  struct Params {
    CacheLayout cache_layout = CacheLayout::page_major;
  };

  template <class T>
  struct Out {
    T key_cache = {}, value_cache = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"keys", "float[total_tokens, num_kv_heads, head_dim]", "keys of the new tokens of all sequences"},
        TensorField{"values", "@keys[total_tokens, num_kv_heads, value_dim]", "their values"},
        TensorField{"key_cache",
                    "number[num_pages, page_size, num_kv_heads, head_dim] ; "
                    "number[num_pages, num_kv_heads, page_size, head_dim]",
                    "written in place"},
        TensorField{"value_cache",
                    "@key_cache[num_pages, page_size, num_kv_heads, value_dim] ; "
                    "@key_cache[num_pages, num_kv_heads, page_size, value_dim]",
                    "written in place"},
        TensorField{"context_lens", "int32[num_seqs]", "tokens of each sequence, the new ones included"},
        TensorField{"block_tables", "int32[num_seqs, max_num_pages]", "pages of each sequence, in order"},
        TensorField{"query_start_loc", "int32[num_seqs+1]", "sequence s owns rows [s], [s+1)"},
        TensorField{"k_scale", "float32?[] | float32?[num_kv_heads]",
                    "keys are stored as key / k_scale, rounded to nearest even and saturated"},
        TensorField{"v_scale", "float32?[] | float32?[num_kv_heads]", "of values"}};
  }
  static constexpr auto params() {
    return std::array{param<&Params::cache_layout>("cache_layout", Key::value,
                                                   "page_major: [num_pages, page_size, num_kv_heads, head_dim]; "
                                                   "head_major: [num_pages, num_kv_heads, page_size, head_dim]")};
  }
  static constexpr auto outputs() {
    return std::array{TensorField{"key_cache",
                                  "@key_cache&[num_pages, page_size, num_kv_heads, head_dim] ; "
                                  "@key_cache&[num_pages, num_kv_heads, page_size, head_dim]",
                                  "the cache itself"},
                      TensorField{"value_cache",
                                  "@value_cache&[num_pages, page_size, num_kv_heads, value_dim] ; "
                                  "@value_cache&[num_pages, num_kv_heads, page_size, value_dim]",
                                  "the cache itself"}};
  }

  static int form(const Inputs&, const Params& params) {
    return params.cache_layout == CacheLayout::head_major ? kHeadMajor : kPageMajor;
  }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<PageAppend>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// key_cache, value_cache = page_append(inputs, params); writes inputs.key_cache and inputs.value_cache
inline PageAppend::Results page_append(const PageAppend::Inputs& inputs, const PageAppend::Params& params = {},
                                       const CallOptions& options = {}) {
  return execute<PageAppend>(inputs, params, options);
}

/// The kernels of this folder, for the list in page_append.cpp.
namespace page_append_kernels {
const KernelInfo& cuda_reference();
const KernelInfo& cpu();
const KernelInfo& reference();
}  // namespace page_append_kernels

}  // namespace ejk
