#include "ejkernel/runtime/device_timer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/tensor.h"
#include "ejkernel/platform/cuda/stream.h"

namespace ejk {
namespace {

class DeviceSampler {
 public:
  DeviceSampler(Device device, std::function<void(int64_t, void*)> run, double cold_bytes, double sample_seconds)
      : device_(device), run_(std::move(run)), stream_(device) {
    if (cold_bytes > 0) eviction_ = Array(DType::u8, {static_cast<int64_t>(cold_bytes)}, device, stream_);
    pairs_.emplace_back(device_);
    sample();  // loads, and whatever else is done once
    resize(sample_seconds);
    resize(sample_seconds);  // the first estimate held a single run, at the clock of an idle device
  }

  /// Seconds per run.
  double sample() {
    const double ms = eviction_.present() ? one_by_one() : together();
    return ms / 1e3 / static_cast<double>(runs_);
  }

 private:
  struct Pair {
    explicit Pair(Device device)
        : begin(std::make_unique<cuda::Event>(device)), end(std::make_unique<cuda::Event>(device)) {}
    std::unique_ptr<cuda::Event> begin, end;
    float ms() const { return cuda::elapsed_ms(*begin, *end); }
  };

  void resize(double sample_seconds) {
    runs_ = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(sample_seconds / sample())), 1, kMostRuns);
    while (eviction_.present() && static_cast<int64_t>(pairs_.size()) < runs_) pairs_.emplace_back(device_);
  }

  double one_by_one() {
    for (int64_t n = 0; n < runs_; ++n) {
      const Pair& pair = pairs_[static_cast<size_t>(n)];
      fill_device(device_, eviction_.data(), 0, static_cast<size_t>(eviction_.num_elements()), stream_);
      pair.begin->record(stream_);
      run_(next_++, stream_);
      pair.end->record(stream_);
    }
    double ms = 0;
    for (int64_t n = 0; n < runs_; ++n) ms += pairs_[static_cast<size_t>(n)].ms();
    return ms;
  }

  double together() {
    const Pair& pair = pairs_.front();
    pair.begin->record(stream_);
    for (int64_t n = 0; n < runs_; ++n) run_(next_++, stream_);
    pair.end->record(stream_);
    return pair.ms();
  }

  static constexpr int64_t kMostRuns = 1000;

  Device device_;
  std::function<void(int64_t, void*)> run_;
  cuda::Stream stream_;
  Array eviction_;  // freed before its stream
  std::vector<Pair> pairs_;
  int64_t runs_ = 1, next_ = 0;
};

}  // namespace

Sampler make_device_sampler(Device device, std::function<void(int64_t, void*)> run, double cold_bytes,
                            double sample_seconds) {
  const auto sampler = std::make_shared<DeviceSampler>(device, std::move(run), cold_bytes, sample_seconds);
  return [sampler] { return sampler->sample(); };
}

}  // namespace ejk
