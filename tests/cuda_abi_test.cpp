// Our declarations of the driver and of NVRTC beside those of a CUDA toolkit, where one stands.
#include <gtest/gtest.h>

#include <type_traits>

#include "ejkernel/platform/cuda/driver_abi.h"
#include "ejkernel/platform/cuda/nvrtc.h"

#ifdef EJK_CUDA_TOOLKIT
#include <cuda.h>
#include <nvrtc.h>

namespace ejk::cuda {
namespace {

/// What passes the same way: pointers are pointers, and numbers agree in size.
template <class A, class B>
constexpr bool passes_alike() {
  if constexpr (std::is_pointer_v<A> || std::is_pointer_v<B>)
    return std::is_pointer_v<A> && std::is_pointer_v<B>;
  else
    return sizeof(A) == sizeof(B) && std::is_floating_point_v<A> == std::is_floating_point_v<B>;
}

template <class... A, class R, class... B>
constexpr bool matches(int (*)(A...), R (*)(B...)) {
  if constexpr (sizeof...(A) != sizeof...(B))
    return false;
  else
    return sizeof(R) == sizeof(int) && (passes_alike<A, B>() && ...);
}

// The macro names the function twice: cuda.h maps some names to versions, and the symbol must be the mapped one.
#define EJK_TEXT_OF(name) #name
#define EJK_SYMBOL(name) EJK_TEXT_OF(name)
#define EJK_EXPECT_MATCH(member, name)                                                                           \
  static_assert(matches(decltype(DriverApi::member.address)(), static_cast<decltype(&::name)>(nullptr)), #name); \
  EXPECT_STREQ(DriverApi().member.symbol, EJK_SYMBOL(name))

TEST(DriverAbi, functions_are_the_toolkits) {
  EJK_EXPECT_MATCH(init, cuInit);
  EJK_EXPECT_MATCH(driver_version, cuDriverGetVersion);
  EJK_EXPECT_MATCH(error_name, cuGetErrorName);
  EJK_EXPECT_MATCH(error_string, cuGetErrorString);
  EJK_EXPECT_MATCH(device_count, cuDeviceGetCount);
  EJK_EXPECT_MATCH(device_get, cuDeviceGet);
  EJK_EXPECT_MATCH(device_name, cuDeviceGetName);
  EJK_EXPECT_MATCH(device_attribute, cuDeviceGetAttribute);
  EJK_EXPECT_MATCH(primary_context_retain, cuDevicePrimaryCtxRetain);
  EJK_EXPECT_MATCH(context_current, cuCtxGetCurrent);
  EJK_EXPECT_MATCH(context_push, cuCtxPushCurrent);
  EJK_EXPECT_MATCH(context_pop, cuCtxPopCurrent);
  EJK_EXPECT_MATCH(pool_create, cuMemPoolCreate);
  EJK_EXPECT_MATCH(pool_set_attribute, cuMemPoolSetAttribute);
  EJK_EXPECT_MATCH(allocate, cuMemAllocFromPoolAsync);
  EJK_EXPECT_MATCH(free, cuMemFreeAsync);
  EJK_EXPECT_MATCH(memory_info, cuMemGetInfo);
  EJK_EXPECT_MATCH(copy_to_device, cuMemcpyHtoDAsync);
  EJK_EXPECT_MATCH(copy_to_host, cuMemcpyDtoHAsync);
  EJK_EXPECT_MATCH(copy_on_device, cuMemcpyDtoDAsync);
  EJK_EXPECT_MATCH(fill, cuMemsetD8Async);
  EJK_EXPECT_MATCH(stream_create, cuStreamCreate);
  EJK_EXPECT_MATCH(stream_destroy, cuStreamDestroy);
  EJK_EXPECT_MATCH(stream_synchronize, cuStreamSynchronize);
  EJK_EXPECT_MATCH(stream_wait_event, cuStreamWaitEvent);
  EJK_EXPECT_MATCH(stream_is_capturing, cuStreamIsCapturing);
  EJK_EXPECT_MATCH(stream_begin_capture, cuStreamBeginCapture);
  EJK_EXPECT_MATCH(stream_end_capture, cuStreamEndCapture);
  EJK_EXPECT_MATCH(event_create, cuEventCreate);
  EJK_EXPECT_MATCH(event_destroy, cuEventDestroy);
  EJK_EXPECT_MATCH(event_record, cuEventRecord);
  EJK_EXPECT_MATCH(event_synchronize, cuEventSynchronize);
  EJK_EXPECT_MATCH(graph_instantiate, cuGraphInstantiate);
  EJK_EXPECT_MATCH(graph_launch, cuGraphLaunch);
  EJK_EXPECT_MATCH(graph_destroy, cuGraphDestroy);
  EJK_EXPECT_MATCH(graph_exec_destroy, cuGraphExecDestroy);
  EJK_EXPECT_MATCH(module_load, cuModuleLoadData);
  EJK_EXPECT_MATCH(module_unload, cuModuleUnload);
  EJK_EXPECT_MATCH(module_function, cuModuleGetFunction);
  EJK_EXPECT_MATCH(function_load, cuFuncLoad);
  EJK_EXPECT_MATCH(function_set_attribute, cuFuncSetAttribute);
  EJK_EXPECT_MATCH(launch_kernel, cuLaunchKernel);
  EJK_EXPECT_MATCH(tensor_map_encode_tiled, cuTensorMapEncodeTiled);
  // Newer toolkits map this one to a version that older drivers lack; its arguments did not change.
  static_assert(
      matches(decltype(DriverApi::event_elapsed_ms.address)(), static_cast<decltype(&::cuEventElapsedTime)>(nullptr)));
}

TEST(DriverAbi, structs_and_constants_are_the_toolkits) {
  static_assert(sizeof(abi::CUtensorMap) == sizeof(::CUtensorMap) &&
                alignof(abi::CUtensorMap) >= alignof(::CUtensorMap));
  static_assert(sizeof(abi::CUmemPoolProps) == sizeof(::CUmemPoolProps));
  static_assert(offsetof(abi::CUmemPoolProps, location_id) == offsetof(::CUmemPoolProps, location.id));
  static_assert(offsetof(abi::CUmemPoolProps, max_size) == offsetof(::CUmemPoolProps, maxSize));
  static_assert(offsetof(abi::CUmemPoolProps, reserved) == offsetof(::CUmemPoolProps, reserved));
#define EJK_EXPECT_EQUAL(name) EXPECT_EQ(static_cast<long>(abi::name), static_cast<long>(::name)) << #name
  EJK_EXPECT_EQUAL(CUDA_SUCCESS);
  EJK_EXPECT_EQUAL(CUDA_ERROR_OUT_OF_MEMORY);
  EJK_EXPECT_EQUAL(CUDA_ERROR_ILLEGAL_ADDRESS);
  EJK_EXPECT_EQUAL(CUDA_ERROR_LAUNCH_FAILED);
  EJK_EXPECT_EQUAL(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EJK_EXPECT_EQUAL(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  EJK_EXPECT_EQUAL(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  EJK_EXPECT_EQUAL(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  EJK_EXPECT_EQUAL(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EJK_EXPECT_EQUAL(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  EJK_EXPECT_EQUAL(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  EJK_EXPECT_EQUAL(CU_MEM_ALLOCATION_TYPE_PINNED);
  EJK_EXPECT_EQUAL(CU_MEM_LOCATION_TYPE_DEVICE);
  EJK_EXPECT_EQUAL(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
  EJK_EXPECT_EQUAL(CU_STREAM_NON_BLOCKING);
  EJK_EXPECT_EQUAL(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_DATA_TYPE_UINT8);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_DATA_TYPE_UINT32);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_DATA_TYPE_INT32);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_DATA_TYPE_INT64);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_DATA_TYPE_FLOAT64);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_INTERLEAVE_NONE);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_SWIZZLE_NONE);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_SWIZZLE_32B);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_SWIZZLE_64B);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_SWIZZLE_128B);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  EJK_EXPECT_EQUAL(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

#define EJK_EXPECT_NVRTC(member, name)                                                                          \
  static_assert(matches(decltype(NvrtcApi::member.address)(), static_cast<decltype(&::name)>(nullptr)), #name); \
  EXPECT_STREQ(NvrtcApi().member.symbol, #name)

TEST(NvrtcAbi, functions_are_the_toolkits) {
  EJK_EXPECT_NVRTC(version, nvrtcVersion);
  EJK_EXPECT_NVRTC(create_program, nvrtcCreateProgram);
  EJK_EXPECT_NVRTC(destroy_program, nvrtcDestroyProgram);
  EJK_EXPECT_NVRTC(add_name_expression, nvrtcAddNameExpression);
  EJK_EXPECT_NVRTC(compile_program, nvrtcCompileProgram);
  EJK_EXPECT_NVRTC(log_size, nvrtcGetProgramLogSize);
  EJK_EXPECT_NVRTC(log, nvrtcGetProgramLog);
  EJK_EXPECT_NVRTC(cubin_size, nvrtcGetCUBINSize);
  EJK_EXPECT_NVRTC(cubin, nvrtcGetCUBIN);
  EJK_EXPECT_NVRTC(lowered_name, nvrtcGetLoweredName);
}

}  // namespace
}  // namespace ejk::cuda
#else
TEST(DriverAbi, needs_a_toolkit) { GTEST_SKIP() << "no cuda.h and nvrtc.h here"; }
#endif
