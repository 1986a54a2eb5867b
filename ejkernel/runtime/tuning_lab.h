// Candidates tried in this process: planned, run on guarded memory, compared with the heuristic's config, timed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <future>
#include <optional>
#include <semaphore>
#include <span>
#include <string>
#include <vector>

#include "ejkernel/runtime/admission.h"
#include "ejkernel/runtime/plan.h"
#include "ejkernel/runtime/search.h"
#include "ejkernel/runtime/timer.h"

namespace ejk {

/// Whether what the heuristic's config computes is compared with the reference's, where that takes little time.
enum class Heuristic { is_checked, is_trusted };

/// Tries configs of a plan's kernel on the plan's problem. On the host a sample is runs on data that stay in the
/// caches, or a single run where that is long; on a GPU at least 2 ms of runs each of which finds its data in memory.
class PlanLab : public TuningLab {
 public:
  static constexpr double kSampleSeconds = 100e-6;  ///< what one takes on the host, at least
  /// A run that takes so long is a sample by itself. Others come after one that is not timed: what another candidate
  /// left, threads that fell asleep beside it and what lies in caches, is not theirs.
  static constexpr double kLongSeconds = 10e-3;
  /// How long it takes on the host to get a sample of what one run takes that long.
  static double seconds_of_sample(double run) {
    return run >= kLongSeconds ? run : run + std::max(run, kSampleSeconds);
  }
  /// `inputs` have data on the plan's device; the first candidate is the heuristic's config. All three outlive the lab.
  /// Time is up when now_seconds() is `until`.
  PlanLab(const Plan& plan, std::span<const Tensor> inputs, std::span<const ConfigBlock> candidates, double until,
          Heuristic heuristic = Heuristic::is_checked);

  /// Computes what candidates are compared with: the heuristic's results.
  std::string begin() override;
  /// Compiles the candidate in a thread of its own, where there is something to compile.
  void expect(size_t candidate) override;
  std::string admit(size_t candidate) override;
  double sample(size_t candidate) override;
  bool is_out_of_time() override { return now_seconds() >= until_; }
  bool is_broken() override;

 private:
  struct Entry {
    std::optional<Plan> plan;
    int64_t runs = 0;  ///< of one sample, on the host; the first one finds out
  };
  std::string make_plan(size_t candidate);
  std::string made(size_t candidate);
  std::string differs_from_reference();
  void launch(const Entry& entry, void* stream);

  const Plan& plan_;
  std::span<const Tensor> inputs_;
  std::span<const ConfigBlock> candidates_;
  std::vector<Entry> entries_;
  Proving proving_;
  std::vector<Array> expected_;
  Sampler device_sampler_;  ///< of the candidate below
  size_t sampled_ = 0;
  double until_;
  Heuristic heuristic_;
  std::counting_semaphore<> compilers_;             ///< as many at a time as the machine has cores
  std::vector<std::future<std::string>> compiled_;  ///< last: waited for before the rest goes
};

}  // namespace ejk
