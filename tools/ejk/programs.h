// Kernels that the process may load without compiling them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace ejk::tool {

/// How many kernels of this build come compiled (`ejk cache export --programs`) in the places that the store reads and
/// does not write, by architecture.
std::map<std::string, int64_t> programs_compiled_ahead();

}  // namespace ejk::tool
