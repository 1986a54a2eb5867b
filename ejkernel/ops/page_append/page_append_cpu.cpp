#include "ejkernel/ops/page_append/append_cpu_internal.h"

namespace ejk {
namespace {

struct PageAppendCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;

  static void run(const Call<PageAppend>& call, const RunContext& context) {
    const attn::Problem cache = attn::append_problem(call);
    attn::append_cpu({call.inputs.keys, call.inputs.values, cache}, context);
  }
};

}  // namespace

const KernelInfo& page_append_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<PageAppend, PageAppendCpu>();
  return kernel;
}

}  // namespace ejk
