// The CUDA driver, loaded when it is first needed, and the devices it has. Everything that reaches a GPU goes through
// this table, so that a test can put a fake driver in its place.
#pragma once

#include <string>
#include <string_view>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/platform/cuda/driver_abi.h"

namespace ejk::cuda {

/// The loaded driver. Throws Unsupported, saying what is missing, on a machine without one.
EJK_API const DriverApi& driver();

/// What was found, for `ejk doctor`; never throws.
struct DriverReport {
  std::string library;  ///< "libcuda.so.1"
  std::string error;    ///< why there is no driver, or why it offers no device; empty when all is well
  int version = 0;      ///< 13000 for CUDA 13.0
};
EJK_API DriverReport driver_report() noexcept;

/// 0 without a driver; never throws.
EJK_API int num_devices() noexcept;
/// The reference stays valid for the process's life. Throws Unsupported for a device that is not here.
EJK_API const DeviceProperties& device_properties(int ordinal);

/// Devices with a number from here on are not used: tables of what is loaded where have this many entries.
inline constexpr int kMaxDevices = 64;

/// Makes a device's primary context the calling thread's, and gives the caller's back at the end. Does nothing when it
/// is the current one already. The context is retained once, for the life of the process.
class EJK_API CurrentDevice {
 public:
  explicit CurrentDevice(int ordinal);
  explicit CurrentDevice(Device device) : CurrentDevice(device.ordinal) {}
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  const DriverApi* pushed_ = nullptr;
};

/// This thread's last 16 calls of the driver, oldest first, one line each.
EJK_API std::string recent_calls();
/// Names what the last call was about in that report: a kernel's instance.
EJK_API void note_subject(std::string_view subject) noexcept;

/// The library's own pool of a device's memory: freed blocks stay in it up to a bound, so that the next call gets them
/// without asking the system.
EJK_API abi::CUmemoryPool memory_pool(int ordinal);

/// For tests: this driver from now on, in place of the machine's (it is copied); null: look for the machine's again.
/// Devices are counted again; what was loaded or allocated under the old one must not be used any more.
EJK_API void use_driver(const DriverApi* fake);
/// Rises with use_driver, so that what was loaded under another driver is not used again.
EJK_API int driver_generation() noexcept;

}  // namespace ejk::cuda
