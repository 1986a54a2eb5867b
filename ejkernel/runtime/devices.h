// The devices of this process and what choices may depend on about them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"

namespace ejk {

/// Read once per device. Throws Unsupported for a device that this machine does not have.
EJK_API const DeviceProperties& device_properties(Device device);

/// Memory that nobody uses at the moment, of the host and of any device.
double free_host_bytes();
double free_bytes(Device device);

/// CUDA devices that the driver offers; 0 without a driver. Never throws.
EJK_API int num_cuda_devices() noexcept;

/// A contiguous copy on a device, and back. Both wait until the copy has been made; a tensor that is on the device is
/// read after what is on `stream` so far. `to_host` takes any strides: gaps are copied along and dropped on the host.
EJK_API Array to_device(const Tensor& host, Device device, void* stream = nullptr);
EJK_API Array to_host(const Tensor& tensor, void* stream = nullptr);

/// The same elements with the same strides, gaps included, in memory of their own on a device: `tensor` views `memory`.
struct Copy {
  Tensor tensor;
  Array memory;
};
EJK_API Copy copy_to(Device device, const Tensor& tensor);

/// Waits for everything on the stream (null: the default stream) of a device; the host's work is always done.
EJK_API void synchronize(Device device, void* stream = nullptr);

/// "cpu|AMD EPYC 9575F|x86_64 avx3_zen4|2": the environment part of every key and record.
EJK_API const std::string& device_fingerprint(Device device);

/// The device that prints so; "cuda" is its first.
EJK_API std::optional<Device> parse_device(std::string_view text);

/// "cpu", "gpu": the short word of the Python library's device_kind.
EJK_API std::string device_kind(Device device);

}  // namespace ejk
