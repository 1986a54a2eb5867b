// The host half of `cuda_reference` for the operations over a cache.
#include <fmt/format.h>

#include <algorithm>

#include "ejkernel/ops/flash_attention/attention_cuda_reference_internal.h"
#include "ejkernel/ops/page_attention/paged_cuda_reference_internal.h"

namespace ejk::attn {
namespace {

/// One block per item; a grid that cannot be that large goes around, and an empty one still looks for faults.
cuda::Dim3 grid(int64_t items) { return {.x = static_cast<unsigned>(std::clamp<int64_t>(items, 1, INT32_MAX))}; }
constexpr cuda::Dim3 kBlock = {.x = cuda::kAttentionThreads};

/// Elements of a row that share a scale: all of them, unless it says otherwise.
uint32_t group_size(const Tensor& scale, int64_t dims) {
  return static_cast<uint32_t>(scale.rank() == 4 ? dims / scale.shape[3] : dims);
}

}  // namespace

cuda::PagedAttentionProblem cuda_paged_problem(const Problem& p, uint32_t* status) {
  cuda::PagedAttentionProblem to{cuda_problem(p, status)};
  to.table = p.pages.table.as<const int>();
  to.table_stride = p.pages.table.present() ? p.pages.table.strides[0] : 0;
  to.num_pages = p.pages.count, to.page_size = p.pages.size;
  to.used_sequences = p.pages.num_sequences.as<const int>();
  to.slot_begin = p.pages.begin.as<const int>(), to.slot_end = p.pages.end.as<const int>();
  to.key_group = group_size(p.k_scale, p.head_dim), to.value_group = group_size(p.v_scale, p.value_dim);
  return to;
}

cuda::PageAppendProblem cuda_append_problem(const Append& append, uint32_t* status) {
  return {.cache = cuda_paged_problem(append.cache, status),
          .keys = tensor_ref(append.keys, -1, 0, 1),
          .values = tensor_ref(append.values, -1, 0, 1)};
}

std::shared_ptr<const cuda::Program> prepare_paged_cuda_reference(DType query, const DeviceProperties& device) {
  return cuda::load_program({.file = "ejkernel/ops/page_attention/page_attention_cuda_reference.cu",
                             .instance = fmt::format("ejk::cuda::paged_attention_forward<{}>",
                                                     cuda::literal(static_cast<cuda::Number>(query))),
                             .may_spill = true},
                            device);
}

void run_paged_cuda_reference(const cuda::Program& program, const PagedCall& call, const RunContext& context) {
  const Problem& p = call.problem;
  cuda::launch(program, context, grid(p.q_rows * p.num_q_heads), kBlock, program.shared_bytes(),
               cuda_paged_problem(p, context.status), cuda_results({.out = call.out, .lse = call.lse}));
}

std::shared_ptr<const cuda::Program> prepare_append_cuda_reference(const DeviceProperties& device) {
  return cuda::load_program({.file = "ejkernel/ops/page_append/page_append_cuda_reference.cu",
                             .instance = "ejk::cuda::page_append",
                             .may_spill = true},
                            device);
}

void run_append_cuda_reference(const cuda::Program& program, const Append& append, const RunContext& context) {
  cuda::launch(program, context, grid(append.cache.q_rows), kBlock, program.shared_bytes(),
               cuda_append_problem(append, context.status));
}

}  // namespace ejk::attn
