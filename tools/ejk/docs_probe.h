// What can only be learned by asking: which calls a kernel declines, and how an operation words its errors.
#pragma once

#include <string>
#include <vector>

#include "ejkernel/core/operation.h"

namespace ejk::tool {

struct Decline {
  std::string reason;
  std::vector<std::string> calls;  ///< "f64", "packed", "bias", "causal"
};
/// Asks the kernel about one call per dtype, form, optional input and parameter; those that it declines, by reason.
std::vector<Decline> declines(const std::string& operation, const KernelInfo& kernel);

/// The sentences of some wrong calls: nothing given, a wrong rank, a length that differs, each range's end.
std::vector<std::string> example_errors(const std::string& operation);

}  // namespace ejk::tool
