// Calls recorded while a program runs, so that all it needs can be tuned in one go later (runtime/autotune.h). What is
// kept are shapes, dtypes, parameters and the numbers of small index tensors in host memory: never other data, never a
// device's memory, and nothing that keeps a tensor alive.
//
//   EJKERNEL_OPS_RECORD=$PWD/calls.jsonl my_program && ejk tune --recorded calls.jsonl
//
// or in the program itself: start_recording(); …; autotune_recorded(get_invocations());
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/core/tensor.h"
#include "ejkernel/runtime/choose.h"
#include "ejkernel/runtime/plan.h"

namespace ejk {

/// A call and how often it came. Two calls are one when they agree in everything but the contents of their tensors:
/// configs never depend on those.
struct Invocation {
  std::string operation = {};
  std::vector<Tensor> inputs = {};  ///< in the order of the declaration, without data
  ParamsBlock params = {};
  PlanOptions options = {};  ///< the platform, backend and kernel that it asks for; nothing else
  /// By input, in row-major order: what the first such call had in an index tensor; empty where nothing is kept.
  std::vector<std::vector<int64_t>> samples = {};
  int64_t count = 1;
  double seconds = 0;  ///< of all its runs together; 0: not known, as on a GPU

  bool has_samples() const {
    return std::any_of(samples.begin(), samples.end(), [](const auto& sample) { return !sample.empty(); });
  }
};

/// The most distinct calls that are kept; further ones are only counted.
inline constexpr size_t kMaxInvocations = 4096;
/// An index tensor (int32 or int64, in host memory) is kept whole when it takes no more bytes than these, else not at
/// all.
inline constexpr int64_t kMaxSampleBytes = 4096;

/// From now on every run of a plan, and with it every call by name, is recorded, whatever EJKERNEL_OPS_RECORD says.
/// Calls that name their config are not: there is nothing to tune. With a file, each distinct call is also appended to
/// it as a line of JSON when it came for the 1st, 2nd, 4th, 8th … time, and with its count since the line before, so
/// that the file is of use however the process ends, and several processes may share it. A file that cannot be written
/// is no error of a call: it is logged once, and recording goes on in memory.
EJK_API void start_recording(const std::string& file = "");
/// And from now on none is. What the file does not tell yet is appended.
EJK_API void stop_recording();

/// By hand, whether calls are recorded or not: this plan once more. `inputs`, when given, are those of a call of it
/// (InvalidArgument otherwise), and only their small index tensors are looked at.
EJK_API void record_invocation(const Plan& plan, std::span<const Tensor> inputs = {});

/// What was recorded so far, in the order in which it first came.
EJK_API std::vector<Invocation> get_invocations();
/// How many calls came that were not kept, because kMaxInvocations others were there.
EJK_API int64_t num_dropped_invocations();
/// Forgets all of them. A file stays as it is.
EJK_API void clear_invocations();

/// What this thread runs during the object's lifetime is not recorded: for runs that are no use of a program's.
class EJK_API Unrecorded {
 public:
  Unrecorded();
  ~Unrecorded();
  Unrecorded(const Unrecorded&) = delete;
  Unrecorded& operator=(const Unrecorded&) = delete;
};

/// One line: {"operation", "device", "count", "seconds", "platform", "backend", "kernel", "inputs": [{"name", "dtype",
/// "shape", "strides", "values"} …], "params": {…}}. Left out are seconds that are not known, choices that it does not
/// ask for, absent inputs, the strides of contiguous ones, and values that were not kept.
EJK_API std::string to_json(const Invocation& invocation);
/// The same back. Parameters that are left out have their defaults, a device is "cpu", a count 1. InvalidArgument names
/// the field that is wrong, or says why the operation would refuse the call.
EJK_API Invocation invocation_from_json(std::string_view json);

/// Writes them to a file, a line each. InvalidArgument when it cannot be written; then it is as it was.
EJK_API void save_invocations(const std::string& file, std::span<const Invocation> invocations);
/// The calls of a file that was saved or recorded into: lines of one call are added up. InvalidArgument names file,
/// line and field. What stands behind the last line end was not finished, and is left out.
EJK_API std::vector<Invocation> load_invocations(const std::string& file);

}  // namespace ejk
