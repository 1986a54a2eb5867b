#include "ejkernel/ops/page_attention/paged_cuda_reference_internal.h"

namespace ejk {
namespace {

struct CudaReference {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;

  static std::shared_ptr<const void> prepare(const Call<PageAppend>&, const DeviceProperties& device) {
    return attn::prepare_append_cuda_reference(device);
  }
  static void run(const Call<PageAppend>& call, const RunContext& context) {
    const attn::Problem cache = attn::append_problem(call);
    attn::run_append_cuda_reference(*static_cast<const cuda::Program*>(context.code),
                                    {call.inputs.keys, call.inputs.values, cache}, context);
  }
};

}  // namespace

const KernelInfo& page_append_kernels::cuda_reference() {
  static const KernelInfo kernel = make_kernel<PageAppend, CudaReference>();
  return kernel;
}

}  // namespace ejk
