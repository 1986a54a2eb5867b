// From a kernel's source to its launch: compile (NVRTC), load, launch.
//
//   struct Cuda {                                   // a kernel's host half
//     static std::shared_ptr<const void> prepare(const Call<Op>& call, const Config& config, const DeviceProperties&
//     device) {
//       return cuda::load_program({.file = "ejkernel/ops/op/op_sm90.cu",
//                                  .instance = "ejk::op<" + cuda::literal(variant_of(call)) + ", " +
//                                  cuda::literal(config) + ">", .shared_bytes = shared_bytes(config)}, device);
//     }
//     static void run(const Call<Op>& call, const Config& config, const RunContext& context) {
//       cuda::launch(context, {.x = num_tiles}, {.x = 384}, map, call.outputs.out.data, scale);
//     }
//   };
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ejkernel/core/error.h"
#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/platform/cuda/literal.h"
#include "ejkernel/platform/cuda/nvrtc.h"

namespace ejk::cuda {

/// A kernel cannot be compiled, spills, or does not fit the device. The next kernel on the list gets the call.
class EJK_API CompileError : public Unsupported {
 public:
  explicit CompileError(const std::string& message) : Unsupported(message) {}
};

struct ProgramSpec {
  std::string_view file;  ///< an embedded source by its path in the tree: "ejkernel/ops/mean_pooling/mean_pooling.cu"
  std::string
      instance;  ///< a __global__ function with its template arguments: "ejk::mean_pooling<ejk::Config{4, true}>"
  int shared_bytes = 0;    ///< dynamic shared memory of the launch
  bool may_spill = false;  ///< for references: they are right, not fast
};

/// What the compiler says about a kernel.
struct Report {
  int registers = 0;
  int stack_bytes = 0;
  int spill_store_bytes = 0, spill_load_bytes = 0;
  int shared_bytes = 0;                    ///< static; the launch's comes on top
  std::vector<std::string> warnings = {};  ///< C75xx (wgmma serialised, setmaxnreg ignored) and everything it warns of
};
/// Reads NVRTC's log of a compilation with --ptxas-options=-v.
EJK_API Report parse_log(std::string_view log);

struct Compiled {
  std::vector<std::byte> cubin = {};
  std::string lowered_name = {};
  Report report = {};
  double seconds = 0;
};

/// "sm_90a" on compute capability 9.0, whose kernels use what only that architecture has; "sm_<capability>" elsewhere.
EJK_API std::string architecture_of(const DeviceProperties& device);

/// What the compiler is told besides the source.
std::vector<std::string> compile_options(std::string_view architecture);

/// Compiles for an architecture, which needs no device. Throws CompileError with the log's first errors; for spills,
/// unless `may_spill`; and for a C75xx. Nothing is cached.
EJK_API Compiled compile(const ProgramSpec& spec, std::string_view architecture, const Nvrtc& nvrtc = cuda::nvrtc());

/// A compiled kernel. It stays loaded for the life of the process, since graphs that captured its launches may be
/// replayed at any time.
class Program {
 public:
  Program(const ProgramSpec& spec, Compiled compiled);

  const std::string& instance() const { return instance_; }
  const Report& report() const { return compiled_.report; }
  int shared_bytes() const { return shared_bytes_; }
  double compile_seconds() const { return compiled_.seconds; }  ///< 0: it was in the store

  /// Throws CompileError when the device has less shared memory than a block takes.
  void check_fits(const DeviceProperties& device) const;
  /// Makes it ready to launch on a device: afterwards launches neither load nor lock. Throws Internal when the driver
  /// refuses it.
  void load_on(const DeviceProperties& device) const;
  /// Null before load_on.
  abi::CUfunction function(int ordinal) const {
    return functions_[static_cast<size_t>(ordinal)].load(std::memory_order_acquire);
  }

 private:
  std::string instance_;
  int shared_bytes_;
  Compiled compiled_;
  mutable std::mutex loading_;
  mutable std::array<std::atomic<abi::CUfunction>, kMaxDevices> functions_ = {};
};

/// A device of a named architecture ("sm_80", "sm_90a") that is not here: its number is -1, and programs for it are
/// compiled and not loaded. InvalidArgument for an architecture that the library knows no device of.
EJK_API DeviceProperties made_up_device(std::string_view architecture);

/// The program ready to launch on that device: from memory, else from the store (compiled ahead, or by a process
/// before), else compiled and put there. Threads that ask for the same one at the same time wait for one compilation;
/// different ones compile in parallel. Throws CompileError.
EJK_API std::shared_ptr<const Program> load_program(const ProgramSpec& spec, const DeviceProperties& device);

/// What load_program gives to this thread while the object lives, in order: the programs behind a kernel's code.
class EJK_API ProgramWatch {
 public:
  ProgramWatch();
  ~ProgramWatch();
  ProgramWatch(const ProgramWatch&) = delete;
  ProgramWatch& operator=(const ProgramWatch&) = delete;
  std::vector<std::shared_ptr<const Program>> programs;

 private:
  ProgramWatch* outer_;
};

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace program_detail {
EJK_API void launch(const Program& program, const RunContext& context, Dim3 grid, Dim3 block, int shared_bytes,
                    void** args);
}  // namespace program_detail

/// Launches on the context's stream and device; the calling thread's current context is given back. An empty grid
/// launches nothing. The arguments are copied as the kernel's parameters: their types must be the kernel's.
template <class... Args>
void launch(const Program& program, const RunContext& context, Dim3 grid, Dim3 block, int shared_bytes,
            const Args&... args) {
  static_assert((std::is_trivially_copyable_v<Args> && ...));
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))..., nullptr};
  program_detail::launch(program, context, grid, block, shared_bytes, pointers);
}

/// The same for a kernel whose code (`prepare`) is one program.
template <class... Args>
void launch(const RunContext& context, Dim3 grid, Dim3 block, const Args&... args) {
  const auto& program = *static_cast<const Program*>(context.code);
  launch(program, context, grid, block, program.shared_bytes(), args...);
}

}  // namespace ejk::cuda
