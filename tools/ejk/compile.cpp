// ejk compile: the CUDA kernels that problems get, named or recorded ones, compiled for any architecture on a machine
// without a GPU. They are in the store afterwards, and the exit code says whether all are as they were written to be.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/platform/cuda/program.h"
#include "ejkernel/runtime/recorded.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/runtime/timer.h"
#include "tools/ejk/cases.h"
#include "tools/ejk/print.h"
#include "tools/ejk/verbs.h"

namespace ejk::tool {
namespace {

struct Flags {
  std::string operation, kernel, case_name, recorded, architectures = "sm_90a";
  bool candidates = false, every_config = false;
};

/// One problem's tensors as a device that is not here would see them.
struct Planned {
  const Operation* operation;
  std::vector<Tensor> inputs, outputs;
  ParamsBlock params;
  CallView view() const { return {inputs, &params, outputs}; }
};

struct Work {
  std::shared_ptr<const Planned> problem;
  std::shared_ptr<const KernelInfo> kernel;
  const DeviceProperties* device;
  ConfigBlock config;
};

/// What became of one instance for one architecture.
struct Row {
  std::string kernel, found;
  bool good = true;
};
using Rows = std::map<std::pair<std::string, std::string>, Row>;  // by architecture and instance, or reason

std::vector<DeviceProperties> devices_of(const std::string& list) {
  std::vector<DeviceProperties> devices;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    devices.push_back(cuda::made_up_device(list.substr(begin, end - begin)));
    begin = end + 1;
  }
  return devices;
}

std::shared_ptr<const Planned> planned(const Operation& op, const ToolCall& call, Device device) {
  auto problem = std::make_shared<Planned>(Planned{&op, call.inputs, {}, call.params});
  for (Tensor& input : problem->inputs) {
    input.data = nullptr;
    input.device = device;
  }
  for (const OutputSpec& spec : check_call(op, problem->inputs, problem->params).outputs)
    problem->outputs.push_back(spec.present ? Tensor(nullptr, spec.dtype, spec.shape, device) : Tensor());
  return problem;
}

/// Every config of legal values whose shared memory the device has.
std::vector<ConfigBlock> every_config(const KernelInfo& kernel, const CallView& call, const DeviceProperties& device) {
  std::vector<ConfigBlock> configs = {kernel.heuristic(call, device)};
  for (const ConfigField& field : kernel.config_fields) {
    std::vector<ConfigBlock> longer;
    for (ConfigBlock& config : configs)
      for (const int64_t value : field.legal) {
        field.set(config.data(), value);
        longer.push_back(config);
      }
    configs = std::move(longer);
  }
  if (kernel.cost != nullptr)
    std::erase_if(configs, [&](const ConfigBlock& config) {
      return kernel.cost(call, config, device).shared_bytes > device.shared_bytes_per_block;
    });
  return configs;
}

bool is_wanted(const KernelInfo& kernel, const Flags& flags) {
  return kernel.prepare != nullptr && (flags.kernel.empty() || kernel.name == flags.kernel);
}

/// Every CUDA kernel that serves the call on a device is compiled for it, first on the list or not.
void add_work(const RegisteredOperation& operation, const ToolCall& call, const Flags& flags,
              const std::vector<DeviceProperties>& devices, std::vector<Work>& work) {
  for (const DeviceProperties& device : devices) {
    const auto problem = planned(*operation.declaration, call, device.device);
    for (const auto& kernel : operation.kernels) {
      if (!is_wanted(*kernel, flags) || !kernel->supports(problem->view(), device).ok) continue;
      std::vector<ConfigBlock> configs = {kernel->heuristic(problem->view(), device)};
      if (flags.candidates) std::ranges::copy(kernel->candidates(problem->view(), device), std::back_inserter(configs));
      if (flags.every_config) configs = every_config(*kernel, problem->view(), device);
      for (const ConfigBlock& config : configs) work.push_back({problem, kernel, &device, config});
    }
  }
}

std::vector<Work> work_of_named_problems(const Flags& flags, const std::vector<DeviceProperties>& devices) {
  const KernelRegistry& registry = KernelRegistry::instance();
  std::vector<Work> work;
  for (const std::string& name : registry.names()) {
    if (!flags.operation.empty() && name != flags.operation) continue;
    const auto operation = registry.find(name);
    const auto wanted = [&](const auto& kernel) { return is_wanted(*kernel, flags); };
    if (std::ranges::none_of(operation->kernels, wanted)) continue;  // making problems takes long
    for (const NamedCase& c : cases_of(name))
      if (flags.case_name.empty() || c.name == flags.case_name)
        add_work(*operation, make_case(name, c.name), flags, devices, work);
  }
  return work;
}

std::vector<Work> work_of_recorded_calls(const Flags& flags, const std::vector<DeviceProperties>& devices) {
  std::vector<Work> work;
  for (const Invocation& call : load_invocations(flags.recorded))
    if (flags.operation.empty() || call.operation == flags.operation)
      add_work(*KernelRegistry::instance().find(call.operation),
               {.operation = call.operation, .inputs = call.inputs, .params = call.params}, flags, devices, work);
  return work;
}

Row row_of(const Operation& op, const KernelInfo& kernel, const cuda::Program& program) {
  const cuda::Report& report = program.report();
  Row row = {
      fmt::format("{} {}", op.name, kernel.name),
      fmt::format("{:3} registers  {:3} B spilled  {:6} B shared  {}", report.registers,
                  report.spill_store_bytes + report.spill_load_bytes, report.shared_bytes + program.shared_bytes(),
                  program.compile_seconds() > 0 ? fmt::format("{:.2f} s", program.compile_seconds()) : "stored")};
  for (const std::string& warning : report.warnings) {
    row.good = false;
    row.found += "\n      " + warning;
  }
  return row;
}

void compile_one(const Work& work, Rows& rows, std::mutex& mutex) {
  const Operation& op = *work.problem->operation;
  const std::string architecture = cuda::architecture_of(*work.device);
  const cuda::ProgramWatch watch;
  std::string failure;
  try {
    work.kernel->prepare(work.problem->view(), work.config, *work.device);
  } catch (const Error& error) {
    failure = error.what();
  }
  const std::lock_guard lock(mutex);
  for (const auto& program : watch.programs)
    rows.insert({{architecture, program->instance()}, row_of(op, *work.kernel, *program)});
  if (!failure.empty())
    rows.insert({{architecture, failure}, {fmt::format("{} {}", op.name, work.kernel->name), "", false}});
}

unsigned num_threads() { return std::max(1u, std::thread::hardware_concurrency()); }

Rows compile_all(const std::vector<Work>& work) {
  Rows rows;
  std::mutex mutex;
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < num_threads(); ++i)
    threads.emplace_back([&] {
      for (size_t at = next++; at < work.size(); at = next++) compile_one(work[at], rows, mutex);
    });
  for (std::thread& thread : threads) thread.join();
  return rows;
}

int run(const Flags& flags) {
  // What comes compiled would not be in the store afterwards, where an export looks for it.
  use_store(store().root(), {.quota_bytes = environment::cache_quota_mb() << 20});
  const std::vector<DeviceProperties> devices = devices_of(flags.architectures);
  if (!flags.operation.empty()) KernelRegistry::instance().find(flags.operation);  // known, or says which are
  if (!flags.case_name.empty()) {
    if (!flags.recorded.empty())
      throw_invalid("ejk", "--case", "be left out where recorded calls are compiled", flags.case_name, "leave it out");
    if (flags.operation.empty())
      throw_invalid("ejk", "--case", "come with its operation", "none",
                    fmt::format("name it: ejk compile OP --case {}", flags.case_name));
    require_case(flags.operation, flags.case_name);
  }
  const std::vector<Work> work =
      flags.recorded.empty() ? work_of_named_problems(flags, devices) : work_of_recorded_calls(flags, devices);
  if (work.empty())
    throw_invalid("ejk", "the problems", "be served by a CUDA kernel", "none that is",
                  "name another operation, kernel or case");
  const double began = now_seconds();
  const Rows rows = compile_all(work);
  const double seconds = now_seconds() - began;
  size_t num_bad = 0, width = 0;
  for (const auto& [key, row] : rows) width = std::max(width, row.kernel.size());
  for (const auto& [key, row] : rows) {
    num_bad += !row.good;
    fmt::print("{}  {:7}  {:<{}}  {}  {}\n", row.good ? coloured("ok  ", Colour::green) : coloured("FAIL", Colour::red),
               key.first, row.kernel, width, row.found, printable(key.second));
  }
  fmt::print("\n{} configs, {} programs in {:.2f} s on {} threads, {} refused\n", work.size(), rows.size() - num_bad,
             seconds, num_threads(), num_bad);
  return num_bad == 0 ? kOk : kFailed;
}

}  // namespace

Action declare_compile(Options& options) {
  const auto flags = std::make_shared<Flags>();
  options.positional("OP", flags->operation, "only this operation")
      .value("arch", flags->architectures, "LIST", "sm_80, sm_86, sm_89, sm_90a, sm_100, sm_120 (default: sm_90a)")
      .value("case", flags->case_name, "NAME", "only this one of the operation's named problems")
      .value("recorded", flags->recorded, "FILE",
             "not named problems, but the calls that EJKERNEL_OPS_RECORD=FILE recorded")
      .value("kernel", flags->kernel, "NAME", "only this kernel")
      .flag("candidates", flags->candidates, "every config that the tuner may try, not the heuristic's alone")
      .flag("every-config", flags->every_config, "every config of legal values that the device's shared memory holds");
  return [flags] { return run(*flags); };
}

}  // namespace ejk::tool
