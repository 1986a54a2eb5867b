#include "ejkernel/ops/ragged_page_attention_v3/ragged_page_attention_v3.h"

#include <array>
#include <string>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/page_attention/paged_problem_internal.h"

namespace ejk {

void RaggedPageAttentionV3::check(const Inputs& in, const Params&, Dims& dims) {
  attn::check_paged({.operation = kName,
                     .key = attn::interleaved_view(in.kv_cache, 0),
                     .value = attn::interleaved_view(in.kv_cache, 1),
                     .k_scale = in.k_scale,
                     .v_scale = in.v_scale,
                     .sinks = in.softmax_aux,
                     .num_q_heads = in.queries.shape[1]});
  const int64_t entries = dims["table_num_pages"], sequences = dims["max_num_seqs"];
  if (sequences == 0 ? entries != 0 : entries % sequences != 0)
    throw_invalid(kName, "block_tables",
                  "have as many pages for each of the " + std::to_string(sequences) + " sequences",
                  std::to_string(entries) + " entries", "pad the tables to one width");
}

Work RaggedPageAttentionV3::work(const Call<RaggedPageAttentionV3>& call) {
  const auto& in = call.inputs;
  // New keys and values are read, and written in the cache's dtype.
  const double written = bytes_of(std::array{in.keys, in.values});
  return attn::paged_work(attn::paged_call(call), bytes_of(std::array{in.queries, call.outputs.out}) +
                                                      written * (1 + static_cast<double>(bits(in.kv_cache.dtype)) /
                                                                         static_cast<double>(bits(in.keys.dtype))));
}

std::span<const KernelInfo* const> RaggedPageAttentionV3::kernels() {
  using namespace ragged_page_attention_v3_kernels;
  static const KernelInfo* const list[] = {&cuda_reference(), &cpu(), &reference()};
  return list;
}

}  // namespace ejk
