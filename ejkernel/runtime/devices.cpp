#include "ejkernel/runtime/devices.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "ejkernel/core/environment.h"
#include "ejkernel/platform/cpu/cpu_info.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/platform/cuda/stream.h"

namespace ejk {
namespace {

/// What is best under a limit is not what is best without.
std::string fingerprint_of(const DeviceProperties& properties) {
  const bool is_limited = properties.shared_bytes_per_block == environment::shared_bytes_limit();
  return fmt::format("{}|{}|{}|{}{}", name(properties.device.kind), properties.product, properties.architecture,
                     properties.num_units,
                     is_limited ? fmt::format("|shared {}", properties.shared_bytes_per_block) : "");
}

const DeviceProperties& cpu_properties() {
  static const auto* properties = [] {  // never destroyed: calls may come while the process exits
    const cpu::CpuInfo& info = cpu::cpu_info();
    return new DeviceProperties{.device = {},
                                .product = info.product,
                                .architecture = info.isa,
                                .num_units = cpu::default_num_threads(),
                                .cache_bytes = info.cache_bytes};
  }();
  return *properties;
}

/// Copies between the host and a device and waits.
void copy_and_wait(Device device, void* stream,
                   const std::function<void(const cuda::DriverApi&, cuda::abi::CUstream)>& copy) {
  const cuda::CurrentDevice current(device);
  copy(cuda::driver(), static_cast<cuda::abi::CUstream>(stream));
  cuda::driver().stream_synchronize(static_cast<cuda::abi::CUstream>(stream));
}

}  // namespace

const DeviceProperties& device_properties(Device device) {
  return device.kind == DeviceKind::cpu ? cpu_properties() : cuda::device_properties(device.ordinal);
}

const std::string& device_fingerprint(Device device) {
  static const auto* cpu = new std::string(fingerprint_of(cpu_properties()));
  if (device.kind == DeviceKind::cpu) return *cpu;
  // One per properties, which are never taken back; equal devices share records, not entries here.
  static std::mutex mutex;
  static auto* known = new std::map<const DeviceProperties*, std::string>;
  const DeviceProperties& properties = device_properties(device);
  const std::lock_guard lock(mutex);
  std::string& text = (*known)[&properties];
  if (text.empty()) text = fingerprint_of(properties);
  return text;
}

std::string device_kind(Device device) { return device.kind == DeviceKind::cpu ? "cpu" : "gpu"; }

double free_host_bytes() {
  return static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

int num_cuda_devices() noexcept { return cuda::num_devices(); }

Array to_device(const Tensor& host, Device device, void* stream) {
  if (!host.present()) return {};
  const bool is_dense = host.device.kind == DeviceKind::cpu && is_contiguous(host);
  const Array dense = is_dense ? Array() : contiguous(host);
  const void* from = is_dense ? host.data : dense.data();
  Array copy(host.dtype, host.shape, device, stream);
  const auto bytes = static_cast<size_t>(num_bytes(host.dtype, host.shape));
  if (bytes > 0)
    copy_and_wait(device, stream, [&](const cuda::DriverApi& driver, cuda::abi::CUstream on) {
      driver.copy_to_device(reinterpret_cast<uintptr_t>(copy.data()), from, bytes, on);
    });
  return copy;
}

Array to_host(const Tensor& tensor, void* stream) {
  if (!tensor.present() || tensor.device.kind == DeviceKind::cpu) return contiguous(tensor);
  const auto [lowest, end] = element_range(tensor);
  const auto num_touched = end - lowest;
  Array touched(tensor.dtype, {num_touched});
  const auto bytes = static_cast<size_t>(num_bytes(tensor.dtype, {num_touched}));
  const int64_t skipped = lowest * bits(tensor.dtype) / 8;
  if (bytes > 0)
    copy_and_wait(tensor.device, stream, [&](const cuda::DriverApi& driver, cuda::abi::CUstream on) {
      driver.copy_to_host(touched.data(), reinterpret_cast<uintptr_t>(tensor.as<const std::byte>() + skipped), bytes,
                          on);
    });
  if (is_contiguous(tensor))
    return Array(Tensor(touched.data(), tensor.dtype, tensor.shape), std::make_shared<Array>(touched));
  auto* origin = touched.as<std::byte>() - skipped;
  return contiguous(Tensor(origin, tensor.dtype, tensor.shape, tensor.strides));
}

Copy copy_to(Device device, const Tensor& tensor) {
  Copy copy{.tensor = tensor, .memory = {}};
  if (!tensor.present()) return copy;
  const auto [first, last] = byte_range(tensor);
  const Tensor bytes(tensor.as<char>() + first, DType::u8, {last - first}, tensor.device);
  copy.memory = to_host(bytes);
  if (device.kind != DeviceKind::cpu) copy.memory = to_device(copy.memory, device);
  copy.tensor.device = device;
  copy.tensor.data = copy.memory.as<char>() - first;
  return copy;
}

void synchronize(Device device, void* stream) {
  if (device.kind == DeviceKind::cuda) cuda::synchronize(device, stream);
}

double free_bytes(Device device) {
  if (device.kind == DeviceKind::cpu) return free_host_bytes();
  const cuda::CurrentDevice current(device);
  size_t available = 0, total = 0;
  cuda::driver().memory_info(&available, &total);
  return static_cast<double>(available);
}

std::optional<Device> parse_device(std::string_view text) {
  if (text == "cpu") return Device{};
  if (text == "cuda") return Device{DeviceKind::cuda, 0};
  if (!text.starts_with("cuda:")) return std::nullopt;
  text.remove_prefix(5);
  int32_t ordinal = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, ordinal);
  if (error != std::errc() || stopped != end || ordinal < 0) return std::nullopt;
  return Device{DeviceKind::cuda, ordinal};
}

}  // namespace ejk
