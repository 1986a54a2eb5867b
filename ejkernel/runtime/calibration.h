// What a device can do at most, measured: the ceilings that "% of peak" refers to.
#pragma once

#include <string_view>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"

namespace ejk {

/// Rates of the whole device with the threads that the library uses on it, multiply-adds counted as two operations; 0:
/// no instruction does that, or nobody measured it. Each is of whatever is fastest at it, vectors or a matrix unit:
/// float32 and float64 by multiply-adds (a GPU's float64 without its matrix units), bfloat16 and 8-bit numbers by
/// instructions that sum products of pairs or of four in 32 bits; a GPU's by its matrix units, which are measured on
/// Hopper. `bytes_per_second` is reading memory beyond every cache, on a GPU copying it, with what is read and what is
/// written.
struct Peaks {
  double flops_per_second = 0;  ///< of float32
  double f64_flops_per_second = 0;
  double bf16_flops_per_second = 0;
  double f8_flops_per_second = 0;
  double i8_flops_per_second = 0;
  double bytes_per_second = 0;
  int num_threads = 1;
  bool f16_as_bf16 = false;  ///< a GPU's: its matrix units take float16 at bfloat16's rate, and widen nothing

  struct Rate {
    double flops_per_second = 0;
    std::string_view of = {};  ///< "float32", "float64", "bfloat16", "float8" or "int8"; empty: nobody measured it
  };
  /// What bounds products of numbers of this dtype. A host widens what it has no instruction for: 8-bit floats, and
  /// integers of 8 and 4 bits, are exact in bfloat16, and 16-bit floats in float32.
  EJK_API Rate rate_of(DType dtype) const;
  /// Its rate, or float32's where nobody measured it. That compares the configs of a call; what percentages refer to is
  /// `ceiling_of`.
  EJK_API double flops_of(DType dtype) const;
};

/// The rates by the names that the store and `ejk bench --json` give them.
struct NamedRate {
  std::string_view name;
  double Peaks::*rate;
};
inline constexpr NamedRate kRates[] = {
    {"flops", &Peaks::flops_per_second},           {"f64_flops", &Peaks::f64_flops_per_second},
    {"bf16_flops", &Peaks::bf16_flops_per_second}, {"f8_flops", &Peaks::f8_flops_per_second},
    {"i8_flops", &Peaks::i8_flops_per_second},     {"bytes", &Peaks::bytes_per_second}};

/// Each rate becomes the larger of the two: noise only ever slows.
EJK_API void raise_peaks(Peaks& peaks, const Peaks& other);

/// Measures for about `seconds`, on a machine that should be idle. Each rate is the best of many short samples: noise
/// only ever slows. Unsupported for a device that this process has not.
EJK_API Peaks measure_peaks(Device device = {}, double seconds = 1);

/// The device's peaks as this process or an earlier one measured them (the store keeps them, docs/cache.md); measured
/// now where none did, in 0.5 s and, on a GPU, what its kernels take to compile. Unsupported for a device that this
/// process has not.
EJK_API Peaks known_peaks(Device device = {});
/// A device's properties with what its peaks say, where somebody measured them: what heuristics are given. Measures
/// nothing; asks the store once.
EJK_API const DeviceProperties& calibrated_properties(Device device);
/// Remembers peaks for `known_peaks`, here and in the store, raised by what is known there.
EJK_API void keep_peaks(Device device, const Peaks& peaks);
/// Forgets what this process knows; the store does not.
EJK_API void forget_peaks();

/// What bounds work, as "% of peak" refers to it.
struct Ceiling {
  double seconds = 0;        ///< the work takes that long at least
  std::string_view of = {};  ///< "memory" or what `Peaks::Rate` says; empty: nobody measured what bounds it
};
/// Where nobody measured the rate of a dtype, only memory can bound, if it would next to float32's rate, which is the
/// least that a narrower dtype's can be.
EJK_API Ceiling ceiling_of(const Peaks& peaks, DType dtype, double flops, double bytes);

/// The least time that work of this size on numbers of this dtype can take: the larger of arithmetic and memory traffic
/// (the roofline). A rate of 0 is not known and bounds nothing.
EJK_API double roofline_seconds(const Peaks& peaks, DType dtype, double flops, double bytes);

}  // namespace ejk
