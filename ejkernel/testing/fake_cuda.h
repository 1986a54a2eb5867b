// A CUDA driver and a compiler that are not there: every path of the host half runs on any machine, counted, checked
// against the limits of the devices that it plays, and failing where a test wants it to.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::testing {

/// While one lives, the library's driver, compiler and store are its own. Device memory is host memory; kernels are
/// launched and do nothing. The compiler refuses instances whose text holds "broken"; those with "spills" spill, and
/// those with "serialises" are a C7510. Launches, once warm, allocate nothing, so that what does can be counted. One at
/// a time.
class FakeCuda {
 public:
  explicit FakeCuda(int num_devices = 1);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  struct Launch {
    std::string_view instance;
    int device = 0;
    unsigned grid[3] = {}, block[3] = {}, shared_bytes = 0;
    const void* stream = nullptr;
  };
  struct Map {
    int rank = 0, swizzle = 0;
    std::array<uint64_t, 5> sizes = {};
    std::array<uint64_t, 4> strides = {};  ///< of axes 1 to rank - 1
    std::array<uint32_t, 5> box = {};
  };

  /// Calls of one driver function, or of all.
  int64_t calls(const std::string& function) const;
  int64_t calls() const;
  /// The k-th driver call from now on answers with this code, once (1 = the next one); 0 disarms.
  void fail_call(int64_t k, int code = 700);
  /// The driver function that failed so; empty while it has not been called.
  std::string failed_call() const;
  /// Every allocation answers out of memory from now on, or no longer.
  void set_out_of_memory(bool full);

  const std::vector<Launch>& launches() const;
  const std::vector<Map>& maps() const;
  int64_t compilations() const;
  size_t num_blocks() const;    ///< device allocations that are not freed
  size_t num_modules() const;   ///< loaded and not unloaded
  size_t num_contexts() const;  ///< contexts pushed on this thread and not popped
  const std::string& store_root() const;
  /// Forgets what was compiled in this process, as a new process would; the store stays.
  void restart();

 private:
  std::string root_, former_store_;
};

}  // namespace ejk::testing
