#include "ejkernel/runtime/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>

#include "ejkernel/core/allocator.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/runtime/devices.h"

namespace ejk {
namespace {

constexpr uint8_t kPattern = 0xa5;

/// Calls f(read), where read(data, n) is element n of contiguous memory of that dtype: inline for those that outputs
/// usually have, since there may be many.
template <class F>
auto with_reader(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f([](const void* data, int64_t n) -> double { return static_cast<const float*>(data)[n]; });
    case DType::f16:
      return f([](const void* data, int64_t n) -> double { return to_float(static_cast<const f16_t*>(data)[n]); });
    case DType::bf16:
      return f([](const void* data, int64_t n) -> double { return to_float(static_cast<const bf16_t*>(data)[n]); });
    default:
      return f([dtype](const void* data, int64_t n) { return load_as_double(data, dtype, n); });
  }
}

/// Outputs may be large: their elements are looked at by all threads, so many in a task.
constexpr int64_t kTaskElements = 1 << 16;

/// Calls body(task, first element, past the last).
template <class Body>
void for_parts_of(const Tensor& t, Body&& body) {
  const int64_t count = t.num_elements(), num_tasks = (count + kTaskElements - 1) / kTaskElements;
  cpu::parallel_for(
      num_tasks, [&](int64_t task) { body(task, task * kTaskElements, std::min(count, (task + 1) * kTaskElements)); });
}

/// Root mean square of the finite elements.
double rms_of(const Tensor& t) {
  struct Part {
    double squares = 0;
    int64_t finite = 0;
  };
  std::vector<Part> parts(static_cast<size_t>(t.num_elements() / kTaskElements + 1));
  with_reader(t.dtype, [&](auto read) {
    for_parts_of(t, [&](int64_t task, int64_t first, int64_t last) {
      Part part;
      for (int64_t n = first; n < last; ++n)
        if (const double x = read(t.data, n); std::isfinite(x)) part.squares += x * x, ++part.finite;
      parts[static_cast<size_t>(task)] = part;
    });
  });
  Part all;
  for (const Part& part : parts) all.squares += part.squares, all.finite += part.finite;
  return all.finite > 0 ? std::sqrt(all.squares / static_cast<double>(all.finite)) : 0;
}

/// Numbers below it have fewer digits than others of the dtype.
double smallest_normal(DType dtype) {
  switch (dtype) {
    case DType::e4m3:
      return 0x1p-6;
    case DType::f16:
    case DType::e5m2:
      return 0x1p-14;
    default:
      return 0x1p-126;  // f64 too: most kernels compute in float
  }
}

/// The first element further from `wanted` than `slack` allows; none: -1. NaN equals NaN, and to an infinity nothing is
/// near but itself.
int64_t first_difference(const Tensor& got, const Tensor& wanted, double slack) {
  const double least = slack * std::max(rms_of(wanted), smallest_normal(got.dtype));
  std::vector<int64_t> found(static_cast<size_t>(got.num_elements() / kTaskElements + 1), -1);
  with_reader(got.dtype, [&](auto read) {
    for_parts_of(got, [&](int64_t task, int64_t first, int64_t last) {
      for (int64_t n = first; n < last; ++n) {
        const double x = read(got.data, n), y = read(wanted.data, n);
        if (std::isfinite(y) && std::abs(x - y) <= std::max(slack * std::abs(y), least)) continue;
        if (x != y && !(std::isnan(x) && std::isnan(y))) {
          found[static_cast<size_t>(task)] = n;
          return;
        }
      }
    });
  });
  const auto there = std::find_if(found.begin(), found.end(), [](int64_t n) { return n >= 0; });
  return there == found.end() ? -1 : *there;
}

/// From memory of the device to memory of the same.
void copy_within(Device device, std::byte* to, const std::byte* from, size_t bytes) {
  if (device.kind == DeviceKind::cpu) {
    std::memcpy(to, from, bytes);
    return;
  }
  const cuda::CurrentDevice current(device);
  cuda::driver().copy_on_device(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from), bytes, nullptr);
}

}  // namespace

GuardedMemory::GuardedMemory(size_t bytes, Device device)
    : memory_(DType::u8, {static_cast<int64_t>(bytes + 2 * kBand)}, device), size_(bytes) {
  poison();
}

void GuardedMemory::poison() const {
  const auto fill = [&](std::byte* from, uint8_t byte, size_t bytes) {
    if (memory_.view().device.kind == DeviceKind::cpu)
      std::memset(from, byte, bytes);
    else
      fill_device(memory_.view().device, from, byte, bytes, nullptr);
  };
  fill(data() - kBand, kPattern, kBand);
  fill(data(), 0xff, size_);
  fill(data() + size_, kPattern, kBand);
}

bool GuardedMemory::is_band(const std::byte* from) const {
  const Array band = to_host(Tensor(const_cast<std::byte*>(from), DType::u8, {kBand}, memory_.view().device));
  return std::all_of(band.as<uint8_t>(), band.as<uint8_t>() + kBand, [](uint8_t byte) { return byte == kPattern; });
}

bool GuardedMemory::is_intact() const { return is_band(data() - kBand) && is_band(data() + size_); }

Proving::Proving(const Plan& plan, std::span<const Tensor> inputs)
    : inputs_(inputs.begin(), inputs.end()), device_(plan.device()), coarsest_(DType::f64) {
  for (const Tensor& input : inputs)
    if (input.present() && is_float(input.dtype) && unit_roundoff(input.dtype) > unit_roundoff(coarsest_))
      coarsest_ = input.dtype;
  for (const OutputSpec& spec : plan.outputs()) {
    if (!spec.present) {
      outputs_.emplace_back();
      continue;
    }
    if (spec.aliased_input >= 0) {
      Tensor& input = inputs_[static_cast<size_t>(spec.aliased_input)];
      input = place_written(input);
      outputs_.push_back(input);
      continue;
    }
    memory_.emplace_back(static_cast<size_t>(num_bytes(spec.dtype, spec.shape)), device_);
    outputs_.emplace_back(memory_.back().data(), spec.dtype, spec.shape, device_);
  }
  fetched_.resize(outputs_.size());
}

/// At an address that is aligned as the original's is, since kernels may ask for that.
Tensor Proving::place_written(const Tensor& original) {
  const auto [first, last] = element_range(original);
  const int64_t skipped = first * bits(original.dtype) / 8;
  const auto bytes = static_cast<size_t>(num_bytes(original.dtype, {last - first}));
  const std::byte* begin = original.as<std::byte>() + skipped;
  const size_t skew = reinterpret_cast<uintptr_t>(begin) % kHostAlignment;
  memory_.emplace_back(skew + bytes, device_);
  written_.push_back({original, memory_.back().data() + skew});
  Tensor copy = original;
  copy.data = written_.back().copy - skipped;
  return copy;
}

void Proving::restore_written() const {
  for (const Written& written : written_) {
    const auto [first, last] = element_range(written.original);
    const auto bytes = static_cast<size_t>(num_bytes(written.original.dtype, {last - first}));
    const std::byte* from = written.original.as<std::byte>() + first * bits(written.original.dtype) / 8;
    if (bytes > 0) copy_within(device_, written.copy, from, bytes);
  }
}

std::span<std::byte> Proving::workspace_for(const Plan& plan) {
  const size_t bytes = plan.workspace_bytes();
  if (workspace_.empty() || workspace_.back().size() < bytes) {
    workspace_.clear();
    workspace_.emplace_back(bytes, device_);
  }
  // At the end of the memory, so that the band begins where this plan's share ends.
  const GuardedMemory& memory = workspace_.back();
  const size_t skipped = (memory.size() - bytes) / kHostAlignment * kHostAlignment;
  return {memory.data() + skipped, bytes};
}

std::string Proving::run(const Plan& plan) {
  try {
    const std::span<std::byte> workspace = workspace_for(plan);
    for (const GuardedMemory& memory : memory_) memory.poison();
    workspace_.back().poison();
    restore_written();
    plan.run(inputs_, outputs_, {.workspace = workspace});
    synchronize(device_);
    fetch();
  } catch (const std::exception& error) {
    return fmt::format("it failed: {}", error.what());
  } catch (...) {
    return "it threw what is no std::exception";
  }
  for (const GuardedMemory& memory : memory_)
    if (!memory.is_intact()) return "it wrote outside of an output";
  if (!workspace_.back().is_intact()) return "it wrote outside of its workspace";
  return "";
}

void Proving::fetch() {
  for (size_t o = 0; o < outputs_.size(); ++o)
    if (device_.kind != DeviceKind::cpu || !is_contiguous(outputs_[o])) fetched_[o] = to_host(outputs_[o]);
}

std::vector<Array> Proving::results() const {
  std::vector<Array> copies;
  for (size_t o = 0; o < outputs_.size(); ++o)
    copies.push_back(outputs_[o].present() ? contiguous(readable(o)) : Array());
  return copies;
}

std::string Proving::differs_from(std::span<const Array> expected) const {
  for (size_t o = 0; o < outputs_.size(); ++o) {
    const Tensor got = readable(o), wanted = expected[o];
    if (!got.present()) continue;
    const double storage = std::max(unit_roundoff(got.dtype), unit_roundoff(coarsest_));
    const double slack = kStorageRoundoffs * storage + kSumRoundoffs * unit_roundoff(DType::f32);
    if (const int64_t n = first_difference(got, wanted, is_float(got.dtype) ? slack : 0); n >= 0)
      return fmt::format("it is wrong: element {} of output {} is {:.6g}, not {:.6g}", n, o, get(got, n),
                         get(wanted, n));
  }
  return "";
}

bool Proving::equals(std::span<const Array> others) const {
  for (size_t o = 0; o < outputs_.size(); ++o) {
    const Tensor output = readable(o);
    if (!output.present()) continue;
    const auto bytes = static_cast<size_t>(num_bytes(output.dtype, output.shape));
    if (bytes > 0 && std::memcmp(output.data, others[o].data(), bytes) != 0) return false;
  }
  return true;
}

}  // namespace ejk
