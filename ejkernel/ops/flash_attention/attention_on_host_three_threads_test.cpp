// Blocks of three threads for attention_cuda_reference_test.cpp.
#include "ejkernel/ops/flash_attention/attention_on_host_cases.h"

namespace ejk::attention_on_host {

template void forward<3>(const attn::Problem& problem, const ForwardResults& results, const RunContext& context);
template void backward<3>(const attn::Problem& problem, const BackwardInputs& in,
                          const FlashAttentionBackward::Outputs& to, const RunContext& context);

}  // namespace ejk::attention_on_host
