// Many threads on everything that a process shares between calls (reliability T-36): the cache under memory tier and
// choices, the tiers themselves, overlays, the registry while kernels come and go, the store. Each answer is held
// against a model, so that an update which gets lost is seen; a race is for ThreadSanitizer to see.
#pragma once

#include "ejkernel/runtime/clock_cache.h"
#include "ejkernel/testing/registers.h"
#include "ejkernel/testing/table.h"

namespace ejk::testing {

/// `request.n` operations, shared by the threads; what each thread does follows from the seed, what happens between
/// them does not. `failures` are answers that the model does not allow; `figures` count operations by kind.
RowResult hammer_shared_caches(int num_threads, const RowRequest& request);

/// Registers in a cache, which may have forgotten one but never gives an old value. `Cache` is ClockCache, or a faulty
/// one in a test of this.
template <class Cache>
class CachedRegisters {
 public:
  CachedRegisters(size_t count, size_t capacity, bool may_forget)
      : registers_(count), cache_(capacity), may_forget_(may_forget) {}
  size_t count() const { return registers_.count(); }

  void write(size_t index) {
    cache_.put(index, key(index), registers_.begin_write(index));
    registers_.end_write(index);
  }
  /// Why the answer is wrong; empty when it is not.
  std::string read(size_t index) {
    const int64_t oldest = registers_.oldest(index);
    const auto value = cache_.find(index, key(index));
    if (!value && may_forget_) return "";
    return registers_.fault(index, oldest, value.value_or(0));
  }

 private:
  static std::string key(size_t index) { return "register " + std::to_string(index); }

  Registers registers_;
  Cache cache_;
  bool may_forget_;
};

/// Threads that compute the same value at the same time must all go on with the first one's.
template <class Cache>
class FirstWins {
 public:
  /// `most`: how often `compute` will be called.
  FirstWins(int num_threads, int64_t most)
      : num_threads_(num_threads), first_(static_cast<size_t>(most / num_threads + 1)), cache_(first_.size()) {}

  std::string compute() {
    // As many turns in a row as there are threads have the same key.
    const int64_t turn = turns_.fetch_add(1, std::memory_order_relaxed) + 1;
    const auto index = static_cast<size_t>((turn - 1) / num_threads_);
    const int64_t got = cache_.put_unless(index, std::to_string(index), turn, [](int64_t) { return true; });
    int64_t first = 0;
    if (first_[index].compare_exchange_strong(first, got, std::memory_order_relaxed) || first == got) return "";
    return "key " + std::to_string(index) + " is " + std::to_string(first) + " here and " + std::to_string(got) +
           " there";
  }

 private:
  int num_threads_;
  std::atomic<int64_t> turns_{0};
  std::vector<std::atomic<int64_t>> first_;
  Cache cache_;
};

}  // namespace ejk::testing
