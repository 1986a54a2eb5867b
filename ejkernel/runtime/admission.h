// What a candidate must show before anybody times it: that it computes what the kernel is for, and touches only what is
// its own.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ejkernel/core/tensor.h"
#include "ejkernel/runtime/plan.h"

namespace ejk {

/// Memory of a device between bands of a known pattern. `poison` fills it with 0xff, which is NaN in every floating
/// dtype, and mends the bands.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes, Device device = {});
  std::byte* data() const { return memory_.as<std::byte>() + kBand; }
  size_t size() const { return size_; }
  void poison() const;
  bool is_intact() const;

 private:
  static constexpr size_t kBand = 4096;  // a vector store past the end, or the next row of most tiles
  bool is_band(const std::byte* from) const;
  Array memory_;
  size_t size_;
};

/// Runs plans of one call into guarded memory of the call's device. What a call writes in place is a copy of the input,
/// made anew for each run: the given one stays as it is. Not for several threads at a time.
class Proving {
 public:
  /// `plan` is any plan of the call: plans of all kernels and configs have the same outputs. `inputs` have data there.
  Proving(const Plan& plan, std::span<const Tensor> inputs);

  /// Runs it to its end with outputs and workspace poisoned. Why it must not be used: it failed, or it wrote outside;
  /// empty when neither.
  std::string run(const Plan& plan);
  /// What the last run left, in host memory, to compare others with.
  std::vector<Array> results() const;
  /// Where the last run's results are too far from these for the dtypes at hand; empty: nowhere.
  std::string differs_from(std::span<const Array> expected) const;
  /// Whether the last run's results equal these bit for bit.
  bool equals(std::span<const Array> others) const;

  /// What plans of the call run on.
  std::span<const Tensor> inputs() const { return inputs_; }
  std::span<const Tensor> outputs() const { return outputs_; }
  /// Workspace for a plan of the call.
  std::span<std::byte> workspace_for(const Plan& plan);

 private:
  /// An input that the call writes: the given one, and where runs find it.
  struct Written {
    Tensor original;
    std::byte* copy;  ///< of the first byte that its elements span
  };
  Tensor place_written(const Tensor& original);
  void restore_written() const;
  void fetch();
  /// The output where this process can read it, contiguous.
  Tensor readable(size_t output) const {
    return fetched_[output].present() ? Tensor(fetched_[output]) : outputs_[output];
  }

  std::vector<Tensor> inputs_;
  Device device_;
  std::vector<GuardedMemory> memory_;
  std::vector<Tensor> outputs_;
  std::vector<Written> written_;
  std::vector<Array> fetched_;  ///< the last run's outputs, in host memory, of a GPU or where they may have gaps
  std::vector<GuardedMemory> workspace_;  ///< the largest asked for so far, or none
  DType coarsest_;                        ///< of the inputs: what results were rounded to on the way
};

/// How far two results of one element may be apart when each was computed with sound rounding, in parts of the larger
/// of the element and the root mean square of its output: so many unit roundoffs of the coarsest dtype involved, and so
/// many of float32, in which kernels sum. Much wider than the error rule of the tests, which knows float64 results and
/// each problem's own condition: here both sides are rounded, and what is looked for is a kernel that is broken.
inline constexpr double kStorageRoundoffs = 16, kSumRoundoffs = 1024;

}  // namespace ejk
