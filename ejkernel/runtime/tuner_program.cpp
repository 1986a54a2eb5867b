#include "ejkernel/runtime/tuner_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <vector>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/installation.h"
#include "ejkernel/core/version.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/recorded.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/runtime/tuner_worker.h"
#include "ejkernel/runtime/tuning_lab.h"

extern char** environ;

namespace ejk {
namespace {

namespace fs = std::filesystem;

constexpr int kSocket = STDIN_FILENO, kMemory = 3;
constexpr size_t kAlignment = 64;

size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// What both ends must agree on for values to travel as they lie in memory.
uint64_t layout_of(const Operation& op, const KernelInfo& kernel) {
  std::string text = fmt::format("{} {} {} {}", kVersion, sizeof(Tensor), sizeof(ParamsBlock), sizeof(ConfigBlock));
  for (const std::string& line : signature_of(op)) text += '\n' + line;
  for (const ConfigField& field : kernel.config_fields) text += fmt::format("\n{}", field.name);
  return digest_of(text).low;
}

struct Header {
  uint64_t layout = 0;
  uint64_t operation_bytes = 0, kernel_bytes = 0, num_inputs = 0, num_candidates = 0;
  Device device = {};
};

/// Of a tensor's elements, gaps between its strides included.
struct Extent {
  int64_t skipped = 0;  ///< bytes from `data` to the first
  size_t bytes = 0;
  explicit Extent(const Tensor& t) {
    const auto [first, last] = byte_range(t);
    skipped = first, bytes = static_cast<size_t>(last - first);
  }
};

/// Reads what a TuningJob wrote.
class Reader {
 public:
  Reader(const std::byte* at, size_t size) : at_(at), left_(size) {}
  template <class T>
  T value() {
    T result;
    std::memcpy(static_cast<void*>(&result), take(sizeof result), sizeof result);
    return result;
  }
  std::string text(size_t bytes) { return {reinterpret_cast<const char*>(take(bytes)), bytes}; }
  const std::byte* take(size_t bytes) {
    if (bytes > left_) throw Internal("ejk: tune --worker: the job is shorter than it says");
    const std::byte* taken = at_;
    at_ += bytes, left_ -= bytes;
    return taken;
  }

 private:
  const std::byte* at_;
  size_t left_;
};

/// A job as the program sees it.
struct ReadJob {
  std::optional<Plan> plan;
  std::vector<Copy> copies;  ///< of a GPU
  std::vector<Tensor> inputs;
  std::vector<ConfigBlock> candidates;

  ReadJob(const std::byte* memory, size_t size) {
    Reader reader(memory, size);
    const auto header = reader.value<Header>();
    const std::string operation = reader.text(header.operation_bytes), kernel = reader.text(header.kernel_bytes);
    const Platform platform = checked_platform(operation, kernel, header.layout);
    const auto params = reader.value<ParamsBlock>();
    for (uint64_t n = 0; n < header.num_candidates; ++n) candidates.push_back(reader.value<ConfigBlock>());
    for (uint64_t n = 0; n < header.num_inputs; ++n) inputs.push_back(reader.value<Tensor>());
    const auto read = static_cast<size_t>(reader.take(0) - memory);
    reader.take(padded(read) - read);
    for (Tensor& input : inputs) {
      if (!input.present()) continue;
      const Extent extent(input);
      input.data = const_cast<std::byte*>(reader.take(padded(extent.bytes))) - extent.skipped;
      if (header.device.kind == DeviceKind::cpu) continue;
      copies.push_back(copy_to(header.device, input));
      input = copies.back().tensor;
    }
    // The heuristic's config is not asked for: it is the first candidate, and may be what needs trying.
    plan = Plan::make(operation, inputs, params, {.platform = platform, .kernel = kernel});
  }

 private:
  /// The kernel's. Checks the layout before anything is read that depends on it.
  static Platform checked_platform(const std::string& operation, const std::string& kernel, uint64_t layout) {
    const auto registered = KernelRegistry::instance().find(operation);
    const KernelInfo* found = find_kernel(*registered, kernel);
    const std::string program = fs::read_symlink("/proc/self/exe").string();
    if (found == nullptr)
      throw Unsupported(
          fmt::format("{}: the program {} has no kernel {}; it knows the library's and those of "
                      "EJKERNEL_PLUGINS",
                      operation, program, kernel));
    if (layout_of(*registered->declaration, *found) != layout)
      throw Unsupported(fmt::format("{}: the program {} is of another version of the library", operation, program));
    return found->platform;
  }
};

}  // namespace

std::string tuner_program() {
  for (const std::string& prefix : installation_prefixes())
    if (const std::string program = prefix + "/bin/ejk"; ::access(program.c_str(), X_OK) == 0) return program;
  return "";
}

TuningJob::TuningJob(const Plan& plan, std::span<const Tensor> inputs, std::span<const ConfigBlock> candidates)
    : program_(tuner_program()) {
  const Operation& op = plan.operation();
  const KernelInfo& kernel = plan.kernel();
  if (program_.empty())
    throw Unsupported(
        fmt::format("{}: kernel {} is tuned by the program ejk, which is not beside the library; install "
                    "it, or use the heuristic's config",
                    op.name, kernel.name));
  std::string head;
  const auto append = [&](const auto& value) { head.append(reinterpret_cast<const char*>(&value), sizeof value); };
  append(Header{.layout = layout_of(op, kernel),
                .operation_bytes = op.name.size(),
                .kernel_bytes = kernel.name.size(),
                .num_inputs = inputs.size(),
                .num_candidates = candidates.size(),
                .device = plan.device()});
  head.append(op.name).append(kernel.name);
  append(plan.params());
  for (const ConfigBlock& candidate : candidates) append(candidate);
  size_t size = 0;
  for (const Tensor& input : inputs) {
    append(input);
    if (input.present()) size += padded(Extent(input).bytes);
  }
  head.resize(padded(head.size()));
  size += head.size();

  // Above the numbers that the worker gets: where this process has closed its standard input, the next is one of them.
  const int lowest = memfd_create("ejkernel tuning", MFD_CLOEXEC);
  memory_ = lowest < 0 ? lowest : fcntl(lowest, F_DUPFD_CLOEXEC, kMemory + 1);
  if (lowest >= 0) close(lowest);
  void* mapped = MAP_FAILED;
  if (memory_ >= 0 && ftruncate(memory_, static_cast<off_t>(size)) == 0)
    mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0);
  if (mapped == MAP_FAILED) {
    if (memory_ >= 0) close(memory_);
    throw Unsupported(fmt::format("{}: no memory of {} bytes could be shared with a worker process: {}", op.name, size,
                                  std::strerror(errno)));
  }
  auto* at = static_cast<std::byte*>(mapped);
  std::memcpy(at, head.data(), head.size());
  at += head.size();
  for (const Tensor& input : inputs) {
    if (!input.present()) continue;
    const Extent extent(input);
    if (extent.bytes > 0) std::memcpy(at, input.as<const std::byte>() + extent.skipped, extent.bytes);
    at += padded(extent.bytes);
  }
  munmap(mapped, size);
}

TuningJob::~TuningJob() { close(memory_); }

pid_t TuningJob::start_worker(int socket) const {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, kSocket);
  posix_spawn_file_actions_adddup2(&actions, memory_, kMemory);
  std::string program = program_, verb = "tune", option = "--worker";
  char* const arguments[] = {program.data(), verb.data(), option.data(), nullptr};
  pid_t child = 0;
  const int error = posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? child : 0;
}

int run_tuner_program() {
  const Unrecorded unrecorded;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a candidate that hangs must not outlive who asked about it
  struct stat status = {};
  const bool is_asked = fstat(kSocket, &status) == 0 && S_ISSOCK(status.st_mode);
  if (!is_asked || fstat(kMemory, &status) != 0 || status.st_size == 0)
    throw InvalidArgument("ejk: tune --worker is what the library starts to try configs, and no command; leave it out");
  const auto size = static_cast<size_t>(status.st_size);
  void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, kMemory, 0);
  if (mapped == MAP_FAILED) throw Internal("ejk: tune --worker: the job's memory cannot be mapped");

  try {
    ReadJob job(static_cast<const std::byte*>(mapped), size);
    if (job.plan->device().kind == DeviceKind::cpu) limit_memory();
    PlanLab lab(*job.plan, job.inputs, job.candidates, std::numeric_limits<double>::infinity());
    if (const std::string why = lab.begin(); why.empty())
      serve_worker(lab, kSocket);
    else
      refuse_work(kSocket, why);
  } catch (const std::exception& error) {
    refuse_work(kSocket, error.what());
  } catch (...) {
    refuse_work(kSocket, "it threw what is no std::exception");
  }
  // Not by the end of main: a GPU that is broken would report it once more.
  _exit(0);
}

}  // namespace ejk
