// The right version, but nothing to call.
#include <ejkernel/runtime/plugins.h>

extern "C" {
EJK_API extern const uint64_t ejk_plugin_abi;
const uint64_t ejk_plugin_abi = ejk::kPluginAbi;
}
