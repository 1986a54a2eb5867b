// A planned call as text and back: what stands in a program that somebody else runs (xla_handlers.h), possibly in
// another process than the one that planned it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/runtime/plan.h"
#include "ejkernel/runtime/recorded.h"

namespace ejk {

/// What the text holds.
struct PlannedCall {
  Invocation call = {};                                  ///< its options name the kernel
  ConfigValues config = {};                              ///< the kernel's, chosen when the call was planned
  std::string label = {};                                ///< "ejkernel.flash_attention@1:<digest of the problem>"
  std::optional<std::vector<std::string>> outputs = {};  ///< the wanted ones; none: all of them
};

/// Of a plan's problem: what profiles, lowered programs and the store call it.
EJK_API std::string label_of(const Plan& plan);

/// One line: {"version": 1, "label", "config": {…}, "call": {…}}, the call as recorded ones are written (recorded.h).
/// Who hands it on may add "outputs": [names], the ones that are wanted.
EJK_API std::string planned_call_json(const Plan& plan);

/// The same back. InvalidArgument for a text of another version, and for what the operation would refuse.
EJK_API PlannedCall planned_call_from_json(std::string_view json);

/// The plan that was written: its kernel with its config, nothing is chosen again. Unsupported where this machine or
/// version of the library has no such kernel, InvalidArgument where the config is no longer legal.
EJK_API Plan plan_of(const PlannedCall& planned);

}  // namespace ejk
