// The copy engine of Hopper (TMA): one thread moves a whole tile between global and shared memory.
#pragma once

#include "ejkernel/platform/cuda/device/mbarrier.cuh"
#include "ejkernel/platform/cuda/device/target.cuh"
#include "ejkernel/platform/cuda/device/tensor_map.cuh"

namespace ejk::cuda {

/// Loads the box at these coordinates (innermost first) into `to`; `full` learns of its bytes. What lies outside the
/// tensor arrives as zeros.
EJK_DEVICE void load_tile(void* to, const TensorMap& map, Mbarrier& full, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&full)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

/// Fetches the map itself ahead of its first use.
EJK_DEVICE void prefetch(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

}  // namespace ejk::cuda
