#include "ejkernel/platform/cpu/parallel_steps.h"

#include <hwy/cache_control.h>
#include <array>
#include <atomic>
#include <cassert>
#include <thread>

#include "ejkernel/platform/cpu/layout.h"

namespace ejk::cpu {
namespace {

/// Tasks of a chain that are done. One of step s begins when all of the steps before are, so their number says which.
struct alignas(kAlignment) Done {
  std::atomic<int64_t> tasks{0};

  /// Pauses for about what a short task takes, then lets others have the core: they may be what is waited for.
  void wait_for(int64_t count) const {
    for (int pauses = 0; tasks.load(std::memory_order_acquire) < count; ++pauses) {
      if (pauses < 2000)
        hwy::Pause();
      else
        std::this_thread::yield();
    }
  }
};

constexpr int64_t kMaxChains = 2;

}  // namespace

void parallel_steps(const Steps& steps, FunctionRef<void(int64_t, int64_t, int64_t, int)> body, int max_workers) {
  assert(steps.num_chains <= kMaxChains);
  std::array<Done, kMaxChains> done;
  const auto run = [&](int64_t n, int worker) {
    const int64_t task = n % steps.num_tasks, chain = n / steps.num_tasks % steps.num_chains;
    const int64_t step = n / steps.num_tasks / steps.num_chains;
    Done& of_chain = done[static_cast<size_t>(chain)];
    of_chain.wait_for(step * steps.num_tasks);
    // Counted however it ends: those that wait for it must not wait for ever.
    struct Count {
      Done& done;
      ~Count() { done.tasks.fetch_add(1, std::memory_order_release); }
    } const count{of_chain};
    body(chain, step, task, worker);
  };
  parallel_for(steps.num_steps * steps.num_chains * steps.num_tasks, run, max_workers);
}

}  // namespace ejk::cpu
