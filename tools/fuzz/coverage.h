// Which edges of the instrumented sources ran (compiled with -fsanitize-coverage=trace-pc: every basic block reports
// itself). An edge is a pair of blocks that ran one after the other. One thread.
#pragma once

#include <cstdint>

namespace ejk::fuzz {

/// From here on edges are recorded, of one execution.
void begin_coverage();
/// Ends it. Whether an edge ran, or ran about so often (1, 2, 3, 4, 8, 16, 32, 128 times), as in no execution before.
bool end_coverage();
/// How many edges ran in any execution so far.
int64_t num_edges();
/// As if nothing had run.
void forget_coverage();

}  // namespace ejk::fuzz
