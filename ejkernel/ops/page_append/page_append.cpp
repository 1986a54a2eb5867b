#include "ejkernel/ops/page_append/page_append.h"

#include <array>
#include <string>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/page_attention/paged_problem_internal.h"

namespace ejk {

void PageAppend::check(const Inputs& in, const Params& params, Dims& dims) {
  attn::check_paged({.operation = kName,
                     .key = attn::page_view(in.key_cache, params.cache_layout),
                     .value = attn::page_view(in.value_cache, params.cache_layout),
                     .num_q_heads = dims["num_kv_heads"]});
}

Work PageAppend::work(const Call<PageAppend>& call) {
  const auto& in = call.inputs;
  const double read = bytes_of(std::array{in.keys, in.values});
  return {.bytes =
              read * (1 + static_cast<double>(bits(in.key_cache.dtype)) / static_cast<double>(bits(in.keys.dtype)))};
}

std::span<const KernelInfo* const> PageAppend::kernels() {
  using namespace page_append_kernels;
  static const KernelInfo* const list[] = {&cuda_reference(), &cpu(), &reference()};
  return list;
}

}  // namespace ejk
