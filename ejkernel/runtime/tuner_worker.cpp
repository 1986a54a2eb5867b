#include "ejkernel/runtime/tuner_worker.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "ejkernel/runtime/timer.h"

namespace ejk {
namespace {

/// Of a reason for rejection, in the fixed size that answers have.
constexpr size_t kReasonBytes = 512;
using Reason = std::array<char, kReasonBytes>;

bool send_all(int socket, const void* bytes, size_t count) {
  const auto* at = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t sent = send(socket, at, count, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent, count -= static_cast<size_t>(sent);
  }
  return true;
}

enum class Received { all, ended, too_late };

Received receive_all(int socket, void* bytes, size_t count, double seconds) {
  auto* at = static_cast<char*>(bytes);
  const double until = now_seconds() + seconds;
  while (count > 0) {
    const double left = until - now_seconds();
    pollfd ready = {.fd = socket, .events = POLLIN, .revents = 0};
    const int found = left > 0 ? poll(&ready, 1, static_cast<int>(left * 1000) + 1) : 0;
    if (found < 0 && errno == EINTR) continue;
    if (found <= 0) return Received::too_late;
    const ssize_t got = recv(socket, at, count, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Received::ended;
    at += got, count -= static_cast<size_t>(got);
  }
  return Received::all;
}

/// The child may take half of the memory that is free, and then its allocations fail. Not under a sanitizer, whose
/// shadow memory is larger than any machine's.
void limit_memory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const auto page = static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
  rlim_t pages_in_use = 0;
  if (FILE* statm = std::fopen("/proc/self/statm", "re")) {
    unsigned long size = 0;
    if (std::fscanf(statm, "%lu", &size) == 1) pages_in_use = size;
    std::fclose(statm);
  }
  const rlim_t most = (pages_in_use + static_cast<rlim_t>(sysconf(_SC_AVPHYS_PAGES)) / 2) * page;
  const rlimit limit = {.rlim_cur = most, .rlim_max = most};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

}  // namespace

std::string WorkerLab::admit(size_t candidate) {
  Reason reason = {};
  if (!ask(Question::admit, candidate, reason.data(), reason.size())) return why_;
  return reason.data();
}

double WorkerLab::sample(size_t candidate) {
  double seconds = -1;
  return ask(Question::sample, candidate, &seconds, sizeof seconds) ? seconds : -1;
}

bool WorkerLab::ask(Question question, size_t candidate, void* answer, size_t bytes) {
  if (child_ == 0 && !start()) return false;
  const std::array<uint64_t, 2> request = {static_cast<uint64_t>(question), candidate};
  const bool asked = send_all(socket_, request.data(), sizeof request);
  const Received received = asked ? receive_all(socket_, answer, bytes, patience_) : Received::ended;
  if (received == Received::all) return true;
  int state = 0;
  if (received == Received::too_late) kill(child_, SIGKILL);
  while (waitpid(child_, &state, 0) < 0 && errno == EINTR) {
  }
  close(socket_);
  child_ = 0;
  if (received == Received::too_late)
    why_ = fmt::format("it did not end within {} s", patience_);
  else if (WIFSIGNALED(state))
    why_ = fmt::format("it ended its process by signal {} ({})", WTERMSIG(state), strsignal(WTERMSIG(state)));
  else
    why_ = fmt::format("it ended its process with code {}", WEXITSTATUS(state));
  return false;
}

bool WorkerLab::start() {
  std::array<int, 2> sockets = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    why_ = "no socket could be made for a worker process";
    return false;
  }
  child_ = fork();
  if (child_ == 0) {
    close(sockets[0]);
    serve(sockets[1]);
  }
  close(sockets[1]);
  socket_ = sockets[0];
  if (child_ > 0) return true;
  close(socket_);
  child_ = 0;
  why_ = "no worker process could be forked";
  return false;
}

void WorkerLab::serve(int socket) {
  // What a candidate does to itself is no news for whoever handles signals in this process.
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM, SIGINT}) ::signal(signal, SIG_DFL);
  limit_memory();
  std::array<uint64_t, 2> request = {};
  while (receive_all(socket, request.data(), sizeof request, 1e6) == Received::all) {
    if (static_cast<Question>(request[0]) == Question::admit) {
      Reason reason = {};
      const std::string text = inside_.admit(request[1]);
      std::memcpy(reason.data(), text.data(), std::min(text.size(), reason.size() - 1));
      if (!send_all(socket, reason.data(), reason.size())) break;
    } else {
      const double seconds = inside_.sample(request[1]);
      if (!send_all(socket, &seconds, sizeof seconds)) break;
    }
  }
  _exit(0);
}

void WorkerLab::end() {
  if (child_ == 0) return;
  close(socket_);  // it reads the end of its questions and goes
  const double until = now_seconds() + 1;
  int state = 0;
  while (waitpid(child_, &state, WNOHANG) == 0) {
    if (now_seconds() > until) kill(child_, SIGKILL);
    usleep(1000);
  }
  child_ = 0;
}

}  // namespace ejk
