// The device sources that the library carries as text: every *.cu and *.cuh of the tree and the headers that both
// halves of a kernel include (cmake/kernels.cmake). A file's path in the tree is its name in an #include.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/export.h"

namespace ejk::cuda {

struct Source {
  std::string_view path;
  std::string_view text;
};

/// All of them, by path.
EJK_API std::span<const Source> sources();

/// A file, then everything that it includes, directly or not. Internal for a path or an include that is not carried.
EJK_API std::vector<Source> reachable_sources(std::string_view path);

/// Stands for their paths and texts: the revision of what is compiled from them.
EJK_API Digest digest_of(std::span<const Source> sources);

}  // namespace ejk::cuda
