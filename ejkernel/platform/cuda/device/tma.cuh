// The copy engine of Hopper (TMA): one thread moves a whole tile between global and shared memory.
#pragma once

#include "ejkernel/platform/cuda/device/mbarrier.cuh"
#include "ejkernel/platform/cuda/device/shared_address.cuh"
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

/// Loads contiguous bytes: a multiple of 16, both ends aligned to 16.
EJK_DEVICE void load_bytes(void* to, const void* from, int bytes, Mbarrier& full) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&full))
               : "memory");
}

/// Adds contiguous floats in shared memory to as many in global memory, one after the other in any order; a group of
/// its own. What wrote them must have passed fence_shared_writes() and a barrier.
EJK_DEVICE void add_floats(float* to, const void* from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Until the thread's groups have been added.
EJK_DEVICE void wait_groups() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
/// Until their shared memory has been read, and may be written anew.
EJK_DEVICE void wait_groups_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

/// Waits until a counter in global memory has come to `turn`; what the copy engine adds afterwards comes after what it
/// had added before the counter was moved there by pass_turn().
EJK_DEVICE void wait_for_turn(const int* counter, int turn) {
  int now;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
  } while (now != turn);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
/// Where a counter stands. It counts as waited for after the next pass_turn().
EJK_DEVICE int turn_of(const int* counter) {
  int now;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
  return now;
}
/// After wait_groups().
EJK_DEVICE void pass_turn(int* counter) {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  asm volatile("red.relaxed.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// Ordinary stores to shared memory become visible to the copy engine and the matrix units; a barrier must follow.
EJK_DEVICE void fence_shared_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace ejk::cuda
