// Times of work on a device that has a clock of its own: the sampler behind the same statistics as the host's
// (timer.h).
#pragma once

#include <functional>

#include "ejkernel/core/device.h"
#include "ejkernel/core/export.h"
#include "ejkernel/runtime/timer.h"

namespace ejk {

/// A sampler of what `run(i, stream)` puts on a stream of a GPU, timed by the device's events, warmed up. Each sample
/// lasts at least `sample_seconds`. With `cold_bytes` above 0 that many bytes are written before each run, so that none
/// finds its data in a cache, and every run is timed by itself, some 2 us of its launch included; otherwise as many as
/// make a sample are timed as one.
EJK_API Sampler make_device_sampler(Device device, std::function<void(int64_t, void*)> run, double cold_bytes,
                                    double sample_seconds = 2e-3);

}  // namespace ejk
