#include "ejkernel/core/device.h"

#include <array>

#include "ejkernel/core/enum_name.h"

namespace ejk {
namespace {

constexpr std::array<std::string_view, 2> kDeviceKinds = {"cpu", "cuda"};
constexpr std::array<std::string_view, kNumPlatforms> kPlatforms = {"cuda",   "cpu",    "reference", "xla",
                                                                    "triton", "pallas", "hip"};
constexpr std::array<std::string_view, 4> kBackends = {"any", "cpu", "gpu", "tpu"};

}  // namespace

std::string_view name(DeviceKind kind) { return name_in(kDeviceKinds, kind); }
std::string_view name(Platform platform) { return name_in(kPlatforms, platform); }
std::string_view name(Backend backend) { return name_in(kBackends, backend); }

std::string to_string(const Device& device) {
  // There is one host, whose ordinal is 0: another one is a mistake to be seen.
  if (device == Device{}) return "cpu";
  return std::string(name(device.kind)) + ":" + std::to_string(device.ordinal);
}

}  // namespace ejk
