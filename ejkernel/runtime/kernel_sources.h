// What a kernel was compiled from: its file and, below ops/ and platform/, everything behind it. A digest of them
// stands in the key of tuned configs, so that a change of a kernel is a miss (cmake/digest_sources.cmake).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"

namespace ejk {

struct KernelSources {
  std::string_view file;  ///< its path in the tree
  std::string_view digest;
};
/// Of every file of the library that makes kernels.
std::span<const KernelSources> kernel_sources();

/// Empty for a kernel that is not the library's: its author's revision has to say what changed.
std::string_view sources_digest(const KernelInfo& kernel);

/// "1+a83881769393": the kernel's revision, and the digest where there is one.
EJK_API std::string revision_of(const KernelInfo& kernel);

}  // namespace ejk
