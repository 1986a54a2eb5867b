// Throws what is no std::exception.
#include <ejkernel/runtime/plugins.h>

EJK_PLUGIN(registry) { throw 1; }
