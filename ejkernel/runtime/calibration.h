// What a device can do at most, measured: the ceilings that "% of peak" refers to.
#pragma once

#include <string_view>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"

namespace ejk {

/// Rates of the whole device with the threads that the library uses on it. `flops_per_second` counts float32
/// multiply-adds as two; `bf16_flops_per_second` is of products of bfloat16 pairs summed in float32, by whatever is
/// fastest at it (vectors or a matrix unit), 0 where no instruction does that or, on a GPU, where it was not measured;
/// `bytes_per_second` is reading memory beyond every cache, on a GPU copying it, with what is read and what is written.
/// A GPU's matrix units take float16 at bfloat16's rate.
struct Peaks {
  double flops_per_second = 0;
  double bf16_flops_per_second = 0;
  double bytes_per_second = 0;
  int num_threads = 1;
  bool f16_as_bf16 = false;

  /// Of products of numbers of this dtype: pairs of 16-bit ones where they were measured, else float32. That compares
  /// the configs of a call; what percentages refer to is `ceiling_of`.
  double flops_of(DType dtype) const {
    const bool pairs = dtype == DType::bf16 || (dtype == DType::f16 && f16_as_bf16);
    return pairs && bf16_flops_per_second > 0 ? bf16_flops_per_second : flops_per_second;
  }
};

/// Measures for about `seconds`, on a machine that should be idle. Each rate is the best of many short samples: noise
/// only ever slows. Unsupported for a device that this process has not.
EJK_API Peaks measure_peaks(Device device = {}, double seconds = 0.6);

/// The device's peaks as this process or an earlier one measured them (the store keeps them, docs/cache.md); measured
/// now where none did, in 0.3 s. Unsupported for a device that this process has not.
EJK_API Peaks known_peaks(Device device = {});
/// A device's properties with what its peaks say, where somebody measured them: what heuristics are given. Measures
/// nothing; asks the store once.
EJK_API const DeviceProperties& calibrated_properties(Device device);
/// Remembers peaks for `known_peaks`, here and in the store. Each rate only ever rises: noise only ever slows.
EJK_API void keep_peaks(Device device, const Peaks& peaks);
/// Forgets what this process knows; the store does not.
EJK_API void forget_peaks();

/// What bounds work, as "% of peak" refers to it.
struct Ceiling {
  double seconds = 0;        ///< the work takes that long at least
  std::string_view of = {};  ///< "memory", "float32" or "bfloat16"; empty: nobody measured what bounds it
};
/// float32's rate bounds products of float32, and of 16-bit numbers on a host without an instruction for pairs, which
/// widens them. Other dtypes have rates of their own: bfloat16's is measured where it can be; where none was, only
/// memory can bound, if it would next to float32's rate, which is the least that a narrower dtype's can be.
EJK_API Ceiling ceiling_of(const Peaks& peaks, DType dtype, double flops, double bytes);

/// The least time that work of this size on numbers of this dtype can take: the larger of arithmetic and memory traffic
/// (the roofline). A rate of 0 is not known and bounds nothing.
EJK_API double roofline_seconds(const Peaks& peaks, DType dtype, double flops, double bytes);

}  // namespace ejk
