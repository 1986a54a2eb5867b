// Counts what goes through operator new on the calling thread, and can make it fail. Only ejkernel_tests has the
// counting operators (they stand in allocation_counter_test.cpp): including this elsewhere does not link.
#pragma once

#include <cstdint>

namespace ejk::testing {

/// Calls of operator new on this thread since it began.
int64_t num_news();

/// The k-th operator new on this thread from now on throws std::bad_alloc, once (1 = the next one); 0 disarms.
void fail_new(int64_t k);

}  // namespace ejk::testing
