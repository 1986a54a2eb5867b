// A CUDA driver and a compiler that are not there: every path of the host half runs on any machine, counted, checked
// against the limits of the devices that it plays, and failing where a test wants it to.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ejk::testing {

/// While one lives, the library's driver, compiler and store are its own. Device memory is host memory; kernels are
/// launched and do nothing. The compiler refuses instances whose text holds "broken"; those with "spills" spill, and those
/// with "serialises" are a C7510. One at a time.
class FakeCuda {
 public:
  explicit FakeCuda(int num_devices = 1);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  struct Launch {
    std::string instance;
    int device = 0;
    unsigned grid[3] = {}, block[3] = {}, shared_bytes = 0;
    const void* stream = nullptr;
  };
  struct Map {
    int rank = 0, swizzle = 0;
    std::vector<uint64_t> sizes = {}, strides = {};
    std::vector<uint32_t> box = {};
  };

  /// Calls of one driver function, or of all.
  int64_t calls(const std::string& function) const;
  int64_t calls() const;
  /// The k-th driver call from now on answers with this code, once (1 = the next one); 0 disarms.
  void fail_call(int64_t k, int code = 700);
  bool has_failed() const;  ///< the call that was to fail came
  /// Every allocation answers out of memory from now on, or no longer.
  void set_out_of_memory(bool full);

  const std::vector<Launch>& launches() const;
  const std::vector<Map>& maps() const;
  int64_t compilations() const;
  size_t num_blocks() const;     ///< device allocations that are not freed
  size_t num_contexts() const;   ///< contexts pushed on this thread and not popped
  const std::string& store_root() const;
  /// Forgets what was compiled in this process, as a new process would; the store stays.
  void restart();


 private:
  std::string root_;
};

}  // namespace ejk::testing
