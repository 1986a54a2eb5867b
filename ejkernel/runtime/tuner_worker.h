// A lab in a process of its own: candidates that nobody has seen before may crash, hang or eat the memory there.
#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <optional>
#include <string>

#include "ejkernel/runtime/search.h"
#include "ejkernel/runtime/timer.h"

namespace ejk {

/// Starts a process that serves a lab on the other end of `socket`; 0 or less when it could not.
using StartWorker = std::function<pid_t(int socket)>;

/// Passes every question on to a child process. One that ends, or does not answer within `patience_seconds`, costs its
/// candidate the race and is replaced.
class WorkerLab : public TuningLab {
 public:
  WorkerLab(StartWorker start, double patience_seconds, double until)
      : start_(std::move(start)), patience_(patience_seconds), until_(until) {}
  ~WorkerLab() override { end(); }
  WorkerLab(const WorkerLab&) = delete;
  WorkerLab& operator=(const WorkerLab&) = delete;

  std::string begin() override { return start() ? "" : why_; }
  void expect(size_t candidate) override;
  std::string admit(size_t candidate) override;
  double sample(size_t candidate) override;
  bool is_out_of_time() override { return now_seconds() >= until_; }

 private:
  enum class Question : uint64_t { expect, admit, sample };
  struct Answer {
    double seconds = -1;
    uint64_t is_last = 0;            ///< the child ends after it
    std::array<char, 496> reason{};  ///< why not; empty: all is well
  };
  friend void serve_worker(TuningLab& lab, int socket);
  friend void refuse_work(int socket, const std::string& why);
  static bool send_answer(int socket, const std::string& reason, double seconds, bool is_last);

  bool start();
  bool send(Question question, size_t candidate);
  /// nullopt: the child is gone, and `why_` says how.
  std::optional<Answer> ask(Question question, size_t candidate);
  std::optional<Answer> receive(double seconds);
  void end();

  StartWorker start_;
  double patience_, until_;
  pid_t child_ = 0;
  int socket_ = -1;
  std::string why_;
};

/// The child's side: answers until nobody asks any more.
void serve_worker(TuningLab& lab, int socket);
/// The child's only answer when it has no lab to offer.
void refuse_work(int socket, const std::string& why);

/// A fork of this process, which asks `lab`. Locks that other threads held when it was forked stay locked in it: such a
/// child counts as hanging.
pid_t fork_worker(TuningLab& lab, int socket);

/// From now on this process may take half of the memory that is free, and then its allocations fail. Not under a
/// sanitizer, whose shadow memory is larger than any machine's.
void limit_memory();

}  // namespace ejk
