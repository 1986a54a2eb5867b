// The devices of this process and what choices may depend on about them.
#pragma once

#include <string>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"

namespace ejk {

/// Read once per device. Throws Unsupported for a device that this machine does not have.
EJK_API const DeviceProperties& device_properties(Device device);

/// "cpu|AMD EPYC 9575F|x86_64 avx3_zen4|2": the environment part of every key and record.
EJK_API const std::string& device_fingerprint(Device device);

/// "cpu", "gpu": the short word of the Python library's device_kind.
EJK_API std::string device_kind(Device device);

}  // namespace ejk
