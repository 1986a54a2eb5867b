// Why a call gets the kernel and config it gets: every kernel's answer, every tier's answer, and what came of it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/runtime/choose.h"
#include "ejkernel/runtime/plan.h"

namespace ejk {

struct Explanation {
  std::string problem;  ///< the tuning key as text
  std::string digest;   ///< and as 32 hexadecimal digits
  Trail trail;
  std::string kernel;  ///< empty when nothing serves; `error` says why
  Platform platform = Platform::reference;
  std::string config;
  Tier tier = Tier::error;
  std::string error;
};

/// Decides again, writing down the trail. Looks at no data; throws only for an invalid call (InvalidArgument).
EJK_API Explanation explain(std::string_view operation, std::span<const Tensor> inputs, const ParamsBlock& params,
                            const PlanOptions& options = {});

/// A few aligned lines for people.
EJK_API std::string to_text(const Explanation& explanation);

}  // namespace ejk
