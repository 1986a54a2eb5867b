#include "tools/ejk/bench_worker.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ejkernel/core/error.h"
#include "ejkernel/runtime/config.h"
#include "ejkernel/runtime/problem.h"
#include "tools/ejk/bench.h"
#include "tools/ejk/workload.h"

extern char** environ;

namespace ejk::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kProtocol = 1;
/// Long beside what a process finds in its caches when its turn comes again.
constexpr double kSampleSeconds = 5e-3;

std::string digest_of_file(const std::string& path) {
  if (path.empty()) return "";
  std::error_code unreadable;
  const auto size = std::filesystem::file_size(path, unreadable);
  std::string bytes(unreadable ? 0 : size, '\0');  // at once: a checked build is some 100 MB
  std::ifstream(path, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return to_string(digest_of(bytes));
}

/// This process's environment with `folder` before the other places where libraries are looked for.
std::vector<std::string> environment_with(const std::string& folder) {
  std::vector<std::string> entries;
  std::string path = folder;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!folder.empty() && text.starts_with("LD_LIBRARY_PATH="))
      path += ":" + std::string(text.substr(text.find('=') + 1));
    else
      entries.emplace_back(text);
  }
  if (!folder.empty()) entries.push_back("LD_LIBRARY_PATH=" + path);
  return entries;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

double first_plan_seconds(const CallFlags& call) {
  const Array warm_up(DType::u8, {64}, call.device);  // a GPU has its context now, and has loaded no kernel
  const ToolCall specs = make_specs(call);
  const PlanOptions options = plan_options(call);
  const double began = now_seconds();
  Plan::make(specs.operation, specs.inputs, specs.params, options);
  return now_seconds() - began;
}

}  // namespace

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::string own_library() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&now_seconds), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = std::filesystem::canonical(info.dli_fname).string();
  return path == own_program() ? "" : path;
}

Identity own_identity() { return {digest_of_file(own_program()), digest_of_file(own_library())}; }

Worker::Worker(const std::string& program, std::vector<std::string> arguments, const std::string& library_folder)
    : program_(program) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) fail("no socket could be made");
  socket_ = sockets[0];
  arguments.insert(arguments.begin(), {program, "bench"});
  arguments.emplace_back("--worker");
  std::vector<std::string> environment = environment_with(library_folder);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, sockets[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, sockets[1], STDOUT_FILENO);
  const int error = posix_spawn(&pid_, program.c_str(), &actions, nullptr, pointers_to(arguments).data(),
                                pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  close(sockets[1]);
  if (error != 0) {
    pid_ = -1;
    close(socket_);
    fail("it could not be started");
  }
  const std::string first = read_line();
  if (first.empty()) fail("it ended");
  const Json hello = Json::parse(first, nullptr, /*allow_exceptions=*/false);
  if (!hello.is_object() || hello.value("protocol", 0) != kProtocol) fail("it does not answer as this version does");
  first_plan_seconds_ = hello.value("first_plan_seconds", 0.0);
  kernel_ = hello.value("kernel", "");
  config_ = hello.value("config", "");
  identity_ = {hello.value("program", ""), hello.value("library", "")};
}

Worker::~Worker() {
  if (socket_ >= 0) close(socket_);  // the worker ends with its input
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

void Worker::fail(const std::string& what) const {
  throw Internal(fmt::format("ejk: bench: the worker {} must measure, but {}; see what it said", program_, what));
}

std::string Worker::read_line() {
  for (;;) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    char buffer[4096];
    const ssize_t count = recv(socket_, buffer, sizeof buffer, 0);
    if (count <= 0) return "";  // ended: no answer parses as one
    unread_.append(buffer, static_cast<size_t>(count));
  }
}

double Worker::sample() {
  static constexpr std::string_view kRequest = "sample\n";
  if (send(socket_, kRequest.data(), kRequest.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(kRequest.size()))
    fail("it ended");
  const std::string line = read_line();
  const double seconds = std::strtod(line.c_str(), nullptr);
  if (!(seconds > 0)) fail(fmt::format("it answered '{}'", line));
  return seconds;
}

int bench_worker(const BenchFlags& flags, const BenchEntry& entry) {
  const double first_plan = first_plan_seconds(entry.call);
  const TimedWorkload workload(entry.call, flags.warm, kSampleSeconds);
  const Plan& plan = workload.plan();
  const Identity self = own_identity();
  const Json hello = {{"protocol", kProtocol},        {"first_plan_seconds", first_plan},
                      {"kernel", plan.kernel().name}, {"config", to_string(plan.kernel(), plan.choice().config)},
                      {"program", self.program},      {"library", self.library}};
  fmt::print("{}\n", hello.dump());
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line) && line == "sample";) {
    fmt::print("{}\n", workload.sampler()());
    std::fflush(stdout);
  }
  return kOk;
}

}  // namespace ejk::tool
