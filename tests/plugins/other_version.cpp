// Says that it was built for another version; its entry point must not be called.
#include <cstdint>
#include <cstdlib>

extern "C" {
__attribute__((visibility("default"))) extern const uint64_t ejk_plugin_abi;
const uint64_t ejk_plugin_abi = uint64_t{99} << 32 | 0x1234;
__attribute__((visibility("default"))) void ejk_plugin_register(void*);
void ejk_plugin_register(void*) { std::abort(); }
}
