#include "ejkernel/runtime/devices.h"

#include <fmt/format.h>

#include <fstream>
#include <thread>

#include "ejkernel/core/error.h"

namespace ejk {
namespace {

DeviceProperties read_cpu() {
  DeviceProperties cpu;
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.starts_with("model name")) {
      cpu.product = line.substr(line.find(':') + 2);
      break;
    }
  cpu.num_units = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return cpu;
}

const DeviceProperties& cpu_properties() {
  static const DeviceProperties cpu = read_cpu();
  return cpu;
}

}  // namespace

const DeviceProperties& device_properties(Device device) {
  if (device.kind != DeviceKind::cpu)
    throw Unsupported(fmt::format("{}: this build has no kernels for it; use host tensors", to_string(device)));
  return cpu_properties();
}

const std::string& device_fingerprint(Device device) {
  static const std::string cpu = [] {
    const DeviceProperties& p = cpu_properties();
    return fmt::format("cpu|{}|{}|{}", p.product, p.architecture, p.num_units);
  }();
  device_properties(device);
  return cpu;
}

std::string device_kind(Device device) { return device.kind == DeviceKind::cpu ? "cpu" : "gpu"; }

}  // namespace ejk
