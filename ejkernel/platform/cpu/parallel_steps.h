// Work in steps, each of which needs the one before: what recurrences are made of.
#pragma once

#include <cstdint>

#include "ejkernel/platform/cpu/parallel_for.h"

namespace ejk::cpu {

/// Chains of steps that follow each other, each cut into tasks that do not.
struct Steps {
  int64_t num_chains = 1, num_steps = 0, num_tasks = 1;
};

/// Calls body(chain, step, task, worker) for all of them: tasks of a step begin when those of the step before of their
/// chain are done, and see what they wrote; chains do not wait for each other. One parallel_for: threads are not
/// started anew for each step, and a task waits only for tasks that were handed out before it.
void parallel_steps(const Steps& steps, FunctionRef<void(int64_t chain, int64_t step, int64_t task, int worker)> body,
                    int max_workers);

}  // namespace ejk::cpu
