// One typed C function per operation, as the text of a header over c_api.h: what ejkernel_ops.h is made from.
#pragma once

#include <span>
#include <string>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"

namespace ejk {

/// For each operation a struct of inputs, outputs and parameters, a function that sets its defaults, and one that runs
/// it. Of the library's own operations this is ejkernel_ops.h; the author of a plug-in may make one for theirs.
EJK_API std::string c_header(std::span<const Operation* const> operations, const std::string& include_guard);

}  // namespace ejk
