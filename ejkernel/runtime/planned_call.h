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
  Invocation call = {};      ///< its options name the kernel
  ConfigValues config = {};  ///< the kernel's, chosen when the call was planned
  std::string label = {};  ///< "ejkernel.flash_attention@1:<digest of the problem>"; empty where it was written without
  std::optional<std::vector<std::string>> outputs = {};  ///< the wanted ones; none: all of them
  bool status = false;                                   ///< the status word is wanted as well
};

/// Of a plan's problem: what profiles, lowered programs and the store call it.
EJK_API std::string label_of(const Plan& plan);

/// One line: {"version": 1, "label", "problem", "config": {…}, "call": {…}}, the call as recorded ones are written
/// (recorded.h). EJKERNEL_OPS_STAMP says whether label and problem, a text for people, are there. Who hands it on may
/// add "outputs": [names], the ones that are wanted, and "status": true, which wants the status word.
EJK_API std::string planned_call_json(const Plan& plan);

/// The same back, with whatever stamp. InvalidArgument for a text of another version, and for what the operation would
/// refuse.
EJK_API PlannedCall planned_call_from_json(std::string_view json);

/// The plan that was written: its kernel with its config, nothing is chosen again. Unsupported where this machine or
/// version of the library has no such kernel, InvalidArgument where the config is no longer legal.
EJK_API Plan plan_of(const PlannedCall& planned);

/// The calls in the text of a lowered program, in order and as often as they stand there: StableHLO or HLO, before XLA
/// compiled it or after. InvalidArgument says where one stands that cannot be read.
EJK_API std::vector<PlannedCall> planned_calls_in(std::string_view program);
/// The same of a file. InvalidArgument also when it cannot be read.
EJK_API std::vector<PlannedCall> load_planned_calls(const std::string& file);

}  // namespace ejk
