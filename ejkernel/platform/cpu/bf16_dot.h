// What multiplies pairs of bf16 numbers, as configs of CPU kernels name it (`bf16_dot`): 0 float32 multiply-adds after
// widening, 1 the vector instruction for pairs, 2 the matrix unit.
#pragma once

#include <string_view>

#include "ejkernel/core/operation.h"

namespace ejk::cpu {

/// The best of what there is. Some processors multiply pairs no faster than floats: where that was measured
/// (`bf16_speedup`), floats are the more exact choice.
int best_bf16_dot(const DeviceProperties& device);

/// No, with the reason, for a matrix unit that is not there. `field` is what the config calls the number.
Support bf16_dot_runs_here(int bf16_dot, std::string_view field = "bf16_dot");

}  // namespace ejk::cpu
