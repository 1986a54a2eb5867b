// What every device header starts from. Device code includes nothing but the library's own device headers: NVRTC
// carries no others. Headers that are arithmetic only also compile as host C++, where the tests try them exhaustively.
#pragma once

#ifdef __CUDACC_RTC__
#define EJK_DEVICE __device__ __forceinline__
#define EJK_DEVICE_CALL __device__ __noinline__  // large and not hot: one copy, for the compiler's time
#else
#define EJK_DEVICE inline
#define EJK_DEVICE_CALL inline
#endif

namespace ejk::cuda {

using int64 = long long;
using uint64 = unsigned long long;
using uint32 = unsigned int;

inline constexpr int kWarpSize = 32;
inline constexpr int kWarpgroupSize = 128;

template <class T>
EJK_DEVICE constexpr T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
EJK_DEVICE constexpr T max(T a, T b) {
  return a < b ? b : a;
}
EJK_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace ejk::cuda
