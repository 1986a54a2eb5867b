#include "ejkernel/ops/page_attention/paged_problem_internal.h"

namespace ejk {
namespace {

struct Reference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  static void run(const Call<PageAppend>& call, const RunContext& context) {
    const attn::Problem cache = attn::append_problem(call);
    const attn::Append append = {call.inputs.keys, call.inputs.values, cache};
    for (int64_t n = 0; n < cache.num_sequences; ++n) append.write(n, context.status);
  }
};

}  // namespace

const KernelInfo& page_append_kernels::reference() {
  static const KernelInfo kernel = make_kernel<PageAppend, Reference>();
  return kernel;
}

}  // namespace ejk
