#include "ejkernel/testing/mirror.h"

#include <cstring>

#include "ejkernel/runtime/devices.h"

namespace ejk::testing {
namespace {

Tensor bytes_of(std::span<std::byte> bytes) {
  return Tensor(bytes.data(), DType::u8, {static_cast<int64_t>(bytes.size())});
}

}  // namespace

Tensor Mirror::up(const Placed& placed) {
  Tensor view = placed.view;
  if (device_.kind == DeviceKind::cpu || !view.present()) return view;
  const std::span<std::byte> whole = placed.buffer->whole();
  auto [twin, is_new] = twins_.try_emplace(placed.buffer);
  if (is_new) twin->second = to_device(bytes_of(whole), device_, stream_);
  view.device = device_;
  view.data = twin->second.as<std::byte>() + (view.as<std::byte>() - whole.data());
  return view;
}

void Mirror::down() {
  for (const auto& [buffer, twin] : twins_) {
    const Array contents = to_host(twin, stream_);
    std::memcpy(buffer->whole().data(), contents.data(), buffer->whole().size());
  }
}

}  // namespace ejk::testing
