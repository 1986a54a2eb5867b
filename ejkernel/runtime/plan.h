// Plan: a choice bound to one call's exact shapes and parameters; running it only launches.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/choose.h"

namespace ejk {

/// Where and with what a plan runs. Without a workspace of at least `workspace_bytes()` (64-byte aligned) a plan that
/// needs one refuses: `run` never allocates.
struct RunOptions {
  void* stream = nullptr;
  std::span<std::byte> workspace = {};
  uint32_t* status = nullptr;  ///< optional word of the call's device; fault bits are OR-ed in
};

/// Immutable, thread-safe, cheap to copy. `run` does not allocate, lock, synchronise a device or read a tensor's
/// contents on the host side of a device call. (Recording calls, recorded.h, does the first two.)
class EJK_API Plan {
 public:
  /// Validates, chooses and binds. Tensors are specs here: their data is not looked at, only how it is aligned.
  static Plan make(std::string_view operation, std::span<const Tensor> inputs, const ParamsBlock& params,
                   const PlanOptions& options = {});
  static Plan make(std::shared_ptr<const RegisteredOperation> operation, std::span<const Tensor> inputs,
                   const ParamsBlock& params, const PlanOptions& options = {});

  /// The same plan for another device that is like this one's (equal fingerprints): nothing is chosen again, the
  /// kernel's code is loaded there. InvalidArgument for a device of another kind.
  Plan on(Device device) const;

  /// Whether `make` would make this very plan of the call, on this thread and now.
  bool serves(const RegisteredOperation& operation, std::span<const Tensor> inputs, const ParamsBlock& params,
              const PlanOptions& options) const;

  /// Launches. Tensors must equal the planned specs; an absent output is not computed or not written. One that aliases
  /// an input is that input: given or absent, the input's memory is written.
  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs, const RunOptions& options = {}) const;

  const Operation& operation() const;
  const KernelInfo& kernel() const;
  const Choice& choice() const;
  const PlanOptions& options() const;  ///< what was asked for
  const Dims& dims() const;
  int form() const;
  std::span<const Tensor> inputs() const;  ///< specs; of their data only the address modulo 64 is kept
  const ParamsBlock& params() const;
  std::span<const OutputSpec> outputs() const;
  Device device() const;
  size_t workspace_bytes() const;
  Work work() const;
  /// What its kernel and config were chosen for; for as long as a copy of the plan lives.
  ChooseRequest request() const;

  /// Freshly allocated outputs in field order, on a device in the order of `stream`; absent where the call has none,
  /// and where one aliases an input. Those of a GPU that take up to 64 KiB together share a block, which is free once
  /// all of them are gone.
  std::vector<Array> allocate_outputs(void* stream = nullptr) const;

 private:
  struct State;
  explicit Plan(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

/// In place of outputs that alias an input, views of that input: its memory stays the caller's.
EJK_API void view_aliased(std::span<const OutputSpec> specs, std::span<const Tensor> inputs,
                          std::vector<Array>& outputs);

/// Tier 3 by hand: from now on the plan's problem and kernel get its config with these values set over it.
/// InvalidArgument for an unknown field or an illegal value. Plans that exist keep theirs.
EJK_API void set_memory_config(const Plan& plan, const ConfigValues& values);

}  // namespace ejk
