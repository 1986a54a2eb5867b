// The two 16-bit floats that matrix units take, as host and device name them.
#pragma once

namespace ejk::cuda {

enum class HalfType : int { bf16, f16 };

}  // namespace ejk::cuda
