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

/// For a child that starts, and makes the device, the data and the heuristic's results ready.
constexpr double kStartSeconds = 60;

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

}  // namespace

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

void WorkerLab::expect(size_t candidate) {
  if (child_ != 0 || start()) send(Question::expect, candidate);  // who is gone by now is found out when it is asked
}

std::string WorkerLab::admit(size_t candidate) {
  const std::optional<Answer> answer = ask(Question::admit, candidate);
  return answer ? answer->reason.data() : why_;
}

double WorkerLab::sample(size_t candidate) {
  const std::optional<Answer> answer = ask(Question::sample, candidate);
  return answer ? answer->seconds : -1;
}

bool WorkerLab::send(Question question, size_t candidate) {
  const std::array<uint64_t, 2> request = {static_cast<uint64_t>(question), candidate};
  return send_all(socket_, request.data(), sizeof request);
}

std::optional<WorkerLab::Answer> WorkerLab::ask(Question question, size_t candidate) {
  if (child_ == 0 && !start()) return std::nullopt;
  const bool asked = send(question, candidate);
  return receive(asked ? patience_ : 0.1);
}

std::optional<WorkerLab::Answer> WorkerLab::receive(double seconds) {
  Answer answer;
  const Received received = receive_all(socket_, &answer, sizeof answer, seconds);
  if (received == Received::all) {
    if (answer.is_last != 0) end();
    return answer;
  }
  int state = 0;
  if (received == Received::too_late) kill(child_, SIGKILL);
  while (waitpid(child_, &state, 0) < 0 && errno == EINTR) {
  }
  close(socket_);
  child_ = 0;
  if (received == Received::too_late)
    why_ = fmt::format("it did not end within {} s", seconds);
  else if (WIFSIGNALED(state))
    why_ = fmt::format("it ended its process by signal {} ({})", WTERMSIG(state), strsignal(WTERMSIG(state)));
  else
    why_ = fmt::format("it ended its process with code {}", WEXITSTATUS(state));
  return std::nullopt;
}

bool WorkerLab::start() {
  std::array<int, 2> sockets = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    why_ = "no socket could be made for a worker process";
    return false;
  }
  socket_ = sockets[0];
  child_ = start_(sockets[1]);
  close(sockets[1]);
  if (child_ <= 0) {
    close(socket_);
    child_ = 0;
    why_ = "no worker process could be started";
    return false;
  }
  const std::optional<Answer> hello = receive(kStartSeconds);
  if (hello) why_ = hello->reason.data();
  return child_ != 0;
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

bool WorkerLab::send_answer(int socket, const std::string& reason, double seconds, bool is_last) {
  Answer answer{.seconds = seconds, .is_last = is_last};
  std::memcpy(answer.reason.data(), reason.data(), std::min(reason.size(), answer.reason.size() - 1));
  return send_all(socket, &answer, sizeof answer);
}

void refuse_work(int socket, const std::string& why) { WorkerLab::send_answer(socket, why, -1, /*is_last=*/true); }

void serve_worker(TuningLab& lab, int socket) {
  using Question = WorkerLab::Question;
  if (!WorkerLab::send_answer(socket, "", -1, /*is_last=*/false)) return;  // it is ready
  std::array<uint64_t, 2> request = {};
  while (receive_all(socket, request.data(), sizeof request, 1e6) == Received::all) {
    const auto question = static_cast<Question>(request[0]);
    if (question == Question::expect) {
      lab.expect(request[1]);
      continue;
    }
    const std::string reason = question == Question::admit ? lab.admit(request[1]) : "";
    const double seconds = question == Question::sample ? lab.sample(request[1]) : -1;
    const bool failed = question == Question::admit ? !reason.empty() : seconds < 0;
    const bool is_last = failed && lab.is_broken();
    if (!WorkerLab::send_answer(socket, reason, seconds, is_last) || is_last) return;
  }
}

pid_t fork_worker(TuningLab& lab, int socket) {
  const pid_t child = fork();
  if (child != 0) return child;
  // What a candidate does to itself is no news for whoever handles signals in this process.
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM, SIGINT}) ::signal(signal, SIG_DFL);
  // Nothing leaves this function in the child: it would go on in the application's own code, as a copy of it.
  try {
    limit_memory();
    serve_worker(lab, socket);
  } catch (const std::exception& error) {
    refuse_work(socket, error.what());
  } catch (...) {
    refuse_work(socket, "it threw what is no std::exception");
  }
  _exit(0);
}

}  // namespace ejk
