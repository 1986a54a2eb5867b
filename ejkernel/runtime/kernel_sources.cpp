#include <fmt/format.h>

#include <algorithm>

#include "ejkernel/runtime/kernel_sources.h"

namespace ejk {

std::string_view sources_digest(const KernelInfo& kernel) {
  const auto all = kernel_sources();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& known) { return known.file == kernel.file; });
  return found == all.end() ? std::string_view() : found->digest;
}

std::string revision_of(const KernelInfo& kernel) {
  const std::string_view digest = sources_digest(kernel);
  return fmt::format("{}{}{}", kernel.revision, digest.empty() ? "" : "+", digest);
}

}  // namespace ejk
