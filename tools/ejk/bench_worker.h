// The other side of an interleaved comparison: an `ejk bench … --worker` process, this build's or another's.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ejk::tool {

/// Digests of what a process runs: its own program and the library it loaded.
struct Identity {
  std::string program, library;
};
Identity own_identity();
/// Paths of the program and of the library of this process; the library's is empty when it is linked in.
std::string own_program();
std::string own_library();

class Worker {
 public:
  /// Starts `program bench arguments… --worker`; no shell. `library_folder`, when not empty, is looked in first for
  /// shared libraries. Returns once the call is planned and warm; InvalidArgument or Internal if it cannot be.
  Worker(const std::string& program, std::vector<std::string> arguments, const std::string& library_folder);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Seconds per run.
  double sample();
  /// What its first plan took, in a process that had used the device before.
  double first_plan_seconds() const { return first_plan_seconds_; }
  const std::string& kernel() const { return kernel_; }
  const std::string& config() const { return config_; }
  const Identity& identity() const { return identity_; }

 private:
  std::string read_line();
  [[noreturn]] void fail(const std::string& what) const;

  std::string program_;
  pid_t pid_ = -1;
  int socket_ = -1;
  std::string unread_;
  double first_plan_seconds_ = 0;
  std::string kernel_, config_;
  Identity identity_;
};

}  // namespace ejk::tool
