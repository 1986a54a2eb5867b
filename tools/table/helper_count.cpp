// The linker sends every call of parallel_for from another file here first (--wrap in CMakeLists.txt): a counter inside
// it would be part of all kernels, and all that was tuned would count as tuned for others.
#include "tools/table/helper_count.h"

#include "ejkernel/platform/cpu/parallel_for.h"

namespace ejk::testing {
namespace {

thread_local HelperCount* current = nullptr;

/// An address of its own for each thread.
const void* this_thread() {
  thread_local const char here = 0;
  return &here;
}

using Task = cpu::FunctionRef<void(int64_t)>;
using TaskOfWorker = cpu::FunctionRef<void(int64_t, int)>;

}  // namespace

// What the linker calls the functions of the library, and what it calls in their place.
void real(int64_t num_tasks, Task body) asm("__real__ZN3ejk3cpu12parallel_forElNS0_11FunctionRefIFvlEEE");
void real(int64_t num_tasks, TaskOfWorker body,
          int max_workers) asm("__real__ZN3ejk3cpu12parallel_forElNS0_11FunctionRefIFvliEEEi");
void wrapped(int64_t num_tasks, Task body) asm("__wrap__ZN3ejk3cpu12parallel_forElNS0_11FunctionRefIFvlEEE");
void wrapped(int64_t num_tasks, TaskOfWorker body,
             int max_workers) asm("__wrap__ZN3ejk3cpu12parallel_forElNS0_11FunctionRefIFvliEEEi");

void wrapped(int64_t num_tasks, Task body) {
  HelperCount* const count = current;
  if (count == nullptr) return real(num_tasks, body);
  real(num_tasks, [&](int64_t task) { body(task), count->task_done(); });
}

void wrapped(int64_t num_tasks, TaskOfWorker body, int max_workers) {
  HelperCount* const count = current;
  if (count == nullptr) return real(num_tasks, body, max_workers);
  real(
      num_tasks, [&](int64_t task, int worker) { body(task, worker), count->task_done(); }, max_workers);
}

HelperCount::HelperCount() : before_(current), caller_(this_thread()) { current = this; }
HelperCount::~HelperCount() { current = before_; }

void HelperCount::task_done() {
  if (this_thread() != caller_) tasks_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace ejk::testing
