// What a shared place may answer while it is written: the model that lost updates are counted against.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ejk::testing {

/// Registers that something under test keeps. Each has one thread that writes 1, 2, 3 … into it; every thread reads.
/// Two promises are held against what is read: a write that has ended is seen by every read that begins later, and no
/// write is seen before it begins.
class Registers {
 public:
  explicit Registers(size_t count) : states_(count) {}
  size_t count() const { return states_.size(); }

  /// The value to write now; for the register's own thread.
  int64_t begin_write(size_t index) { return states_[index].begun.fetch_add(1, std::memory_order_relaxed) + 1; }
  void end_write(size_t index) {
    State& state = states_[index];
    state.ended.store(state.begun.load(std::memory_order_relaxed), std::memory_order_release);
  }

  /// The oldest value that a read may give which begins now; 0: nothing was written.
  int64_t oldest(size_t index) const { return states_[index].ended.load(std::memory_order_acquire); }
  /// The newest value that a read may have given which has ended. What is under test brings its own order of a write
  /// and a read that sees it, so that the model needs none here: it would hide what is missing there.
  int64_t newest(size_t index) const { return states_[index].begun.load(std::memory_order_relaxed); }

  /// Why a read since `oldest` may not have given `value`; empty when it may.
  std::string fault(size_t index, int64_t oldest, int64_t value) const {
    if (value < oldest)
      return of(index) + " lost " + std::to_string(oldest) + ": it still gives " + std::to_string(value);
    if (value > newest(index)) return of(index) + " gives " + std::to_string(value) + ", which nobody wrote";
    return "";
  }

 private:
  struct State {
    std::atomic<int64_t> begun{0}, ended{0};
  };
  static std::string of(size_t index) { return "register " + std::to_string(index); }

  std::vector<State> states_;
};

}  // namespace ejk::testing
