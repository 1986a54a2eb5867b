#include "ejkernel/platform/cpu/bf16_dot.h"

#include <string>

#include "ejkernel/platform/cpu/amx.h"
#include "ejkernel/platform/cpu/simd_target.h"

namespace ejk::cpu {

int best_bf16_dot(const DeviceProperties& device) {
  if (device.bf16_speedup > 0 && device.bf16_speedup < 1) return 0;
  if (matrix_unit() != nullptr) return 2;
  return has_bf16_dot() ? 1 : 0;
}

Support bf16_dot_runs_here(int bf16_dot, std::string_view field) {
  if (bf16_dot < 2 || matrix_unit() != nullptr) return Support::yes();
  return Support::no(std::string(field) + "=" + std::to_string(bf16_dot) + " needs AMX, which " +
                     (has_amx() ? "Linux does not let this process use" : "this processor has not"));
}

}  // namespace ejk::cpu
