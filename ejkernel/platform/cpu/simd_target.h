// Which of the compiled instruction sets the SIMD kernels of this process use.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ejk::cpu {

/// Highway's name of the one in use: "AVX3_ZEN4".
std::string_view simd_target();

/// True when it has instructions that multiply pairs of bf16 and add to float32.
bool has_bf16_dot();

/// Those that were compiled and that this machine has, best first.
std::vector<std::string_view> simd_targets();

/// Makes kernels use another one of them while it lives. For tests: no kernel may run when it comes or goes.
class ScopedSimdTarget {
 public:
  explicit ScopedSimdTarget(std::string_view name);
  ~ScopedSimdTarget();
  ScopedSimdTarget(const ScopedSimdTarget&) = delete;
  ScopedSimdTarget& operator=(const ScopedSimdTarget&) = delete;
};

}  // namespace ejk::cpu
