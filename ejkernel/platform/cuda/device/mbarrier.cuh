// Shared-memory barriers of Hopper (mbarrier): a phase completes when all expected threads have arrived and all
// announced bytes have landed. A ring of stages guarded by a full and an empty barrier each is how a loading warp feeds
// computing ones.
#pragma once

#include "ejkernel/platform/cuda/device/shared_address.cuh"
#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

struct Mbarrier {
  uint64 word;

  EJK_DEVICE void init(int num_arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(num_arrivals) : "memory");
  }
  EJK_DEVICE void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  /// Arrives and announces bytes that asynchronous copies will bring.
  EJK_DEVICE void arrive_expecting(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                 : "memory");
  }
  /// Waits until the phase of this parity has completed. A fresh barrier counts as having completed parity 1.
  EJK_DEVICE void wait(int parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "AGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra AGAIN;\n"
        "}" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

/// Makes initialised barriers visible to the copy engine; a block-wide barrier must follow.
EJK_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// Position in a ring of stages: where to read or write next, and the parity to wait for.
struct RingPosition {
  int stage = 0;
  int parity = 0;

  /// To the next stage; where it does not move, without a branch.
  EJK_DEVICE void advance(int num_stages, bool moves = true) {
    stage += moves;
    if (stage == num_stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace ejk::cuda
