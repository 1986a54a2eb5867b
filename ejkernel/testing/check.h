// One kernel, one problem: every promise that can be looked at from outside.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ejkernel/core/operation.h"
#include "ejkernel/runtime/config.h"
#include "ejkernel/testing/operation.h"

namespace ejk::testing {

using Kernel = std::shared_ptr<const KernelInfo>;

/// How a kernel is run. Everything not given is drawn from the seed.
struct RunSettings {
  uint64_t seed = 0;
  Device device = {};                       ///< where it runs; problems stay in host memory
  void* stream = nullptr;                   ///< of that device
  bool plain = false;                       ///< contiguous outputs and the heuristic's config
  std::optional<uint32_t> wanted = {};      ///< bit o: output o is asked for; absent: all
  std::optional<ConfigValues> config = {};  ///< absent: one of the kernel's candidates
  Fence fence = Fence::bands;               ///< around outputs and workspace
};

/// What one run left behind.
struct Outcome {
  bool supported = true;
  std::string declined = {};        ///< why not
  std::vector<Array> outputs = {};  ///< contiguous copies; absent where not there, or not wanted and not an input
  uint32_t status = 0;
  std::string config = {};               ///< "block_q=64 block_k=32"
  std::vector<std::string> faults = {};  ///< broken promises, one sentence each
};

/// The elements of one tensor into another of the same dtype and shape, bit for bit. Last axes are dense.
void copy_elements(const Tensor& from, const Tensor& to);

/// Runs the kernel with outputs and workspace full of NaN (large numbers in integers), guard bands around every input,
/// output and the workspace, and looks afterwards for stray writes and changed inputs. An output that is not wanted is
/// absent. An input that an output aliases is a copy of the problem's, which the kernel may change. Nothing is judged.
Outcome run_guarded(const Problem& problem, const Kernel& kernel, const RunSettings& settings = {});

struct OutputVerdict {
  std::string name;
  double ratio = 0;  ///< r of the error rule
};
struct Verdict {
  bool supported = true;
  std::string declined = {};
  std::vector<OutputVerdict> outputs = {};
  std::vector<std::string> failures = {};
  bool vacuous = false;  ///< right, but nearly every expected element was 0: it proved little

  double ratio() const;
};

/// Two runs: all outputs, judged by the error rule; then a random part of them in other layouts, which must be
/// bit-equal to the first run's and leave the others untouched. On a GPU, elements that the answer leaves out are
/// compared with its reference kernel.
Verdict check_kernel(const Problem& problem, const Answer& answer, const Kernel& kernel,
                     const RunSettings& settings = {});

/// The failures as lines, each with the command that replays it; empty when there are none.
std::string report(const Problem& problem, const Kernel& kernel, const Verdict& verdict);

/// Arithmetic of the call, and whether a kernel accepts it (an invalid call: InvalidArgument).
double flops_of(const Problem& problem);
Support supports(const Problem& problem, const Kernel& kernel, Device device = {});

/// Above this a reference kernel takes seconds; tests let a faster one stand in, or leave the case to the table's rows.
inline constexpr double kReferenceFlops = 3e8;
/// On a GPU it has thousands of threads.
inline constexpr double kDeviceReferenceFlops = 3e10;
/// The name of its kernel there.
inline constexpr std::string_view kDeviceReference = "cuda_reference";
/// A reference that would take seconds for this problem.
bool is_too_slow(const Problem& problem, const Kernel& kernel);

/// Every kernel of the operation that serves the device, first to last.
std::vector<Kernel> kernels_of(const Operation& operation, Device device = {});

}  // namespace ejk::testing
