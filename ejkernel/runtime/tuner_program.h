// Candidates tried by the program `ejk`, started for it: a GPU's context cannot be forked, and does not outlive a
// fault.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>

#include "ejkernel/core/export.h"
#include "ejkernel/runtime/plan.h"

namespace ejk {

/// Path of the program `ejk` of the installation that this program or the library belongs to; empty without one.
std::string tuner_program();

/// Everything that the program needs to know, in memory that it shares.
class TuningJob {
 public:
  /// `inputs` have data in host memory; the first candidate is the heuristic's config. Throws Unsupported without the
  /// memory.
  TuningJob(const Plan& plan, std::span<const Tensor> inputs, std::span<const ConfigBlock> candidates);
  ~TuningJob();
  TuningJob(const TuningJob&) = delete;
  TuningJob& operator=(const TuningJob&) = delete;

  /// Starts the program, which serves the job on the other end of `socket` (tuner_worker.h); 0 when it could not.
  pid_t start_worker(int socket) const;

 private:
  std::string program_;
  int memory_ = -1;
};

/// What `ejk tune --worker` does, with the socket as standard input and the job's memory as file descriptor 3. The exit
/// code.
EJK_API int run_tuner_program();

}  // namespace ejk
