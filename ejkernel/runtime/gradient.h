// Reverse mode from names alone: a gradient operation's input is the forward's input of that name, the forward's output
// of that name, or `d_<output>`, the cotangent of that output; its parameter is the forward's of that name, or the
// extent of the forward's dimension of that name. Its outputs are named after the inputs they belong to.
#pragma once

#include <string>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/runtime/executor.h"

namespace ejk {

/// What a pullback needs of a forward call.
struct ForwardCall {
  std::string operation;
  std::vector<Tensor> inputs;
  ParamsBlock params;
  std::vector<Tensor> outputs;
};

/// The gradient's call for these cotangents (absent ones count as zero). The returned tensors view `forward`'s buffers,
/// the cotangents' and `zeros`', which owns what had to be filled in (on a device in the order of `stream`).
struct GradientCall {
  std::string operation;
  std::vector<Tensor> inputs;
  ParamsBlock params;
  std::vector<Array> zeros;
};
EJK_API GradientCall gradient_call(const ForwardCall& forward, std::span<const Tensor> cotangents,
                                   void* stream = nullptr);

/// Gradients in the field order of the gradient operation's outputs.
EJK_API std::vector<Array> pull_back(const ForwardCall& forward, std::span<const Tensor> cotangents,
                                     const CallOptions& options = {});

}  // namespace ejk
