#include "ejkernel/runtime/timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

namespace ejk {
namespace {

/// The largest k >= 0 such that fewer than k of n fair coins show heads with probability at most `tail`: then
/// [k-th smallest, k-th largest] misses the median with probability at most 2 * tail.
size_t rank_for(size_t n, double tail) {
  const auto count = static_cast<double>(n);
  double below = 0;  // P(fewer than k heads)
  for (size_t k = 0; k < n / 2; ++k) {
    const auto heads = static_cast<double>(k);
    below += std::exp(std::lgamma(count + 1) - std::lgamma(heads + 1) - std::lgamma(count - heads + 1) -
                      count * std::log(2.0));
    if (below > tail) return k;
  }
  return n / 2;
}

double median_of_sorted(const std::vector<double>& sorted) {
  const size_t n = sorted.size();
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/// Decides when there are samples enough. Looks only each time their number has grown by a tenth: sorting is not free.
class Stopping {
 public:
  explicit Stopping(const MeasureOptions& options)
      : options_(options), began_(now_seconds()), look_at_(options.min_samples) {}

  bool wants_more(const std::vector<double>& samples) {
    const auto n = static_cast<int64_t>(samples.size());
    if (n < options_.min_samples) return true;
    if (now_seconds() - began_ >= options_.max_seconds) return false;
    if (n < look_at_) return true;
    look_at_ = n + n / 10 + 1;
    return summarise(samples, options_.confidence).spread() > options_.spread;
  }

 private:
  const MeasureOptions& options_;
  double began_;
  int64_t look_at_;
};

}  // namespace

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Summary summarise(std::span<const double> samples, double confidence) {
  if (samples.empty()) return {};
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t k = std::max<size_t>(1, rank_for(sorted.size(), (1 - confidence) / 2));
  return {.median = median_of_sorted(sorted),
          .low = sorted[k - 1],
          .high = sorted[sorted.size() - k],
          .num_samples = static_cast<int64_t>(sorted.size())};
}

Sampler make_sampler(std::function<void(int64_t)> run, double sample_seconds) {
  int64_t next = 0;
  // Of one run, by the quickest look: an interruption makes a look longer, never shorter.
  double least = std::numeric_limits<double>::infinity();
  const auto look = [&](int64_t runs) {
    const double began = now_seconds();
    for (int64_t i = 0; i < runs; ++i) run(next++);
    const double seconds = now_seconds() - began;
    least = std::min(least, seconds / static_cast<double>(runs));
    return seconds;
  };
  look(1);
  // Double the runs until they last a tenth of a sample; then their time says how many make a whole one.
  for (int64_t n = 1; look(n) < sample_seconds / 10;) n *= 2;
  constexpr double kTick = 1e-9;  // nothing is shorter
  const auto runs = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(sample_seconds / std::max(least, kTick))));
  return [run = std::move(run), runs, next]() mutable {
    const double began = now_seconds();
    for (int64_t i = 0; i < runs; ++i) run(next++);
    return (now_seconds() - began) / static_cast<double>(runs);
  };
}

Summary measure(const Sampler& sampler, const MeasureOptions& options) {
  Stopping stopping(options);
  std::vector<double> samples;
  while (stopping.wants_more(samples)) samples.push_back(sampler());
  return summarise(samples, options.confidence);
}

Summary benchmark(const std::function<void()>& fn, const MeasureOptions& options) {
  Summary time = measure(make_sampler([&](int64_t) { fn(); }), options);
  for (double* seconds : {&time.median, &time.low, &time.high}) *seconds *= 1e3;
  return time;
}

Comparison comparison_of(std::span<const double> a, std::span<const double> b, double confidence) {
  std::vector<double> ratios;
  for (size_t n = 0; n < a.size(); ++n) ratios.push_back(b[n] / a[n]);
  return {.a = summarise(a, confidence), .b = summarise(b, confidence), .ratio = summarise(ratios, confidence)};
}

Comparison compare(const Sampler& a, const Sampler& b, const MeasureOptions& options) {
  Stopping stopping(options);
  std::vector<double> samples_a, samples_b, ratios;
  while (stopping.wants_more(ratios)) {
    const bool a_first = ratios.size() % 2 == 0;
    if (a_first) samples_a.push_back(a());
    samples_b.push_back(b());
    if (!a_first) samples_a.push_back(a());
    ratios.push_back(samples_b.back() / samples_a.back());
  }
  return comparison_of(samples_a, samples_b, options.confidence);
}

}  // namespace ejk
