// A lab in a process of its own: candidates that nobody has seen before may crash, hang or eat the memory there.
#pragma once

#include <sys/types.h>

#include <string>

#include "ejkernel/runtime/search.h"

namespace ejk {

/// Passes every question on to a forked child, which asks `inside`. A child that ends, or does not answer within
/// `patience_seconds`, costs its candidate the race and is replaced. Locks that other threads held when the child was
/// forked stay locked in it: such a child counts as hanging.
class WorkerLab : public TuningLab {
 public:
  WorkerLab(TuningLab& inside, double patience_seconds) : inside_(inside), patience_(patience_seconds) {}
  ~WorkerLab() override { end(); }
  WorkerLab(const WorkerLab&) = delete;
  WorkerLab& operator=(const WorkerLab&) = delete;

  std::string admit(size_t candidate) override;
  double sample(size_t candidate) override;
  bool is_out_of_time() override { return inside_.is_out_of_time(); }

 private:
  enum class Question : uint64_t { admit, sample };
  /// What the child says; false: it is gone, and `why_` says how.
  bool ask(Question question, size_t candidate, void* answer, size_t bytes);
  bool start();
  void end();
  [[noreturn]] void serve(int socket);

  TuningLab& inside_;
  double patience_;
  pid_t child_ = 0;
  int socket_ = -1;
  std::string why_;
};

}  // namespace ejk
