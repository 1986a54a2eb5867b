// The C++ API: operations as functions, plan/run, vjp, batches, device groups, explain, tuning, recorded calls, timing,
// the registry, DLPack, sequence helpers.
#pragma once

#include "ejkernel/core/dlpack.h"
#include "ejkernel/core/events.h"
#include "ejkernel/core/sequence.h"
#include "ejkernel/ops/operations.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/autotune.h"
#include "ejkernel/runtime/batch.h"
#include "ejkernel/runtime/device_group.h"
#include "ejkernel/runtime/explain.h"
#include "ejkernel/runtime/recorded.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/runtime/timer.h"
