// A matrix unit that is not there: AMX's instructions by their definition, number by number, so that what multiplies in
// tiles can be judged on any machine.
#pragma once

#include <cstdint>

#include "ejkernel/platform/cpu/amx.h"

namespace ejk::testing {

/// TDPBF16PS as Intel defines it: the even and the odd numbers of the summed dimension are summed in two chains of
/// fused multiply-adds, whose sums are added, and then to the tile. Every step rounds to nearest, ties to even, and
/// takes a subnormal number, given or computed, for 0. Multiplying on a thread that is not configured throws, where the
/// processor would raise an invalid-opcode exception.
const cpu::MatrixUnit& emulated_matrix_unit();

/// While it lives, it is the matrix unit of this machine. One at a time.
class ScopedEmulatedMatrixUnit {
 public:
  ScopedEmulatedMatrixUnit();
  int64_t num_products() const;    ///< of matrices, by all threads
  int64_t num_configured() const;  ///< threads that have tile state

 private:
  const cpu::ScopedMatrixUnit scoped_;
  const int64_t products_before_;
};

}  // namespace ejk::testing
