// The C++ API: operations as functions, plan/run, vjp, the registry, DLPack.
#pragma once

#include "ejkernel/ops/operations.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/registry.h"
