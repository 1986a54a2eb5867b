// Appending on the CPU, for page_append and ragged_page_attention_v3.
#pragma once

#include "ejkernel/ops/page_attention/paged_problem_internal.h"

namespace ejk::attn {

/// Writes the rows of all sequences and returns when all are written. Stores what Append::write stores, row by row in
/// its order where several go to one slot.
void append_cpu(const Append& append, const RunContext& context);

}  // namespace ejk::attn
