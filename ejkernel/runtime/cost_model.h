// What configs would cost, from what a kernel counts and what the device can do: the roofline (Williams, Waterman and
// Patterson, CACM 2009) in whole waves of tasks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/runtime/calibration.h"

namespace ejk {

/// The device's units take tasks in waves; memory moves the bytes meanwhile, and the slower of the two decides. A rate
/// of 0 is not known and costs nothing.
EJK_API double predicted_seconds(const Cost& cost, const DeviceProperties& device, const Peaks& peaks);

/// The heuristic's config; where that needs more shared memory than the device has for a block, the first candidate
/// that does not, if there is one.
ConfigBlock heuristic_that_fits(const KernelInfo& kernel, const CallView& call, const DeviceProperties& device);

/// A candidate that is predicted to take so many times the best one's time is not tried: tasks are not equally long,
/// and no kernel reaches the roofline, so that less says little.
inline constexpr double kHopeless = 2;

/// Why each candidate is not to be tried; empty: it is. The first, the heuristic's, always is, and so are all of a
/// kernel that counts nothing. What code takes of registers, and so how many threads may share a block of it, is known
/// once it is compiled: that is the device's to refuse, at admission.
EJK_API std::vector<std::string> hopeless(const KernelInfo& kernel, const CallView& call,
                                          const DeviceProperties& device, const Peaks& peaks,
                                          std::span<const ConfigBlock> candidates);

}  // namespace ejk
