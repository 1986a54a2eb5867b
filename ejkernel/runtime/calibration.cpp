#include "ejkernel/runtime/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/core/tensor.h"
#include "ejkernel/core/version.h"
#include "ejkernel/platform/cpu/amx.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cpu/peak.h"
#include "ejkernel/platform/cuda/program.h"
#include "ejkernel/runtime/device_timer.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/timer.h"

namespace ejk {
namespace {

/// Best rate of `work`, which returns how much it did, within `seconds`.
template <class Work>
double best_rate(double seconds, Work&& work) {
  double best = 0;
  const double end = now_seconds() + seconds;
  do {
    const double began = now_seconds();
    const double done = work();
    best = std::max(best, done / (now_seconds() - began));
  } while (now_seconds() < end);
  return best;
}

/// `step(rounds)` computes and returns how much.
double arithmetic_rate(int threads, double seconds, double (*step)(int64_t)) {
  // Tasks of some 0.1 ms, many per thread, so that one that starts late costs little.
  constexpr int64_t kTasksPerThread = 32, kRounds = 256;
  return best_rate(seconds, [&] {
    std::atomic<double> flops = 0;
    cpu::parallel_for(threads * kTasksPerThread, [&](int64_t) { flops.fetch_add(step(kRounds)); });
    return flops.load();
  });
}

double read_rate(int64_t cache_bytes, double seconds) {
  constexpr int64_t kChunk = 1 << 20;
  const int64_t bytes = std::clamp<int64_t>(4 * cache_bytes, 128 << 20, 1 << 30) / kChunk * kChunk;
  const Array buffer(DType::u32, {bytes / 4});
  // Each thread touches the pages that it will about read: that decides where they lie.
  cpu::parallel_for(bytes / kChunk, [&](int64_t i) { std::memset(buffer.as<char>() + i * kChunk, 1, kChunk); });
  return best_rate(seconds, [&] {
    std::atomic<uint32_t> mixed = 0;
    cpu::parallel_for(bytes / kChunk, [&](int64_t i) {
      mixed.fetch_xor(cpu::read_words(buffer.as<uint32_t>() + i * kChunk / 4, kChunk / 4), std::memory_order_relaxed);
    });
    return static_cast<double>(bytes);
  });
}

/// Best rate of `run`, which does `work` on the stream it is given, within `seconds`.
double best_device_rate(Device device, double seconds, double work, std::function<void(int64_t, void*)> run) {
  const Sampler sampler = make_device_sampler(device, std::move(run), /*cold_bytes=*/0);
  double best = 0;
  for (const double end = now_seconds() + seconds; best == 0 || now_seconds() < end;)
    best = std::max(best, work / sampler());
  return best;
}

/// A kernel that only computes: `flops` in each block and round.
struct PeakKernel {
  const char *file, *instance;
  int blocks_per_unit, shared_bytes;
  double flops;
};
// Of 256 threads each: 16 multiply-adds; two products of [64, 64] and [64, 256].
constexpr PeakKernel kFloat32{"ejkernel/platform/cuda/device/peak_float32.cu", "ejk::peak_float32", 8, 0, 256 * 16 * 2};
constexpr PeakKernel kBfloat16{"ejkernel/platform/cuda/device/peak_bfloat16_sm90.cu", "ejk::peak_bfloat16", 1,
                               (2 * 64 + 256) * 128, 2 * 64 * 256 * 64 * 2};

double arithmetic_rate(const DeviceProperties& properties, double seconds, const PeakKernel& kernel) {
  constexpr int kRounds = 4000;
  const auto program = cuda::load_program(
      {.file = kernel.file, .instance = kernel.instance, .shared_bytes = kernel.shared_bytes}, properties);
  const Array sink(DType::f32, {1}, properties.device);
  synchronize(properties.device);
  const auto blocks = static_cast<unsigned>(kernel.blocks_per_unit * properties.num_units);
  const double work = kernel.flops * kRounds * static_cast<double>(blocks);
  return best_device_rate(properties.device, seconds, work, [&](int64_t, void* stream) {
    const RunContext context{.stream = stream, .code = program.get(), .device = &properties};
    cuda::launch(context, {.x = blocks}, {.x = 256}, sink.as<float>(), kRounds);
  });
}

/// Of each of two buffers: far beyond the cache, and not much of what is free, since it is asked for in the middle of a
/// program that has plans for its GPU.
int64_t copied_bytes(const DeviceProperties& properties) {
  constexpr int64_t kLeast = 64 << 20, kMost = 1 << 30;
  constexpr double kShare = 0.125;
  const int64_t wanted = std::clamp<int64_t>(8 * properties.cache_bytes, kLeast, kMost);
  const auto room = static_cast<int64_t>(kShare * free_bytes(properties.device));
  if (room < wanted / 2)
    throw Unsupported(
        fmt::format("calibration: two buffers of {} MiB are needed on {}, and an eighth of its free memory "
                    "is {} MiB; free some",
                    (wanted / 2) >> 20, to_string(properties.device), room >> 20));
  return std::min(wanted, room);
}

double copy_rate(const DeviceProperties& properties, double seconds) {
  const Device device = properties.device;
  const int64_t bytes = copied_bytes(properties);
  const Array source = Array::zeros(DType::u8, {bytes}, device), target(DType::u8, {bytes}, device);
  synchronize(device);
  const auto address = [](const Array& array) { return reinterpret_cast<cuda::abi::CUdeviceptr>(array.data()); };
  return best_device_rate(device, seconds, 2 * static_cast<double>(bytes), [&](int64_t, void* stream) {
    const cuda::CurrentDevice current(device);
    cuda::driver().copy_on_device(address(target), address(source), static_cast<size_t>(bytes),
                                  static_cast<cuda::abi::CUstream>(stream));
  });
}

Peaks measure_gpu(const DeviceProperties& properties, double seconds) {
  Peaks peaks{.num_threads = properties.num_units, .f16_as_bf16 = true};
  peaks.flops_per_second = arithmetic_rate(properties, seconds / 3, kFloat32);
  if (properties.compute_capability == 90)
    peaks.bf16_flops_per_second = arithmetic_rate(properties, seconds / 3, kBfloat16);
  peaks.bytes_per_second = copy_rate(properties, seconds / 3);
  return peaks;
}

// ---- what is known ----

std::mutex known_mutex;
/// By fingerprint.
std::map<std::string, Peaks>& known() {
  static auto* all = new std::map<std::string, Peaks>;  // never destroyed: calls may come while the process exits
  return *all;
}

/// Fingerprints that the store was asked for.
std::set<std::string>& asked() {
  static auto* all = new std::set<std::string>;
  return *all;
}

RecordKey record_key(Device device) {
  return {.environment = device_fingerprint(device), .group = "calibration", .text = "peaks, revision 1"};
}

std::string to_json(const Peaks& peaks) {
  return nlohmann::ordered_json{{"flops_per_second", peaks.flops_per_second},
                                {"bf16_flops_per_second", peaks.bf16_flops_per_second},
                                {"bytes_per_second", peaks.bytes_per_second},
                                {"num_threads", peaks.num_threads},
                                {"f16_as_bf16", peaks.f16_as_bf16}}
      .dump();
}

/// nullopt for what `to_json` did not write.
std::optional<Peaks> peaks_from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto rate = [&](const char* name) {
    const bool is_there = json.is_object() && json.contains(name) && json[name].is_number();
    return is_there ? json[name].get<double>() : -1;
  };
  const Peaks peaks{.flops_per_second = rate("flops_per_second"),
                    .bf16_flops_per_second = rate("bf16_flops_per_second"),
                    .bytes_per_second = rate("bytes_per_second"),
                    .num_threads = static_cast<int>(rate("num_threads")),
                    .f16_as_bf16 = json.is_object() && json.value("f16_as_bf16", nlohmann::json()) == true};
  const bool is_whole = peaks.flops_per_second > 0 && peaks.bf16_flops_per_second >= 0 && peaks.bytes_per_second > 0 &&
                        peaks.num_threads > 0;
  return is_whole ? std::optional(peaks) : std::nullopt;
}

/// As this process knows them, or the store does, which is asked once.
std::optional<Peaks> find_peaks(Device device) {
  const std::string& fingerprint = device_fingerprint(device);
  {
    const std::lock_guard lock(known_mutex);
    if (const auto there = known().find(fingerprint); there != known().end()) return there->second;
    if (!asked().insert(fingerprint).second) return std::nullopt;
  }
  const std::optional<Record> record = store().find(record_key(device));
  const std::optional<Peaks> peaks = record ? peaks_from_json(record->value) : std::nullopt;
  if (!peaks) return std::nullopt;
  const std::lock_guard lock(known_mutex);
  return known().try_emplace(fingerprint, *peaks).first->second;
}

void raise(Peaks& peaks, const Peaks& other) {
  peaks.flops_per_second = std::max(peaks.flops_per_second, other.flops_per_second);
  peaks.bf16_flops_per_second = std::max(peaks.bf16_flops_per_second, other.bf16_flops_per_second);
  peaks.bytes_per_second = std::max(peaks.bytes_per_second, other.bytes_per_second);
}

/// What bounds products of a dtype; 0: nobody measured it.
struct Rate {
  double flops_per_second = 0;
  std::string_view of = {};
};
Rate rate_of(const Peaks& peaks, DType dtype) {
  const bool is_16_bit = dtype == DType::bf16 || dtype == DType::f16, is_on_gpu = peaks.f16_as_bf16;
  const bool is_paired = dtype == DType::bf16 || (dtype == DType::f16 && is_on_gpu);
  if (is_paired && peaks.bf16_flops_per_second > 0) return {peaks.bf16_flops_per_second, "bfloat16"};
  if (dtype == DType::f32 || (is_16_bit && !is_on_gpu)) return {peaks.flops_per_second, "float32"};
  return {};
}

}  // namespace

Peaks measure_peaks(Device device, double seconds) {
  const DeviceProperties& properties = device_properties(device);
  if (device.kind != DeviceKind::cpu) return measure_gpu(properties, seconds);
  Peaks peaks{.num_threads = cpu::num_threads()};
  peaks.flops_per_second = arithmetic_rate(peaks.num_threads, seconds / 3, cpu::multiply_add);
  for (const auto bf16_step : {cpu::bf16_multiply_add, cpu::matrix_multiply_add})
    if (bf16_step(1) > 0)
      peaks.bf16_flops_per_second =
          std::max(peaks.bf16_flops_per_second, arithmetic_rate(peaks.num_threads, seconds / 3, bf16_step));
  peaks.bytes_per_second = read_rate(properties.cache_bytes, seconds / 3);
  return peaks;
}

Peaks known_peaks(Device device) {
  if (const std::optional<Peaks> peaks = find_peaks(device)) return *peaks;
  keep_peaks(device, measure_peaks(device, 0.3));
  return *find_peaks(device);
}

const DeviceProperties& calibrated_properties(Device device) {
  // Never taken back, because references are handed out: one for each rate that was ever known of a device.
  static auto* all = new std::map<std::pair<const DeviceProperties*, double>, DeviceProperties>;
  const DeviceProperties& plain = device_properties(device);
  const std::optional<Peaks> peaks = find_peaks(device);
  if (!peaks) return plain;
  const double speedup = peaks->bf16_flops_per_second / peaks->flops_per_second;
  const std::lock_guard lock(known_mutex);
  const auto [there, is_new] = all->try_emplace({&plain, speedup}, plain);
  if (is_new) there->second.bf16_speedup = speedup;
  return there->second;
}

void keep_peaks(Device device, const Peaks& peaks) {
  Peaks best = peaks;
  const RecordKey key = record_key(device);
  const std::optional<Record> record = store().find(key);
  if (const std::optional<Peaks> before = record ? peaks_from_json(record->value) : std::nullopt) raise(best, *before);
  {
    const std::lock_guard lock(known_mutex);
    const auto [there, is_new] = known().try_emplace(device_fingerprint(device), best);
    if (!is_new) raise(best, there->second), there->second = best;
  }
  store().put(key, {.value = to_json(best), .provenance = fmt::format("measured by ejkernel {}", kVersion)});
}

void forget_peaks() {
  const std::lock_guard lock(known_mutex);
  known().clear();
  asked().clear();
}

Ceiling ceiling_of(const Peaks& peaks, DType dtype, double flops, double bytes) {
  const double memory = bytes / peaks.bytes_per_second;
  if (const Rate rate = rate_of(peaks, dtype); rate.flops_per_second > 0) {
    const double arithmetic = flops / rate.flops_per_second;
    return arithmetic > memory ? Ceiling{arithmetic, rate.of} : Ceiling{memory, "memory"};
  }
  const bool is_as_fast_as_float32 = dtype != DType::f64;
  const bool is_memory = flops == 0 || (is_as_fast_as_float32 && memory >= flops / peaks.flops_per_second);
  return is_memory ? Ceiling{memory, "memory"} : Ceiling{};
}

double roofline_seconds(const Peaks& peaks, DType dtype, double flops, double bytes) {
  const auto seconds = [](double work, double rate) { return rate > 0 ? work / rate : 0; };
  return std::max(seconds(flops, peaks.flops_of(dtype)), seconds(bytes, peaks.bytes_per_second));
}

}  // namespace ejk
