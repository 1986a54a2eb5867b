// Where data lives and work runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ejkernel/core/export.h"

namespace ejk {

enum class DeviceKind : uint8_t { cpu, cuda };
EJK_API std::string_view name(DeviceKind kind);

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int32_t ordinal = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// "cpu" or "cuda:1".
EJK_API std::string to_string(const Device& device);

/// What kernels are written for. Order of preference is the kernel list's, not this one's.
enum class Platform : uint8_t { cuda, cpu, reference, xla, triton, pallas, hip };
inline constexpr int kNumPlatforms = 7;
EJK_API std::string_view name(Platform platform);

/// The kind of device a kernel serves.
enum class Backend : uint8_t { any, cpu, gpu, tpu };
EJK_API std::string_view name(Backend backend);

/// Whether kernels of that backend take tensors of that device.
constexpr bool serves(Backend backend, Device device) {
  return backend == Backend::any || (backend == Backend::cpu) == (device.kind == DeviceKind::cpu);
}

}  // namespace ejk
