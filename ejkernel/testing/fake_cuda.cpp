#include "ejkernel/testing/fake_cuda.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "ejkernel/core/store.h"
#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/platform/cuda/nvrtc.h"
#include "ejkernel/runtime/choose.h"

namespace ejk::testing {
namespace {

using namespace cuda::abi;  // NOLINT: the driver's names

constexpr CUresult kInvalidValue = 1;
constexpr CUresult kNoBinary = 209;
constexpr CUresult kInvalidHandle = 400;
constexpr CUresult kInvalidContext = 201;
constexpr size_t kAlignment = 256;
constexpr int kSharedBytes = 232448;

struct Function {
  std::string instance;
  int device;
  int shared_bytes = 48 << 10;  // what a launch may use without asking for more
};

struct State {
  std::recursive_mutex mutex;
  int num_devices = 0;
  std::map<std::string_view, int64_t> calls;
  int64_t calls_until_failure = 0;
  int code = 0;
  std::string_view failed = {};
  bool full = false;
  std::vector<FakeCuda::Launch> launches;
  std::vector<FakeCuda::Map> maps;
  int64_t compilations = 0;
  std::map<CUdeviceptr, size_t> blocks;
  std::set<const void*> streams, events, graphs;
  std::map<const void*, std::string> modules;  ///< the instance inside
  std::map<const void*, std::unique_ptr<Function>> functions;
  std::set<const void*> capturing;
  uintptr_t last_handle = 0x1000;
};
State* state = nullptr;
thread_local std::vector<CUcontext> contexts;

// Contexts are told apart by their number.
CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(static_cast<uintptr_t>(0x100 + device)); }
int device_of(CUcontext context) { return static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 0x100; }
bool has_context() { return !contexts.empty(); }

template <class Handle>
Handle fresh_handle() {
  return reinterpret_cast<Handle>(state->last_handle += 0x10);
}

/// Counts the call; not 0 when it is the one to fail.
int entered(const char* function) {
  ++state->calls[function];
  if (state->calls_until_failure > 0 && --state->calls_until_failure == 0) {
    state->failed = function;
    return state->code;
  }
  return 0;
}

/// The body of one driver function: counted, and in need of a current context unless it says otherwise.
template <class Body>
int called(const char* function, Body body, bool needs_context = true) {
  const std::lock_guard lock(state->mutex);
  if (const int code = entered(function)) return code;
  if (needs_context && !has_context()) return kInvalidContext;
  return body();
}

bool is_stream(CUstream stream) { return stream == nullptr || state->streams.count(stream) != 0; }

int create(std::set<const void*>& kind, const void* handle) { return kind.insert(handle).second ? 0 : kInvalidHandle; }
int destroy(std::set<const void*>& kind, const void* handle) { return kind.erase(handle) == 1 ? 0 : kInvalidHandle; }

int attribute(int which) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return 50 << 20;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return kSharedBytes;
    default:
      return 0;
  }
}

/// Whether `bytes` at `address` are inside of an allocation.
bool is_inside(CUdeviceptr address, size_t bytes) {
  auto block = state->blocks.upper_bound(address);
  if (block == state->blocks.begin()) return false;
  --block;
  return address + bytes <= block->first + block->second;
}

int copy(void* to, const void* from, size_t bytes, CUdeviceptr on_device, CUstream stream) {
  if (!is_stream(stream) || !is_inside(on_device, bytes)) return kInvalidValue;
  std::memcpy(to, from, bytes);
  return 0;
}

int launch(CUfunction function, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared_bytes,
           CUstream stream) {
  const auto found = state->functions.find(function);
  if (found == state->functions.end()) return kInvalidHandle;
  const Function& f = *found->second;
  if (f.device != device_of(contexts.back()) || !is_stream(stream)) return kInvalidHandle;
  const bool grid_fits =
      grid[0] >= 1 && grid[0] <= 0x7fffffff && grid[1] >= 1 && grid[1] <= 65535 && grid[2] >= 1 && grid[2] <= 65535;
  const bool block_fits = block[0] >= 1 && block[1] >= 1 && block[2] >= 1 && block[2] <= 64 &&
                          uint64_t{block[0]} * block[1] * block[2] <= 1024;
  if (!grid_fits || !block_fits || static_cast<int>(shared_bytes) > f.shared_bytes) return kInvalidValue;
  FakeCuda::Launch record{.instance = f.instance, .device = f.device, .shared_bytes = shared_bytes, .stream = stream};
  std::memcpy(record.grid, grid, sizeof(grid));
  std::memcpy(record.block, block, sizeof(block));
  state->launches.push_back(record);
  return 0;
}

/// What the driver's manual demands of a tiled map.
bool is_valid_map(int type, const FakeCuda::Map& map, const void* base) {
  constexpr int kElementBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
  if (type < 0 || type > 9 || reinterpret_cast<uintptr_t>(base) % 16 != 0) return false;
  for (size_t axis = 0; axis < static_cast<size_t>(map.rank); ++axis) {
    if (map.sizes[axis] < 1 || map.sizes[axis] > uint64_t{1} << 32) return false;
    if (map.box[axis] < 1 || map.box[axis] > 256) return false;
    if (axis > 0 && (map.strides[axis - 1] % 16 != 0 || map.strides[axis - 1] >= uint64_t{1} << 40)) return false;
  }
  constexpr uint32_t kSwizzleBytes[] = {UINT32_MAX, 32, 64, 128};
  const uint32_t inner = map.box[0] * static_cast<uint32_t>(kElementBytes[type]);
  return inner % 16 == 0 && map.swizzle >= 0 && map.swizzle <= 3 && inner <= kSwizzleBytes[map.swizzle];
}

/// A driver whose functions find the fake's state; they stand in the order of DriverApi.
cuda::DriverApi make_driver() {
  cuda::DriverApi api;
  api.init.address = [](unsigned) {
    return called(
        "cuInit", [] { return 0; }, false);
  };
  api.driver_version.address = [](int* version) {
    return called(
        "cuDriverGetVersion", [&] { return *version = 13000, 0; }, false);
  };
  api.error_name.address = [](CUresult code, const char** name) {
    *name = code == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_FAKE";
    return 0;
  };
  api.error_string.address = [](CUresult, const char** text) { return *text = "as the test wants", 0; };

  api.device_count.address = [](int* count) {
    return called(
        "cuDeviceGetCount", [&] { return *count = state->num_devices, 0; }, false);
  };
  api.device_get.address = [](CUdevice* device, int ordinal) {
    return called(
        "cuDeviceGet", [&] { return *device = ordinal, 0; }, false);
  };
  api.device_name.address = [](char* name, int size, CUdevice device) {
    return called(
        "cuDeviceGetName",
        [&] {
          std::snprintf(name, static_cast<size_t>(size), "Fake GPU of generation %d.%d", cuda::driver_generation(),
                        device / 2);
          return 0;
        },
        false);
  };
  api.device_attribute.address = [](int* value, int which, CUdevice) {
    return called(
        "cuDeviceGetAttribute", [&] { return *value = attribute(which), 0; }, false);
  };
  api.primary_context_retain.address = [](CUcontext* context, CUdevice device) {
    return called(
        "cuDevicePrimaryCtxRetain", [&] { return *context = context_of(device), 0; }, false);
  };
  api.context_current.address = [](CUcontext* context) {
    return called(
        "cuCtxGetCurrent", [&] { return *context = has_context() ? contexts.back() : nullptr, 0; }, false);
  };
  api.context_push.address = [](CUcontext context) {
    return called(
        "cuCtxPushCurrent", [&] { return contexts.push_back(context), 0; }, false);
  };
  // Not counted: it cannot fail for us, and who undoes something must not be stopped.
  api.context_pop.address = [](CUcontext* context) {
    if (!has_context()) return kInvalidContext;
    *context = contexts.back();
    contexts.pop_back();
    return 0;
  };

  api.pool_create.address = [](CUmemoryPool* pool, const CUmemPoolProps*) {
    return called(
        "cuMemPoolCreate", [&] { return *pool = fresh_handle<CUmemoryPool>(), 0; }, false);
  };
  api.pool_set_attribute.address = [](CUmemoryPool, int, void*) {
    return called(
        "cuMemPoolSetAttribute", [] { return 0; }, false);
  };
  api.allocate.address = [](CUdeviceptr* block, size_t bytes, CUmemoryPool, CUstream stream) {
    return called("cuMemAllocFromPoolAsync", [&]() -> int {
      if (state->full) return CUDA_ERROR_OUT_OF_MEMORY;
      if (bytes == 0 || !is_stream(stream)) return kInvalidValue;
      void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
      if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
      *block = reinterpret_cast<CUdeviceptr>(memory);
      state->blocks[*block] = bytes;
      return 0;
    });
  };
  api.free.address = [](CUdeviceptr block, CUstream stream) {
    return called("cuMemFreeAsync", [&]() -> int {
      if (!is_stream(stream) || state->blocks.erase(block) != 1) return kInvalidValue;
      std::free(reinterpret_cast<void*>(block));
      return 0;
    });
  };
  api.memory_info.address = [](size_t* available, size_t* total) {
    return called("cuMemGetInfo", [&] { return *available = 1 << 20, *total = size_t{1} << 37, 0; });
  };
  api.copy_to_device.address = [](CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    return called("cuMemcpyHtoDAsync", [&] { return copy(reinterpret_cast<void*>(to), from, bytes, to, stream); });
  };
  api.copy_to_host.address = [](void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return called("cuMemcpyDtoHAsync",
                  [&] { return copy(to, reinterpret_cast<const void*>(from), bytes, from, stream); });
  };
  api.copy_on_device.address = [](CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return called("cuMemcpyDtoDAsync", [&]() -> int {
      if (!is_inside(to, bytes)) return kInvalidValue;
      return copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes, from, stream);
    });
  };
  api.fill.address = [](CUdeviceptr to, unsigned char byte, size_t bytes, CUstream stream) {
    return called("cuMemsetD8Async", [&]() -> int {
      if (!is_stream(stream) || !is_inside(to, bytes)) return kInvalidValue;
      std::memset(reinterpret_cast<void*>(to), byte, bytes);
      return 0;
    });
  };

  api.stream_create.address = [](CUstream* stream, unsigned) {
    return called("cuStreamCreate", [&] { return create(state->streams, *stream = fresh_handle<CUstream>()); });
  };
  api.stream_destroy.address = [](CUstream stream) {
    return called("cuStreamDestroy", [&] { return destroy(state->streams, stream); });
  };
  api.stream_synchronize.address = [](CUstream stream) {
    return called("cuStreamSynchronize",
                  [&] { return is_stream(stream) && state->capturing.count(stream) == 0 ? 0 : kInvalidValue; });
  };
  api.stream_wait_event.address = [](CUstream stream, CUevent event, unsigned) {
    return called("cuStreamWaitEvent",
                  [&] { return is_stream(stream) && state->events.count(event) != 0 ? 0 : kInvalidHandle; });
  };
  api.stream_is_capturing.address = [](CUstream stream, int* status) {
    return called("cuStreamIsCapturing", [&] { return *status = static_cast<int>(state->capturing.count(stream)), 0; });
  };
  api.stream_begin_capture.address = [](CUstream stream, int) {
    return called("cuStreamBeginCapture", [&] {
      return stream != nullptr && is_stream(stream) ? create(state->capturing, stream) : kInvalidValue;
    });
  };
  api.stream_end_capture.address = [](CUstream stream, CUgraph* graph) {
    return called("cuStreamEndCapture", [&]() -> int {
      if (destroy(state->capturing, stream) != 0) return kInvalidValue;
      return create(state->graphs, *graph = fresh_handle<CUgraph>());
    });
  };
  api.event_create.address = [](CUevent* event, unsigned) {
    return called("cuEventCreate", [&] { return create(state->events, *event = fresh_handle<CUevent>()); });
  };
  api.event_destroy.address = [](CUevent event) {
    return called("cuEventDestroy", [&] { return destroy(state->events, event); });
  };
  api.event_record.address = [](CUevent event, CUstream stream) {
    return called("cuEventRecord",
                  [&] { return is_stream(stream) && state->events.count(event) != 0 ? 0 : kInvalidHandle; });
  };
  api.event_synchronize.address = [](CUevent event) {
    return called("cuEventSynchronize", [&] { return state->events.count(event) != 0 ? 0 : kInvalidHandle; });
  };
  api.event_elapsed_ms.address = [](float* ms, CUevent, CUevent) {
    return called(
        "cuEventElapsedTime", [&] { return *ms = 1, 0; }, false);
  };
  api.graph_instantiate.address = [](CUgraphExec* executable, CUgraph graph, unsigned long long) {
    return called("cuGraphInstantiateWithFlags", [&]() -> int {
      if (state->graphs.count(graph) == 0) return kInvalidHandle;
      return create(state->graphs, *executable = fresh_handle<CUgraphExec>());
    });
  };
  api.graph_launch.address = [](CUgraphExec executable, CUstream stream) {
    return called("cuGraphLaunch",
                  [&] { return is_stream(stream) && state->graphs.count(executable) != 0 ? 0 : kInvalidHandle; });
  };
  api.graph_destroy.address = [](CUgraph graph) {
    return called("cuGraphDestroy", [&] { return destroy(state->graphs, graph); });
  };
  api.graph_exec_destroy.address = [](CUgraphExec executable) {
    return called("cuGraphExecDestroy", [&] { return destroy(state->graphs, executable); });
  };

  api.module_load.address = [](CUmodule* module, const void* image) {
    return called("cuModuleLoadData", [&]() -> int {
      const std::string text = static_cast<const char*>(image);
      if (text.rfind("cubin of ", 0) != 0) return kNoBinary;
      *module = fresh_handle<CUmodule>();
      state->modules[*module] = text.substr(9);
      return 0;
    });
  };
  api.module_unload.address = [](CUmodule module) {
    return called("cuModuleUnload", [&] { return state->modules.erase(module) == 1 ? 0 : kInvalidHandle; });
  };
  api.module_function.address = [](CUfunction* function, CUmodule module, const char* name) {
    return called("cuModuleGetFunction", [&]() -> int {
      const auto found = state->modules.find(module);
      if (found == state->modules.end() || name != "_Z" + found->second) return kInvalidHandle;
      *function = fresh_handle<CUfunction>();
      state->functions[*function] =
          std::make_unique<Function>(Function{.instance = found->second, .device = device_of(contexts.back())});
      return 0;
    });
  };
  api.function_load.address = [](CUfunction function) {
    return called("cuFuncLoad", [&] { return state->functions.count(function) != 0 ? 0 : kInvalidHandle; });
  };
  api.function_set_attribute.address = [](CUfunction function, int which, int value) {
    return called("cuFuncSetAttribute", [&]() -> int {
      const auto found = state->functions.find(function);
      if (found == state->functions.end() || which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
          value > kSharedBytes)
        return kInvalidValue;
      found->second->shared_bytes = value;
      return 0;
    });
  };
  api.launch_kernel.address = [](CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                 CUstream stream, void**, void**) {
    return called("cuLaunchKernel", [&] {
      return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream);
    });
  };
  api.tensor_map_encode_tiled.address = [](CUtensorMap* map, int type, uint32_t rank, void* base, const uint64_t* sizes,
                                           const uint64_t* strides, const uint32_t* box, const uint32_t*, int,
                                           int swizzle, int, int) {
    return called(
        "cuTensorMapEncodeTiled",
        [&]() -> int {
          FakeCuda::Map made{.rank = static_cast<int>(rank), .swizzle = swizzle};
          if (rank < 1 || rank > 5) return kInvalidValue;
          std::copy(sizes, sizes + rank, made.sizes.begin());
          std::copy(strides, strides + (rank - 1), made.strides.begin());
          std::copy(box, box + rank, made.box.begin());
          if (!is_valid_map(type, made, base)) return kInvalidValue;
          state->maps.push_back(made);
          std::memset(map, 0, sizeof(*map));
          return 0;
        },
        false);
  };
  return api;
}

// ---- the compiler ----

struct FakeProgram {
  std::string instance, log, lowered, cubin;
};
FakeProgram* as_fake(cuda::nvrtcProgram program) { return reinterpret_cast<FakeProgram*>(program); }

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

int compile(FakeProgram& program) {
  const std::lock_guard lock(state->mutex);
  ++state->compilations;
  if (contains(program.instance, "broken")) {
    program.log = "kernel.cu(7): error: identifier \"nonsense\" is undefined\n1 error detected\n";
    return 6;
  }
  const bool spills = contains(program.instance, "spills");
  program.log =
      contains(program.instance, "serialises")
          ? "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n"
          : "";
  program.log += spills ? "    8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n"
                        : "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
  program.log += "ptxas info    : Used 64 registers, used 1 barriers, 256 bytes smem\n";
  program.lowered = "_Z" + program.instance;
  program.cubin = "cubin of " + program.instance + '\0';
  return 0;
}

cuda::Nvrtc make_compiler() {
  cuda::Nvrtc compiler = {.path = "a compiler of FakeCuda", .major = 13, .minor = 0};
  cuda::NvrtcApi& api = compiler.api;
  api.version.address = [](int* major, int* minor) { return *major = 13, *minor = 0, 0; };
  api.create_program.address = [](cuda::nvrtcProgram* program, const char*, const char*, int, const char* const*,
                                  const char* const*) {
    *program = reinterpret_cast<cuda::nvrtcProgram>(new FakeProgram);
    return 0;
  };
  api.destroy_program.address = [](cuda::nvrtcProgram* program) {
    delete as_fake(*program);
    return 0;
  };
  api.add_name_expression.address = [](cuda::nvrtcProgram program, const char* name) {
    return as_fake(program)->instance = name, 0;
  };
  api.compile_program.address = [](cuda::nvrtcProgram program, int, const char* const*) {
    return compile(*as_fake(program));
  };
  api.log_size.address = [](cuda::nvrtcProgram program, size_t* size) {
    return *size = as_fake(program)->log.size() + 1, 0;
  };
  api.log.address = [](cuda::nvrtcProgram program, char* log) {
    return std::strcpy(log, as_fake(program)->log.c_str()), 0;
  };
  api.cubin_size.address = [](cuda::nvrtcProgram program, size_t* size) {
    return *size = as_fake(program)->cubin.size(), 0;
  };
  api.cubin.address = [](cuda::nvrtcProgram program, char* cubin) {
    const std::string& bytes = as_fake(program)->cubin;
    return std::memcpy(cubin, bytes.data(), bytes.size()), 0;
  };
  api.lowered_name.address = [](cuda::nvrtcProgram program, const char*, const char** lowered) {
    return *lowered = as_fake(program)->lowered.c_str(), 0;
  };
  return compiler;
}

void install() {
  const cuda::DriverApi driver = make_driver();
  cuda::use_driver(&driver);
  const cuda::Nvrtc compiler = make_compiler();
  cuda::use_nvrtc(&compiler);
  clear_memory_configs();  // choices hold code that the driver before loaded
}

}  // namespace

FakeCuda::FakeCuda(int num_devices) : former_store_(store().root()) {
  std::string pattern = std::filesystem::temp_directory_path() / "ejkernel_fake_XXXXXX";
  root_ = mkdtemp(pattern.data());
  use_store(root_ + "/store");
  state = new State;
  state->num_devices = num_devices;
  state->launches.reserve(1 << 16);
  state->maps.reserve(1 << 16);
  contexts.clear();
  install();
}

FakeCuda::~FakeCuda() {
  for (const auto& [block, bytes] : state->blocks) std::free(reinterpret_cast<void*>(block));
  cuda::use_driver(nullptr);
  cuda::use_nvrtc(nullptr);
  clear_memory_configs();
  use_store(former_store_);
  delete state;
  state = nullptr;
  std::filesystem::remove_all(root_);
}

int64_t FakeCuda::calls(const std::string& function) const {
  const std::lock_guard lock(state->mutex);
  const auto found = state->calls.find(function);
  return found == state->calls.end() ? 0 : found->second;
}

int64_t FakeCuda::calls() const {
  const std::lock_guard lock(state->mutex);
  int64_t total = 0;
  for (const auto& [function, count] : state->calls) total += count;
  return total;
}

void FakeCuda::fail_call(int64_t k, int code) {
  const std::lock_guard lock(state->mutex);
  state->calls_until_failure = k;
  state->code = code;
  state->failed = {};
}

std::string FakeCuda::failed_call() const { return std::string(state->failed); }
void FakeCuda::set_out_of_memory(bool full) { state->full = full; }
const std::vector<FakeCuda::Launch>& FakeCuda::launches() const { return state->launches; }
const std::vector<FakeCuda::Map>& FakeCuda::maps() const { return state->maps; }
int64_t FakeCuda::compilations() const { return state->compilations; }
size_t FakeCuda::num_blocks() const { return state->blocks.size(); }
size_t FakeCuda::num_modules() const { return state->modules.size(); }
size_t FakeCuda::num_contexts() const { return contexts.size(); }
const std::string& FakeCuda::store_root() const { return root_; }
void FakeCuda::restart() { install(); }

}  // namespace ejk::testing
