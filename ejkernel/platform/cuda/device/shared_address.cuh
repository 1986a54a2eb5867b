#pragma once

#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

/// Address of an object in shared memory as PTX takes it.
EJK_DEVICE uint32 shared_address(const void* object) { return static_cast<uint32>(__cvta_generic_to_shared(object)); }

}  // namespace ejk::cuda
