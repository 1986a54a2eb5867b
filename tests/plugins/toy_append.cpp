// The toy operation that writes one of its inputs, for programs in other languages.
#include <ejkernel/runtime/plugins.h>

#include "ejkernel/testing/toy_append.h"

EJK_PLUGIN(registry) { registry.add_operation<ejk::testing::ToyAppend>(); }
