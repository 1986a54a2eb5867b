// The only clock of the library: the benchmarks, the calibration and the tuner time with it.
//
// Noise model. A measured time is the true one plus noise that is never negative: interrupts, other processes, page
// faults, the clock rate of the moment. It has a long tail, and it drifts over seconds. Therefore:
// - The mean follows the tail and the minimum follows luck (it falls with the number of samples). We report the median,
//   with the confidence interval that order statistics give: it assumes no distribution, only samples drawn alike.
// - One sample repeats the work until the clock's own resolution and cost, some 25 ns, are lost in it.
// - Drift is what that interval cannot see: neighbouring samples resemble each other. Two candidates are therefore
// never
//   compared across runs, but interleaved in one (A B, B A, …), by the ratio within each pair, where drift cancels.
// - The first runs pay for cold caches, page faults and thread start: they warm up and are not counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "ejkernel/core/export.h"

namespace ejk {

/// Seconds on a monotonic clock; differences are what counts.
EJK_API double now_seconds();

/// The median of some samples and the interval that holds the true median with the confidence asked for (all samples
/// when there are too few to say).
struct Summary {
  double median = 0;
  double low = 0;
  double high = 0;
  int64_t num_samples = 0;
  /// Half the interval, relative to the median: the "±" of the reports.
  double spread() const { return median > 0 ? (high - low) / (2 * median) : 0; }
};
EJK_API Summary summarise(std::span<const double> samples, double confidence = 0.95);

/// One sample: seconds per run, averaged over as many runs as one sample takes.
using Sampler = std::function<double()>;
/// A sampler of `run(i)`, i = 0, 1, 2 …, warmed up. Each sample lasts at least `sample_seconds`.
EJK_API Sampler make_sampler(std::function<void(int64_t)> run, double sample_seconds = 50e-6);

struct MeasureOptions {
  double max_seconds = 1;  ///< stop then at the latest, except for `min_samples`
  double spread = 0.01;    ///< stop when the spread is as small as this
  int64_t min_samples = 9;
  double confidence = 0.95;
};
EJK_API Summary measure(const Sampler& sampler, const MeasureOptions& options = {});
/// Times calls of `fn` on the host: median and interval in milliseconds. `fn` waits for what it starts elsewhere; for a
/// GPU there is make_device_sampler.
EJK_API Summary benchmark(const std::function<void()>& fn, const MeasureOptions& options = {});

/// Interleaved A/B. `ratio` is time of b / time of a: an interval that holds 1 means that no difference was seen.
struct Comparison {
  Summary a, b, ratio;
};
/// Of samples taken in turns: sample n of one and sample n of the other are a pair.
Comparison comparison_of(std::span<const double> a, std::span<const double> b, double confidence);
EJK_API Comparison compare(const Sampler& a, const Sampler& b, const MeasureOptions& options = {.confidence = 0.99});

}  // namespace ejk
