// The part of the CUDA driver's binary interface that the library uses, declared here so that building needs no
// toolkit. A test compares every signature and constant with cuda.h where a toolkit stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ejkernel/core/export.h"

namespace ejk::cuda {

/// The driver's own types, under the driver's names.
namespace abi {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUmemoryPool = struct CUmemPoolHandle_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;

/// 64 until CUDA 12, 128 from 13 on: the stricter serves both.
struct alignas(128) CUtensorMap {
  uint64_t opaque[16];
};

struct CUmemPoolProps {
  int alloc_type, handle_types;
  int location_type, location_id;
  void* win32_security_attributes;
  size_t max_size;
  unsigned short usage;
  unsigned char reserved[54];
};

inline constexpr CUresult CUDA_SUCCESS = 0;
inline constexpr CUresult CUDA_ERROR_OUT_OF_MEMORY = 2;
inline constexpr CUresult CUDA_ERROR_ILLEGAL_ADDRESS = 700;
inline constexpr CUresult CUDA_ERROR_LAUNCH_FAILED = 719;
inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906;

inline constexpr int CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16;
inline constexpr int CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38;
inline constexpr int CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75;
inline constexpr int CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76;
inline constexpr int CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97;

inline constexpr int CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;

inline constexpr int CU_MEM_ALLOCATION_TYPE_PINNED = 1;
inline constexpr int CU_MEM_LOCATION_TYPE_DEVICE = 1;
inline constexpr int CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4;

inline constexpr unsigned CU_STREAM_NON_BLOCKING = 1;
inline constexpr int CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1;

inline constexpr int CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0;
inline constexpr int CU_TENSOR_MAP_DATA_TYPE_UINT32 = 2;
inline constexpr int CU_TENSOR_MAP_DATA_TYPE_INT32 = 3;
inline constexpr int CU_TENSOR_MAP_DATA_TYPE_INT64 = 5;
inline constexpr int CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6;
inline constexpr int CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7;
inline constexpr int CU_TENSOR_MAP_DATA_TYPE_FLOAT64 = 8;
inline constexpr int CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9;
inline constexpr int CU_TENSOR_MAP_INTERLEAVE_NONE = 0;
inline constexpr int CU_TENSOR_MAP_SWIZZLE_NONE = 0;
inline constexpr int CU_TENSOR_MAP_SWIZZLE_32B = 1;
inline constexpr int CU_TENSOR_MAP_SWIZZLE_64B = 2;
inline constexpr int CU_TENSOR_MAP_SWIZZLE_128B = 3;
inline constexpr int CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3;
inline constexpr int CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0;

}  // namespace abi

/// Remembers a call for the report of a device fault (`recent_calls`). No allocation: a ring of this thread's own.
EJK_API void note_call(const char* function, const uint64_t* args, int num_args) noexcept;
/// Throws Internal for a driver's code that is not success, with its name and its text; with code out_of_memory for
/// that one, and with this thread's last calls after a device fault.
EJK_API void check(abi::CUresult result, const char* function);

namespace driver_detail {
template <class T>
uint64_t as_word(T arg) {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<uintptr_t>(arg);
  else
    return static_cast<uint64_t>(arg);
}
}  // namespace driver_detail

/// One entry point: its symbol in the library and, once loaded, its address.
template <class... Args>
struct DriverFunction {
  const char* symbol;
  abi::CUresult (*address)(Args...) = nullptr;

  /// Calls it, notes the call, throws on any error.
  void operator()(Args... args) const { check(attempt(args...), symbol); }
  /// Calls it and notes the call; the driver's answer is the caller's to judge.
  abi::CUresult attempt(Args... args) const {
    const uint64_t words[] = {driver_detail::as_word(args)..., 0};
    note_call(symbol, words, sizeof...(Args));
    return address(args...);
  }
};

/// Every entry point that the library uses. It holds nothing else, so that loading walks it as an array, and a test's
/// fake driver is another value of it.
struct DriverApi {
  DriverFunction<unsigned> init{"cuInit"};
  DriverFunction<int*> driver_version{"cuDriverGetVersion"};
  DriverFunction<abi::CUresult, const char**> error_name{"cuGetErrorName"};
  DriverFunction<abi::CUresult, const char**> error_string{"cuGetErrorString"};

  DriverFunction<int*> device_count{"cuDeviceGetCount"};
  DriverFunction<abi::CUdevice*, int> device_get{"cuDeviceGet"};
  DriverFunction<char*, int, abi::CUdevice> device_name{"cuDeviceGetName"};
  DriverFunction<int*, int, abi::CUdevice> device_attribute{"cuDeviceGetAttribute"};
  DriverFunction<abi::CUcontext*, abi::CUdevice> primary_context_retain{"cuDevicePrimaryCtxRetain"};
  DriverFunction<abi::CUcontext*> context_current{"cuCtxGetCurrent"};
  DriverFunction<abi::CUcontext> context_push{"cuCtxPushCurrent_v2"};
  DriverFunction<abi::CUcontext*> context_pop{"cuCtxPopCurrent_v2"};

  DriverFunction<abi::CUmemoryPool*, const abi::CUmemPoolProps*> pool_create{"cuMemPoolCreate"};
  DriverFunction<abi::CUmemoryPool, int, void*> pool_set_attribute{"cuMemPoolSetAttribute"};
  DriverFunction<abi::CUdeviceptr*, size_t, abi::CUmemoryPool, abi::CUstream> allocate{"cuMemAllocFromPoolAsync"};
  DriverFunction<abi::CUdeviceptr, abi::CUstream> free{"cuMemFreeAsync"};
  DriverFunction<size_t*, size_t*> memory_info{"cuMemGetInfo_v2"};
  DriverFunction<abi::CUdeviceptr, const void*, size_t, abi::CUstream> copy_to_device{"cuMemcpyHtoDAsync_v2"};
  DriverFunction<void*, abi::CUdeviceptr, size_t, abi::CUstream> copy_to_host{"cuMemcpyDtoHAsync_v2"};
  DriverFunction<abi::CUdeviceptr, abi::CUdeviceptr, size_t, abi::CUstream> copy_on_device{"cuMemcpyDtoDAsync_v2"};
  DriverFunction<abi::CUdeviceptr, unsigned char, size_t, abi::CUstream> fill{"cuMemsetD8Async"};

  DriverFunction<abi::CUstream*, unsigned> stream_create{"cuStreamCreate"};
  DriverFunction<abi::CUstream> stream_destroy{"cuStreamDestroy_v2"};
  DriverFunction<abi::CUstream> stream_synchronize{"cuStreamSynchronize"};
  DriverFunction<abi::CUstream, abi::CUevent, unsigned> stream_wait_event{"cuStreamWaitEvent"};
  DriverFunction<abi::CUstream, int*> stream_is_capturing{"cuStreamIsCapturing"};
  DriverFunction<abi::CUstream, int> stream_begin_capture{"cuStreamBeginCapture_v2"};
  DriverFunction<abi::CUstream, abi::CUgraph*> stream_end_capture{"cuStreamEndCapture"};
  DriverFunction<abi::CUevent*, unsigned> event_create{"cuEventCreate"};
  DriverFunction<abi::CUevent> event_destroy{"cuEventDestroy_v2"};
  DriverFunction<abi::CUevent, abi::CUstream> event_record{"cuEventRecord"};
  DriverFunction<abi::CUevent> event_synchronize{"cuEventSynchronize"};
  DriverFunction<float*, abi::CUevent, abi::CUevent> event_elapsed_ms{"cuEventElapsedTime"};
  DriverFunction<abi::CUgraphExec*, abi::CUgraph, unsigned long long> graph_instantiate{"cuGraphInstantiateWithFlags"};
  DriverFunction<abi::CUgraphExec, abi::CUstream> graph_launch{"cuGraphLaunch"};
  DriverFunction<abi::CUgraph> graph_destroy{"cuGraphDestroy"};
  DriverFunction<abi::CUgraphExec> graph_exec_destroy{"cuGraphExecDestroy"};

  DriverFunction<abi::CUmodule*, const void*> module_load{"cuModuleLoadData"};
  DriverFunction<abi::CUmodule> module_unload{"cuModuleUnload"};
  DriverFunction<abi::CUfunction*, abi::CUmodule, const char*> module_function{"cuModuleGetFunction"};
  DriverFunction<abi::CUfunction> function_load{"cuFuncLoad"};  // null before CUDA 12.4
  DriverFunction<abi::CUfunction, int, int> function_set_attribute{"cuFuncSetAttribute"};
  DriverFunction<abi::CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, abi::CUstream,
                 void**, void**>
      launch_kernel{"cuLaunchKernel"};
  DriverFunction<abi::CUtensorMap*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*,
                 const uint32_t*, int, int, int, int>
      tensor_map_encode_tiled{"cuTensorMapEncodeTiled"};
};

}  // namespace ejk::cuda
