// The one seam through which the library gets memory for tensors and workspaces, so that tests can make any allocation
// fail, see what is never written, and catch writes past the ends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ejkernel/core/device.h"
#include "ejkernel/core/export.h"

namespace ejk {

inline constexpr size_t kHostAlignment = 64;

/// `bytes` of host memory aligned to kHostAlignment, not initialised; null for 0 bytes. Throws Internal
/// (out_of_memory). All functions here may be called from any thread.
EJK_API void* allocate_host(size_t bytes);
/// Releases what allocate_host returned; null is fine.
EJK_API void free_host(void* block) noexcept;

/// `bytes` of a device's memory in the order of `stream` (null: the default stream): work on that stream may use them
/// at once, work on others after it waited for this point. Null for 0 bytes. Throws Internal (out_of_memory), and
/// Unsupported for a device that this machine has not. Defined by the device's platform.
EJK_API void* allocate_device(Device device, size_t bytes, void* stream);
/// Releases it after what is on `stream` so far, which must still exist; null is fine.
EJK_API void free_device(Device device, void* block, void* stream) noexcept;
/// Sets every byte of device memory, in the order of `stream`.
EJK_API void fill_device(Device device, void* block, uint8_t byte, size_t bytes, void* stream);

/// What EJKERNEL_DEBUG switches on.
struct AllocationDebug {
  bool guard = false;   ///< bands of a known pattern around each block; free_host aborts when one has changed
  bool poison = false;  ///< 0xff bytes (NaN in every floating dtype) in fresh and in freed blocks
};
/// Applies to blocks allocated from now on; overrules the environment.
EJK_API void set_allocation_debug(AllocationDebug debug);
EJK_API AllocationDebug allocation_debug();

// For tests of what happens when memory runs out.

/// The k-th allocation from now on fails, once (1 = the next one); 0 disarms.
EJK_API void fail_host_allocation(int64_t k);
/// Allocations that are not freed yet.
EJK_API int64_t num_host_blocks();

}  // namespace ejk
