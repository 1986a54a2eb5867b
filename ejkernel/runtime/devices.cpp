#include "ejkernel/runtime/devices.h"

#include <fmt/format.h>

#include "ejkernel/core/error.h"
#include "ejkernel/platform/cpu/cpu_info.h"
#include "ejkernel/platform/cpu/parallel_for.h"

namespace ejk {
namespace {

const DeviceProperties& cpu_properties() {
  static const DeviceProperties properties = [] {
    const cpu::CpuInfo& info = cpu::cpu_info();
    return DeviceProperties{.device = {},
                            .product = info.product,
                            .architecture = info.isa,
                            .num_units = cpu::default_num_threads(),
                            .cache_bytes = info.cache_bytes};
  }();
  return properties;
}

}  // namespace

const DeviceProperties& device_properties(Device device) {
  if (device.kind != DeviceKind::cpu)
    throw Unsupported(
        fmt::format("device: this build of the library computes on the CPU only, {} was given; pass host "
                    "tensors",
                    to_string(device)));
  return cpu_properties();
}

const std::string& device_fingerprint(Device device) {
  const DeviceProperties& properties = device_properties(device);
  static const std::string cpu =
      fmt::format("cpu|{}|{}|{}", properties.product, properties.architecture, properties.num_units);
  return cpu;
}

std::string device_kind(Device device) { return device.kind == DeviceKind::cpu ? "cpu" : "gpu"; }

}  // namespace ejk
