// A kernel for tests of the tuner: its configs take times of their own, and some of them misbehave.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "ejkernel/runtime/timer.h"
#include "ejkernel/testing/toy.h"

namespace ejk::testing {

/// What a config of the kernel below does.
enum class Deed : int {
  nothing,
  wrong,
  unwritten,
  outside,
  throws,
  crashes,
  aborts,
  hangs,
  unsteady,
  greedy,
  exhausts,
  count
};

struct ToyConfig {
  int delay = 4;  ///< in units of 20 us
  int deed = 0;
  static constexpr auto fields() {
    return std::array{config_field<&ToyConfig::delay, 0, 1, 2, 4, 8>("delay", "how long it takes"),
                      config_field<&ToyConfig::deed, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10>("deed", "what it does wrong")};
  }
};

/// y = scale * x + shift, in as much time as the config says.
struct ToyTunable {
  static constexpr std::string_view kName = "tunable";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = ToyConfig;
  static inline std::vector<Config> offered = {};
  static inline Config by_default = {};
  static inline std::atomic<int> num_runs = 0;

  static Config heuristic(const Call<Toy>&, const DeviceProperties&) { return by_default; }
  static std::vector<Config> candidates(const Call<Toy>&, const DeviceProperties&) { return offered; }
  static size_t workspace_bytes(const Call<Toy>&, const Config& config, const DeviceProperties&) {
    return static_cast<Deed>(config.deed) == Deed::greedy ? size_t{1} << 50 : 64;
  }
  static void run(const Call<Toy>& call, const Config& config, const RunContext&) {
    ++num_runs;
    const double until = now_seconds() + 20e-6 * config.delay;
    const Tensor& y = call.outputs.y;
    toy_scale(call.inputs.x, y, call.params.scale, call.params.shift);
    switch (static_cast<Deed>(config.deed)) {
      case Deed::wrong:
        set(y, y.num_elements() - 1, 1e3);
        break;
      case Deed::unwritten:
        y.as<uint32_t>()[0] = 0xffffffff;  // what was there before
        break;
      case Deed::outside:
        y.as<float>()[y.num_elements()] = 0;
        break;
      case Deed::throws:
        throw Internal("the kernel gave up");
      case Deed::crashes:
        std::raise(SIGSEGV);
        break;
      case Deed::aborts:
        std::abort();
      case Deed::hangs:
        for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
      case Deed::unsteady:
        if (num_runs % 4 == 0) set(y, 0, 1e3);  // as a race would: not every time
        break;
      case Deed::exhausts:
        allocate_all();
      default:
        break;
    }
    while (now_seconds() < until) {
    }
  }

  /// What the process's limit allows, for a worker's; throws when there is no more.
  [[noreturn]] static void allocate_all() {
    std::vector<std::unique_ptr<std::byte[]>> taken;
    for (;;) taken.emplace_back(new std::byte[size_t{64} << 20]);  // never touched: address space is what is limited
  }
};

}  // namespace ejk::testing
