// Where the slices of a batch lie, and how they become entries of the operation's own batch dimension, by views alone.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/choose.h"
#include "ejkernel/runtime/registry.h"

namespace ejk::batches {

/// In place of an axis: every slice sees the whole tensor, or a tensor has no such dimension.
inline constexpr int kNone = -1;

/// The extents or strides without those of one axis.
Shape without_axis(const Shape& shape, int axis);
/// The extents with one more, which becomes that axis.
Shape with_axis(const Shape& shape, int axis, int64_t extent);
/// The tensor's first slice along an axis; the whole tensor for kNone.
Tensor first_slice(const Tensor& whole, int axis);

/// A batch of calls: what is given, and the call that each slice is.
struct Call {
  std::shared_ptr<const RegisteredOperation> operation;
  std::vector<Tensor> inputs;             ///< whole
  std::vector<int> in_axes;               ///< per input: the axis that runs over the slices
  std::vector<int> out_axes = {};         ///< per output, of the whole one
  std::vector<OutputSpec> outputs = {};   ///< whole
  std::vector<Tensor> slice_inputs = {};  ///< specs that every slice meets: aligned as the worst of them
  CheckedCall slice = {};
  int64_t num_slices = 0;
  Device device = {};

  const Operation& declaration() const { return *operation->declaration; }
};

/// Where a tensor has a dimension.
struct DimAxis {
  int axis = kNone;
  bool broadcasts = false;  ///< `name/1`
  bool is_clear = true;     ///< false: in several places, or as part of an expression
  friend bool operator==(const DimAxis&, const DimAxis&) = default;
};

/// Where tensors of this rank have it.
DimAxis find_dim(const Contract& contract, int form, int rank, std::string_view dim);

/// What becomes one axis of a tensor: the whole one's axis that runs over the slices, and the slice's batch dimension.
struct Place {
  int mapped_axis = kNone;
  DimAxis dim = {};
};

/// All slices as one call. Of S slices with B entries each, the entry b of slice s is number s * B + b, or b * S + s.
struct Fold {
  Support answer = {};  ///< no: why the slices must run one after another
  bool slices_are_outer = true;
  int64_t num_slices = 0;   ///< S
  int64_t batch = 0;        ///< B
  int64_t num_entries = 0;  ///< S * B
  std::vector<Place> inputs = {}, outputs = {};

  /// The whole tensor with slices and entries in one axis; none where no stride does that.
  std::optional<Tensor> merged(const Tensor& whole, const Place& place) const;
};

/// Whether and how a batch folds: where the operation says that entries are calls of their own, every output has them,
/// strides allow it, and no kernel that a slice would get is lost.
Fold fold_of(const Call& call, const ParamsBlock& params, const PlanOptions& options);

}  // namespace ejk::batches
