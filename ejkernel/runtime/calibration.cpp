#include "ejkernel/runtime/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

/// A kernel that only computes: `flops` in each block and round. Each block has 256 threads.
struct PeakKernel {
  double Peaks::*rate;
  const char *file, *instance;
  int blocks_per_unit, shared_bytes;
  double flops;
};
constexpr const char *kMultiplyAdd = "ejkernel/platform/cuda/device/peak_multiply_add.cu",
                     *kProducts = "ejkernel/platform/cuda/device/peak_products_sm90.cu";
constexpr int kTileBytes = (2 * 64 + 256) * 128;
// Of each thread, 16 multiply-adds. Of each of two warpgroups, the product of [64, k] and [k, 256], k numbers in 128
// bytes.
constexpr PeakKernel kPeakKernels[] = {
    {&Peaks::flops_per_second, kMultiplyAdd, "ejk::peak_multiply_add<float>", 8, 0, 256 * 16 * 2},
    {&Peaks::f64_flops_per_second, kMultiplyAdd, "ejk::peak_multiply_add<double>", 8, 0, 256 * 16 * 2},
    {&Peaks::bf16_flops_per_second, kProducts, "ejk::peak_products<ejk::Bfloat16>", 1, kTileBytes,
     2 * 64 * 256 * 64 * 2},
    {&Peaks::f8_flops_per_second, kProducts, "ejk::peak_products<ejk::Float8>", 1, kTileBytes, 2 * 64 * 256 * 128 * 2},
    {&Peaks::i8_flops_per_second, kProducts, "ejk::peak_products<ejk::Int8>", 1, kTileBytes, 2 * 64 * 256 * 128 * 2}};
constexpr int kNumPeakRates = static_cast<int>(std::size(kRates));

std::shared_ptr<const cuda::Program> load(const PeakKernel& kernel, const DeviceProperties& properties) {
  return cuda::load_program({.file = kernel.file, .instance = kernel.instance, .shared_bytes = kernel.shared_bytes},
                            properties);
}

double arithmetic_rate(const DeviceProperties& properties, double seconds, const PeakKernel& kernel,
                       const cuda::Program& program) {
  constexpr int kRounds = 4000;
  const Array sink(DType::f64, {1}, properties.device);
  synchronize(properties.device);
  const auto blocks = static_cast<unsigned>(kernel.blocks_per_unit * properties.num_units);
  const double work = kernel.flops * kRounds * static_cast<double>(blocks);
  return best_device_rate(properties.device, seconds, work, [&](int64_t, void* stream) {
    const RunContext context{.stream = stream, .code = &program, .device = &properties};
    cuda::launch(context, {.x = blocks}, {.x = 256}, sink.data(), kRounds);
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
  peaks.bytes_per_second = copy_rate(properties, seconds / kNumPeakRates);
  std::vector<std::pair<const PeakKernel*, std::future<std::shared_ptr<const cuda::Program>>>> programs;
  for (const PeakKernel& kernel : kPeakKernels)
    if (kernel.file != kProducts || properties.compute_capability == 90)
      programs.emplace_back(&kernel, std::async(std::launch::async, load, std::cref(kernel), std::cref(properties)));
  for (auto& [kernel, program] : programs)
    peaks.*kernel->rate = arithmetic_rate(properties, seconds / kNumPeakRates, *kernel, *program.get());
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
  return {.environment = device_fingerprint(device), .group = "calibration", .text = "peaks, revision 2"};
}

std::string to_json(const Peaks& peaks) {
  nlohmann::ordered_json json;
  for (const auto& [name, rate] : kRates) json[name] = peaks.*rate;
  json["num_threads"] = peaks.num_threads;
  json["f16_as_bf16"] = peaks.f16_as_bf16;
  return json.dump();
}

/// nullopt for what `to_json` did not write.
std::optional<Peaks> peaks_from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto number = [&](std::string_view name) {
    const bool is_there = json.is_object() && json.contains(name) && json[name].is_number();
    return is_there ? json[name].get<double>() : -1;
  };
  Peaks peaks{.num_threads = static_cast<int>(number("num_threads")),
              .f16_as_bf16 = json.is_object() && json.value("f16_as_bf16", nlohmann::json()) == true};
  bool is_whole = peaks.num_threads > 0;
  for (const auto& [name, rate] : kRates) {
    peaks.*rate = number(name);
    is_whole = is_whole && peaks.*rate >= 0;
  }
  is_whole = is_whole && peaks.flops_per_second > 0 && peaks.bytes_per_second > 0;
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

}  // namespace

Peaks::Rate Peaks::rate_of(DType dtype) const {
  const bool is_on_gpu = f16_as_bf16;
  const Rate f32{flops_per_second, "float32"};
  const auto or_widened = [&](double rate, std::string_view of, const Rate& wide) {
    return rate > 0 ? Rate{rate, of} : is_on_gpu ? Rate{} : wide;
  };
  const Rate bf16 = or_widened(bf16_flops_per_second, "bfloat16", f32);
  switch (dtype) {
    case DType::f64:
      return or_widened(f64_flops_per_second, "float64", {});
    case DType::f32:
      return f32;
    case DType::f16:
      return is_on_gpu ? bf16 : f32;
    case DType::bf16:
      return bf16;
    case DType::e4m3:
    case DType::e5m2:
      return or_widened(f8_flops_per_second, "float8", bf16);
    case DType::i8:
    case DType::i4:
      return or_widened(i8_flops_per_second, "int8", bf16);
    default:
      return {};
  }
}

double Peaks::flops_of(DType dtype) const {
  const double rate = rate_of(dtype).flops_per_second;
  return rate > 0 ? rate : flops_per_second;
}

void raise_peaks(Peaks& peaks, const Peaks& other) {
  for (const auto& [name, rate] : kRates) peaks.*rate = std::max(peaks.*rate, other.*rate);
}

Peaks measure_peaks(Device device, double seconds) {
  const DeviceProperties& properties = device_properties(device);
  if (device.kind != DeviceKind::cpu) return measure_gpu(properties, seconds);
  Peaks peaks{.num_threads = cpu::num_threads()};
  constexpr std::pair<double Peaks::*, double (*)(int64_t)> kSteps[] = {
      {&Peaks::flops_per_second, cpu::multiply_add},
      {&Peaks::f64_flops_per_second, cpu::f64_multiply_add},
      {&Peaks::bf16_flops_per_second, cpu::bf16_multiply_add},
      {&Peaks::bf16_flops_per_second, cpu::matrix_multiply_add},
      {&Peaks::i8_flops_per_second, cpu::i8_multiply_add},
      {&Peaks::i8_flops_per_second, cpu::i8_matrix_multiply_add}};
  for (const auto& [rate, step] : kSteps)
    if (step(1) > 0)
      peaks.*rate = std::max(peaks.*rate, arithmetic_rate(peaks.num_threads, seconds / kNumPeakRates, step));
  peaks.bytes_per_second = read_rate(properties.cache_bytes, seconds / kNumPeakRates);
  return peaks;
}

Peaks known_peaks(Device device) {
  if (const std::optional<Peaks> peaks = find_peaks(device)) return *peaks;
  keep_peaks(device, measure_peaks(device, 0.5));
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
  if (const std::optional<Peaks> before = record ? peaks_from_json(record->value) : std::nullopt)
    raise_peaks(best, *before);
  {
    const std::lock_guard lock(known_mutex);
    const auto [there, is_new] = known().try_emplace(device_fingerprint(device), best);
    if (!is_new) raise_peaks(best, there->second), there->second = best;
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
  if (const Peaks::Rate rate = peaks.rate_of(dtype); rate.flops_per_second > 0) {
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
