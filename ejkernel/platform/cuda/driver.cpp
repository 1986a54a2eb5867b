#include "ejkernel/platform/cuda/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/platform/cuda/symbols.h"

namespace ejk::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr int kOldestDriver = 12030;
/// Freed memory that the pool keeps: the outputs and workspaces of a few large calls.
constexpr uint64_t kPoolKeepsBytes = uint64_t{512} << 20;

// ---- the table ----

struct DeviceState {
  DeviceProperties properties;
  std::atomic<abi::CUcontext> context{nullptr};
  std::atomic<abi::CUmemoryPool> pool{nullptr};
};

/// A driver and its devices. Published whole and never destroyed: calls may come while the process exits.
struct Loaded {
  DriverApi api = {};
  DriverReport report = {};
  std::vector<std::unique_ptr<DeviceState>> devices = {};
  std::mutex mutex = {};  ///< of contexts and pools that are being made
};

std::mutex loading;
std::atomic<Loaded*> loaded{nullptr};
std::atomic<int> generation{0};

/// Empty, or why there is no driver.
std::string load_table(DriverApi& api) {
  void* library = dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return loader_error();
  for (const std::string_view missing : load_symbols(library, api))
    // Since CUDA 12.4; before, a kernel's first launch loads it.
    if (missing != api.function_load.symbol)
      return fmt::format("{} lacks {}: the driver is too old", kLibrary, missing);
  return {};
}

std::string code_name(const DriverApi& api, abi::CUresult code) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api.error_name.address != nullptr) api.error_name.address(code, &name);
  if (api.error_string.address != nullptr) api.error_string.address(code, &text);
  return fmt::format("{} ({})", name != nullptr ? name : "an unknown error", text != nullptr ? text : "no text");
}

int attribute(const DriverApi& api, int which, abi::CUdevice device) {
  int value = 0;
  api.device_attribute(&value, which, device);
  return value;
}

std::unique_ptr<DeviceState> examine(const DriverApi& api, int ordinal) {
  abi::CUdevice device = 0;
  api.device_get(&device, ordinal);
  char product[256] = {};
  api.device_name(product, sizeof(product), device);
  const int capability = 10 * attribute(api, abi::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) +
                         attribute(api, abi::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  auto state = std::make_unique<DeviceState>();
  state->properties = {.device = {DeviceKind::cuda, ordinal},
                       .product = product,
                       .architecture = fmt::format("sm_{}", capability),
                       .num_units = attribute(api, abi::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
                       .cache_bytes = attribute(api, abi::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device),
                       .compute_capability = capability,
                       .shared_bytes_per_block = std::min<int64_t>(
                           attribute(api, abi::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device),
                           environment::shared_bytes_limit())};
  return state;
}

/// Everything that can go wrong here is a reason why there is no device, not an error of the caller.
void find_devices(Loaded& into) {
  try {
    const abi::CUresult result = into.api.init.attempt(0);
    if (result != abi::CUDA_SUCCESS) {
      into.report.error = "cuInit: " + code_name(into.api, result);
      return;
    }
    into.api.driver_version(&into.report.version);
    if (into.report.version < kOldestDriver) {
      into.report.error =
          fmt::format("the driver serves CUDA {}.{}, and 12.3 is the oldest that the library works with",
                      into.report.version / 1000, into.report.version % 1000 / 10);
      return;
    }
    int count = 0;
    into.api.device_count(&count);
    for (int ordinal = 0; ordinal < std::min(count, kMaxDevices); ++ordinal)
      into.devices.push_back(examine(into.api, ordinal));
    if (count == 0) into.report.error = "the driver sees no device (is CUDA_VISIBLE_DEVICES empty?)";
  } catch (const std::exception& error) {
    into.devices.clear();
    into.report.error = error.what();
  }
}

/// Under the lock of `loading`.
void publish(const DriverApi* fake) {
  static auto* all = new std::vector<std::unique_ptr<Loaded>>;  // references into earlier ones stay valid
  Loaded* fresh = all->emplace_back(std::make_unique<Loaded>()).get();
  fresh->report.library = fake != nullptr ? "a driver given by use_driver" : kLibrary;
  if (fake != nullptr)
    fresh->api = *fake;
  else
    fresh->report.error = load_table(fresh->api);
  if (fresh->report.error.empty()) find_devices(*fresh);
  loaded.store(fresh, std::memory_order_release);
}

Loaded& state() {
  Loaded* now = loaded.load(std::memory_order_acquire);
  if (now != nullptr) return *now;
  const std::lock_guard lock(loading);
  if (loaded.load() == nullptr) publish(nullptr);
  return *loaded.load();
}

DeviceState& device_state(int ordinal) {
  Loaded& now = state();
  if (ordinal >= 0 && static_cast<size_t>(ordinal) < now.devices.size())
    return *now.devices[static_cast<size_t>(ordinal)];
  throw Unsupported(
      fmt::format("device: cuda:{} was asked for, and this machine has {}; `ejk doctor` says what was "
                  "looked for",
                  ordinal,
                  now.devices.empty() ? "no CUDA device (" + now.report.error + ")"
                                      : fmt::format("{} CUDA devices", now.devices.size())));
}

abi::CUcontext context_of(int ordinal) {
  DeviceState& device = device_state(ordinal);
  abi::CUcontext context = device.context.load(std::memory_order_acquire);
  if (context != nullptr) return context;
  const std::lock_guard lock(state().mutex);
  context = device.context.load();
  if (context != nullptr) return context;
  driver().primary_context_retain(&context, ordinal);
  device.context.store(context, std::memory_order_release);
  return context;
}

// ---- the last calls ----

struct CallRecord {
  static constexpr int kMaxArgs = 9;  // of cuLaunchKernel: function, grid, block, shared memory, stream
  const char* function;
  int num_args;
  uint64_t args[kMaxArgs];
  char subject[96];
};
struct Ring {
  static constexpr unsigned kSize = 16;
  CallRecord records[kSize];
  unsigned count;
};
constinit thread_local Ring ring = {};

/// After one of these the context is lost: the call that reports it is rarely the one that made it.
bool is_device_fault(abi::CUresult code) {
  return code >= abi::CUDA_ERROR_ILLEGAL_ADDRESS && code <= abi::CUDA_ERROR_LAUNCH_FAILED;
}

}  // namespace

const DriverApi& driver() {
  const Loaded& now = state();
  if (now.devices.empty() && !now.report.error.empty())
    throw Unsupported(fmt::format("cuda: no CUDA device can be used here: {}", now.report.error));
  return now.api;
}

DriverReport driver_report() noexcept { return state().report; }

int num_devices() noexcept { return static_cast<int>(state().devices.size()); }

const DeviceProperties& device_properties(int ordinal) { return device_state(ordinal).properties; }

CurrentDevice::CurrentDevice(int ordinal) {
  const abi::CUcontext wanted = context_of(ordinal);
  const DriverApi& api = state().api;
  // By address: these run at every launch and would push everything else out of the ring of calls.
  abi::CUcontext current = nullptr;
  check(api.context_current.address(&current), api.context_current.symbol);
  if (current == wanted) return;
  check(api.context_push.address(wanted), api.context_push.symbol);
  pushed_ = &api;
}

CurrentDevice::~CurrentDevice() {
  abi::CUcontext popped = nullptr;
  if (pushed_ != nullptr) pushed_->context_pop.address(&popped);
}

abi::CUmemoryPool memory_pool(int ordinal) {
  DeviceState& device = device_state(ordinal);
  abi::CUmemoryPool pool = device.pool.load(std::memory_order_acquire);
  if (pool != nullptr) return pool;
  const std::lock_guard lock(state().mutex);
  pool = device.pool.load();
  if (pool != nullptr) return pool;
  const abi::CUmemPoolProps props = {.alloc_type = abi::CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .handle_types = 0,
                                     .location_type = abi::CU_MEM_LOCATION_TYPE_DEVICE,
                                     .location_id = ordinal,
                                     .win32_security_attributes = nullptr,
                                     .max_size = 0,
                                     .usage = 0,
                                     .reserved = {}};
  driver().pool_create(&pool, &props);
  uint64_t keeps = kPoolKeepsBytes;
  // A pool that keeps nothing is slower, and as good.
  driver().pool_set_attribute.attempt(pool, abi::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keeps);
  device.pool.store(pool, std::memory_order_release);
  return pool;
}

void use_driver(const DriverApi* fake) {
  const std::lock_guard lock(loading);
  publish(fake);
  generation.fetch_add(1);
}

int driver_generation() noexcept { return generation.load(std::memory_order_acquire); }

void note_call(const char* function, const uint64_t* args, int num_args) noexcept {
  CallRecord& record = ring.records[ring.count++ % Ring::kSize];
  record.function = function;
  record.num_args = std::min(num_args, CallRecord::kMaxArgs);
  std::memcpy(record.args, args, static_cast<size_t>(record.num_args) * sizeof(uint64_t));
  record.subject[0] = '\0';
}

void note_subject(std::string_view subject) noexcept {
  CallRecord& record = ring.records[(ring.count - 1) % Ring::kSize];
  const size_t length = std::min(subject.size(), sizeof(record.subject) - 1);
  std::memcpy(record.subject, subject.data(), length);
  record.subject[length] = '\0';
}

std::string recent_calls() {
  std::string text;
  const unsigned kept = std::min(ring.count, Ring::kSize);
  for (unsigned i = ring.count - kept; i != ring.count; ++i) {
    const CallRecord& record = ring.records[i % Ring::kSize];
    text += fmt::format("\n  {}(", record.function);
    for (int arg = 0; arg < record.num_args; ++arg) {
      // Counts and sizes read better in decimal, addresses in hexadecimal.
      const uint64_t value = record.args[arg];
      text += arg > 0 ? ", " : "";
      text += value < uint64_t{1} << 32 ? fmt::format("{}", value) : fmt::format("{:#x}", value);
    }
    text += record.subject[0] != '\0' ? fmt::format(") {}", record.subject) : ")";
  }
  return text;
}

void check(abi::CUresult result, const char* function) {
  if (result == abi::CUDA_SUCCESS) return;
  const Loaded* now = loaded.load(std::memory_order_acquire);
  std::string text = fmt::format("cuda: {} must succeed, got {}", function,
                                 now != nullptr ? code_name(now->api, result) : std::to_string(result));
  if (result == abi::CUDA_ERROR_OUT_OF_MEMORY) throw Internal(text, ErrorCode::out_of_memory);
  if (is_device_fault(result))
    text += "; a kernel before it may be the cause, and the process's context is lost. The last calls of this thread:" +
            recent_calls();
  throw Internal(text);
}

}  // namespace ejk::cuda
