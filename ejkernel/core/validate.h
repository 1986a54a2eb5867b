// Checks a call against its operation's declaration. Every failure is an InvalidArgument of one sentence:
// "operation: argument must expected, got given; what to do".
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejkernel/core/dims.h"
#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"

namespace ejk {

/// Builds the one error text: `invalid("flash_attention", "logits_soft_cap", "be > 0", "-1", "leave it out for none")`.
[[noreturn]] EJK_API void throw_invalid(std::string_view operation, std::string_view argument,
                                        std::string_view expected, std::string_view got, std::string_view fix);

/// What one output of a call looks like; absent when the call has no such output.
struct OutputSpec {
  DType dtype = DType::f32;
  Shape shape = {};
  bool present = false;
  int aliased_input = -1;  ///< number of the input whose memory it is; -1: it has memory of its own
};

/// Dimensions and outputs of a valid call.
struct CheckedCall {
  int form = 0;
  Dims dims = {};
  std::vector<OutputSpec> outputs = {};
};

/// Shapes, dtypes, strides, devices and parameters. Data pointers are not looked at, so specs without data pass.
EJK_API CheckedCall check_call(const Operation& operation, std::span<const Tensor> inputs, const ParamsBlock& params);

/// What holds for any tensor, whatever its contract: a dtype, a device, a stride per axis, extents from 0 on, elements
/// within the address space.
EJK_API void check_tensor(const Operation& operation, const TensorField& field, const Tensor& tensor);
/// What a call writes has each element in a place of its own.
void check_writable(const Operation& operation, const TensorField& field, const Tensor& tensor);
/// What a contract's rule makes of the dtype of the field that it refers to.
EJK_API DType dtype_by_rule(const Operation& operation, const ParamsBlock& params, DTypeRule rule, DType of);
/// One tensor per declared input, absent ones included.
EJK_API void check_count(const Operation& operation, std::span<const Tensor> inputs);

/// What `check_call` leaves out because it needs real tensors: null data, alignment, and outputs that equal their spec,
/// do not overlap themselves and live on the call's device, or are the very input that they alias. Cheap: part of every
/// run.
EJK_API void check_buffers(const Operation& operation, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                           std::span<const OutputSpec> specs, std::span<const Tensor> planned_inputs);

/// One parameter by name, with its type and range checked. Throws InvalidArgument naming the legal ones.
EJK_API void set_param(const Operation& operation, ParamsBlock& params, std::string_view name, const ParamValue& value);
EJK_API std::string to_string(const ParamValue& value);

/// Index of a field, or -1.
EJK_API int find_input(const Operation& operation, std::string_view name);
EJK_API int find_output(const Operation& operation, std::string_view name);

}  // namespace ejk
