// The handlers that XLA calls for our operations inside a JAX program: one set for all operations, one per platform.
//
// A custom call has one attribute, `call`, the text of a planned call (planned_call.h); its operands are the present
// inputs in declared order, its results the wanted ones of the present outputs and, where the plan needs one, the
// workspace as uint8[n].
//   instantiate  reads the text and plans: the kernel and config it names, compiled if nobody has yet
//   initialize   (cuda) loads the plan's code on a device that it was not made for
//   execute      launches; may become part of a command buffer
#pragma once

#include "ejkernel/core/export.h"
#include "ejkernel/runtime/registry.h"

namespace ejk {

/// Addresses of the XLA_FFI_Handlers that jax.ffi registers; a stage that a platform does not have is null.
struct XlaHandlers {
  void* instantiate = nullptr;
  void* initialize = nullptr;
  void* execute = nullptr;
};

/// For Platform::cpu and Platform::cuda. Unsupported for others, and where the library was built without XLA's headers.
EJK_API XlaHandlers xla_handlers(Platform platform);

}  // namespace ejk
