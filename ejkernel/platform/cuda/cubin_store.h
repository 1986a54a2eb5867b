// Compiled kernels in the store: what a process compiled once, later ones load. And those compiled ahead: an archive of
// them serves machines that have another compiler, or none.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ejkernel/core/store.h"
#include "ejkernel/platform/cuda/program.h"

namespace ejk::cuda {

/// Everything that a cubin depends on: the sources that its file reaches, the instance, the architecture, the options
/// and the compiler's version.
RecordKey cubin_key(const ProgramSpec& spec, std::string_view architecture, std::string_view compiler_version);

/// The same for a kernel that is compiled ahead: it names the CUDA version whose drivers load it, and no compiler.
RecordKey ahead_key(const ProgramSpec& spec, std::string_view architecture, int cuda_major);
/// The key under which an archive for other machines has a cubin of this build and of the compiler found here; a key of
/// that kind is its own. Null for other records.
EJK_API std::optional<RecordKey> ahead_key_of(const RecordKey& key);

/// The version of the compiler that the search finds ("13.0"), remembered in the store so that a process that finds all
/// its kernels there need not load it. Throws Unsupported without a compiler.
std::string compiler_version();

/// Null when it is not there, or is not what `keep` wrote.
std::optional<Compiled> find_cubin(const RecordKey& key);
/// One that was compiled ahead by a compiler whose code the driver takes, the newest first. Null also where
/// EJKERNEL_NVRTC names a compiler: who does wants its code.
std::optional<Compiled> find_compiled_ahead(const ProgramSpec& spec, std::string_view architecture);
void keep_cubin(const RecordKey& key, const Compiled& compiled, std::string_view compiler_version);
/// What such a record holds; null for any other.
std::optional<Compiled> cubin_of(const Record& record);

}  // namespace ejk::cuda
