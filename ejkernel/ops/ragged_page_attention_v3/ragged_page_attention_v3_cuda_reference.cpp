// Two launches on one stream: every write, then the attention.
#include "ejkernel/ops/page_attention/paged_cuda_reference_internal.h"

namespace ejk {
namespace {

struct CudaReference {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;

  struct Programs {
    std::shared_ptr<const cuda::Program> append, attend;
  };

  static std::shared_ptr<const void> prepare(const Call<RaggedPageAttentionV3>& call, const DeviceProperties& device) {
    return std::make_shared<const Programs>(
        Programs{.append = attn::prepare_append_cuda_reference(device),
                 .attend = attn::prepare_paged_cuda_reference(call.inputs.queries.dtype, device)});
  }
  static void run(const Call<RaggedPageAttentionV3>& call, const RunContext& context) {
    const auto& programs = *static_cast<const Programs*>(context.code);
    const attn::PagedCall paged = attn::paged_call(call);
    attn::run_append_cuda_reference(*programs.append, {call.inputs.keys, call.inputs.values, paged.problem}, context);
    attn::run_paged_cuda_reference(*programs.attend, paged, context);
  }
};

}  // namespace

const KernelInfo& ragged_page_attention_v3_kernels::cuda_reference() {
  static const KernelInfo kernel = make_kernel<RaggedPageAttentionV3, CudaReference>();
  return kernel;
}

}  // namespace ejk
