// The reference kernel of the operations over a cache: the formula in double, a row after the other.
#pragma once

#include <string_view>

#include "ejkernel/ops/flash_attention/attention_reference_internal.h"
#include "ejkernel/ops/page_attention/paged_problem_internal.h"

namespace ejk::attn {

template <class Op>
struct PagedReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  static size_t workspace_bytes(const Call<Op>& call, const NoConfig&, const DeviceProperties&) {
    return reference_workspace(paged_call(call).problem);
  }
  static void run(const Call<Op>& call, const RunContext& context) {
    const PagedCall paged = paged_call(call);
    run_reference(paged.problem, {.out = paged.out, .lse = paged.lse}, context);
  }
};

}  // namespace ejk::attn
