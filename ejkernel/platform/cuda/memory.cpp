// Device memory in the order of a stream, from a pool of the library's own (core/allocator.h).
#include <fmt/format.h>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/error.h"
#include "ejkernel/platform/cuda/driver.h"

namespace ejk {
namespace {

using namespace cuda::abi;  // NOLINT: the driver's names

[[noreturn]] void refuse(Device device, size_t bytes) {
  size_t available = 0, total = 0;
  cuda::driver().memory_info.attempt(&available, &total);
  throw Internal(fmt::format("allocate_device: {} bytes on {} were needed, and {} of its {} are free; free memory or "
                             "make the problem smaller",
                             bytes, to_string(device), available, total),
                 ErrorCode::out_of_memory);
}

}  // namespace

void* allocate_device(Device device, size_t bytes, void* stream) {
  if (bytes == 0) return nullptr;
  const cuda::CurrentDevice current(device);
  CUdeviceptr block = 0;
  const auto& allocate = cuda::driver().allocate;
  const CUresult result =
      allocate.attempt(&block, bytes, cuda::memory_pool(device.ordinal), static_cast<CUstream>(stream));
  if (result == CUDA_ERROR_OUT_OF_MEMORY) refuse(device, bytes);
  cuda::check(result, allocate.symbol);
  return reinterpret_cast<void*>(block);
}

void free_device(Device device, void* block, void* stream) noexcept {
  if (block == nullptr) return;
  try {
    const cuda::CurrentDevice current(device);
    // While the process exits the driver may be gone, and the memory with it.
    cuda::driver().free.attempt(reinterpret_cast<CUdeviceptr>(block), static_cast<CUstream>(stream));
  } catch (const Error&) {  // the context is lost: so is the block
  }
}

void fill_device(Device device, void* block, uint8_t byte, size_t bytes, void* stream) {
  if (bytes == 0) return;
  const cuda::CurrentDevice current(device);
  cuda::driver().fill(reinterpret_cast<CUdeviceptr>(block), byte, bytes, static_cast<CUstream>(stream));
}

}  // namespace ejk
