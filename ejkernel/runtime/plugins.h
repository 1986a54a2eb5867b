// Plug-in libraries: kernels and operations from outside, named by EJKERNEL_PLUGINS or loaded by hand.
//
//   #include <ejkernel/ejkernel.h>
//   #include <ejkernel/runtime/plugins.h>
//
//   EJK_PLUGIN(registry) {                                        // once per library
//     registry.add<ejk::FlashAttention, MyKernel>(/*priority=*/1000);
//     registry.add_operation<MyOperation>();
//   }
//
// A plug-in runs with all the rights of its process. It is loaded only if its file, and every folder above it, belongs
// to the user or to root and nobody else can write there (a folder with the sticky bit, such as /tmp, may be written by
// others). Symbolic links are followed first: what they lead to is what counts. It is never unloaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ejkernel/core/error.h"
#include "ejkernel/core/export.h"
#include "ejkernel/core/version.h"
#include "ejkernel/runtime/registry.h"

namespace ejk {

namespace plugin_detail {
/// Changes with the version (before 1.0 with the minor one) and with every struct that both sides look into.
constexpr uint32_t layout() {
  uint32_t hash = 2166136261u;
  const auto mix = [&](size_t value) { hash = (hash ^ static_cast<uint32_t>(value)) * 16777619u; };
  for (size_t i = 0; i < kVersion.rfind('.'); ++i) mix(static_cast<unsigned char>(kVersion[i]));
  for (size_t size : {sizeof(Tensor), sizeof(TensorField), sizeof(ParamField), sizeof(ConfigField), sizeof(Operation),
                      sizeof(KernelInfo), sizeof(DeviceProperties), sizeof(RunContext), sizeof(Support), sizeof(Dims)})
    mix(size);
  return hash;
}
}  // namespace plugin_detail

/// Raised when the meaning of what a plug-in sees changes without its layout.
inline constexpr uint32_t kPluginInterface = 1;
/// What a plug-in exports as `ejk_plugin_abi`; it must equal the library's.
inline constexpr uint64_t kPluginAbi = uint64_t{kPluginInterface} << 32 | plugin_detail::layout();

/// Loads a library and lets it register; all or nothing. InvalidArgument for a file that is missing, not trusted, not
/// loadable, not a plug-in or of another version, and for a registration that throws.
EJK_API void load_plugin(const std::string& path);

/// What became of one plug-in of EJKERNEL_PLUGINS. A failed one is logged once as an error; calls go on without it.
struct PluginReport {
  std::string path;
  ErrorCode code = ErrorCode::ok;
  std::string error = {};  ///< empty: loaded
};
/// All of them, in order. Loads them if no call has done so yet.
EJK_API std::vector<PluginReport> plugin_reports();

/// Loads what EJKERNEL_PLUGINS names, the first time; KernelRegistry::instance() calls it.
void load_environment_plugins(KernelRegistry& registry);

}  // namespace ejk

#define EJK_PLUGIN(registry)                                           \
  extern "C" EJK_API const uint64_t ejk_plugin_abi;                    \
  extern "C" const uint64_t ejk_plugin_abi = ::ejk::kPluginAbi;        \
  extern "C" EJK_API void ejk_plugin_register(::ejk::KernelRegistry&); \
  extern "C" void ejk_plugin_register([[maybe_unused]] ::ejk::KernelRegistry& registry)
