#include "ejkernel/platform/cuda/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <type_traits>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/events.h"
#include "ejkernel/platform/cuda/cubin_store.h"
#include "ejkernel/platform/cuda/sources.h"

namespace ejk::cuda {
namespace {

using namespace abi;  // NOLINT: the driver's names

// ---- the log ----

template <class Visit>
void for_each_line(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// The number that stands before `unit` in `line`; 0 without one.
int number_before(std::string_view line, std::string_view unit) {
  std::string_view before = line.substr(0, line.find(unit));
  if (before.size() == line.size()) return 0;
  before = before.substr(0, before.find_last_not_of(' ') + 1);
  before.remove_prefix(before.find_last_not_of("0123456789") + 1);
  int number = 0;
  std::from_chars(before.data(), before.data() + before.size(), number);
  return number;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// What somebody who reads a refusal needs of a log that may be long.
std::string first_errors(std::string_view log) {
  constexpr int kMost = 4;
  std::string text;
  int found = 0;
  for_each_line(log, [&](std::string_view line) {
    if (contains(line, "error") && ++found <= kMost) text += fmt::format("\n  {}", line);
  });
  return text.empty() ? fmt::format("\n  {}", log.substr(0, 400)) : text;
}

// ---- compiling ----

/// An NVRTC program, released with the scope.
class Compilation {
 public:
  Compilation(const Nvrtc& nvrtc, const ProgramSpec& spec) : nvrtc_(nvrtc), spec_(spec) {
    const std::vector<Source> sources = reachable_sources(spec.file);
    // The library wants strings that end with a null byte, and views do not promise one.
    std::vector<std::string> names, texts;
    for (const Source& source : sources) {
      names.emplace_back(source.path);
      texts.emplace_back(source.text);
    }
    std::vector<const char*> name_pointers, text_pointers;
    for (size_t i = 1; i < sources.size(); ++i) {
      name_pointers.push_back(names[i].c_str());
      text_pointers.push_back(texts[i].c_str());
    }
    succeed(
        nvrtc.api.create_program(&program_, texts[0].c_str(), names[0].c_str(), static_cast<int>(name_pointers.size()),
                                 text_pointers.data(), name_pointers.data()),
        "nvrtcCreateProgram");
  }
  ~Compilation() { nvrtc_.api.destroy_program(&program_); }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  Compiled run(std::string_view architecture) {
    const std::vector<std::string> options = compile_options(architecture);
    std::vector<const char*> option_pointers;
    for (const std::string& option : options) option_pointers.push_back(option.c_str());
    const NvrtcApi& api = nvrtc_.api;
    succeed(api.add_name_expression(program_, spec_.instance.c_str()), "nvrtcAddNameExpression");
    const bool compiled = api.compile_program(program_, static_cast<int>(options.size()), option_pointers.data()) == 0;
    const std::string log = read_log();
    if (!compiled)
      throw CompileError(fmt::format("{} does not compile for {} with NVRTC {}.{}:{}", spec_.instance, architecture,
                                     nvrtc_.major, nvrtc_.minor, first_errors(log)));
    Compiled result;
    result.report = parse_log(log);
    size_t size = 0;
    succeed(api.cubin_size(program_, &size), "nvrtcGetCUBINSize");
    result.cubin.resize(size);
    succeed(api.cubin(program_, reinterpret_cast<char*>(result.cubin.data())), "nvrtcGetCUBIN");
    const char* lowered = nullptr;
    succeed(api.lowered_name(program_, spec_.instance.c_str(), &lowered), "nvrtcGetLoweredName");
    result.lowered_name = lowered;
    return result;
  }

 private:
  std::string read_log() const {
    size_t size = 0;
    succeed(nvrtc_.api.log_size(program_, &size), "nvrtcGetProgramLogSize");
    std::string log(size, '\0');
    succeed(nvrtc_.api.log(program_, log.data()), "nvrtcGetProgramLog");
    log.resize(log.find_last_not_of('\0') + 1);
    return log;
  }

  void succeed(int code, const char* function) const {
    if (code != 0)
      throw CompileError(fmt::format("{}: {} must succeed, got code {} (NVRTC {}.{}, {})", spec_.instance, function,
                                     code, nvrtc_.major, nvrtc_.minor, nvrtc_.path));
  }

  const Nvrtc& nvrtc_;
  const ProgramSpec& spec_;
  nvrtcProgram program_ = nullptr;
};

/// A kernel that is slower than it was written to be is refused: somebody else on the list is faster.
void check_report(const ProgramSpec& spec, const Report& report) {
  for (const std::string& warning : report.warnings)
    if (contains(warning, "(C75"))
      throw CompileError(fmt::format("{} is not what was asked for: {}", spec.instance, warning));
  if (!spec.may_spill && report.spill_store_bytes + report.spill_load_bytes > 0)
    throw CompileError(fmt::format("{} must keep its values in registers, and spills {} bytes ({} registers)",
                                   spec.instance, report.spill_store_bytes + report.spill_load_bytes,
                                   report.registers));
}

// ---- the programs of this process ----

thread_local ProgramWatch* watching = nullptr;

using Future = std::shared_future<std::shared_ptr<const Program>>;

struct Programs {
  std::mutex mutex;
  std::map<std::string, Future, std::less<>> by_key;
};
Programs& programs() {
  static auto* all = new Programs;  // never destroyed: calls may come while the process exits
  return *all;
}

std::string key_of(const ProgramSpec& spec, std::string_view architecture) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", spec.file, spec.instance, spec.shared_bytes, spec.may_spill,
                     architecture, driver_generation());
}

/// Compiled ahead, else from the store, else compiled: what was compiled ahead asks for no compiler.
std::shared_ptr<const Program> make(const ProgramSpec& spec, const std::string& architecture) {
  const auto told = [&](auto text) { emit(EventKind::compile, "", spec.instance, text); };
  const auto found = [&](Compiled compiled, std::string_view how) {
    told([&] { return fmt::format("found in the store, compiled {}for {}", how, architecture); });
    check_report(spec, compiled.report);  // a reference may have put it there, which may spill
    return std::make_shared<const Program>(spec, std::move(compiled));
  };
  std::optional<Compiled> compiled = find_compiled_ahead(spec, architecture);
  if (compiled) return found(std::move(*compiled), "ahead ");
  const std::string version = compiler_version();
  const RecordKey key = cubin_key(spec, architecture, version);
  compiled = find_cubin(key);
  if (compiled) return found(std::move(*compiled), "");
  try {
    compiled = compile(spec, architecture);
  } catch (const std::exception& error) {
    told([&] { return fmt::format("refused: {}", error.what()); });
    throw;
  }
  told([&] { return fmt::format("compiled for {} in {:.2f} s", architecture, compiled->seconds); });
  keep_cubin(key, *compiled, version);
  return std::make_shared<const Program>(spec, std::move(*compiled));
}

/// Waits for whoever makes it already, or makes it. A failure is told to all who wait, and not kept: who asks again may
/// have mended the cause.
std::shared_ptr<const Program> find_or_make(const ProgramSpec& spec, const std::string& architecture) {
  Programs& all = programs();
  const std::string key = key_of(spec, architecture);
  std::promise<std::shared_ptr<const Program>> promise;
  {
    std::unique_lock lock(all.mutex);
    const auto there = all.by_key.find(key);
    if (there != all.by_key.end()) {
      const Future future = there->second;
      lock.unlock();
      return future.get();
    }
    all.by_key.emplace(key, promise.get_future().share());
  }
  try {
    auto program = make(spec, architecture);
    promise.set_value(program);
    return program;
  } catch (...) {
    {
      const std::lock_guard lock(all.mutex);
      all.by_key.erase(key);
    }
    promise.set_exception(std::current_exception());
    throw;
  }
}

}  // namespace

Report parse_log(std::string_view log) {
  Report report;
  for_each_line(log, [&](std::string_view line) {
    // One such line per function: of the kernel, and of what was not inlined into it.
    report.stack_bytes = std::max(report.stack_bytes, number_before(line, "bytes stack frame"));
    report.spill_store_bytes += number_before(line, "bytes spill stores");
    report.spill_load_bytes += number_before(line, "bytes spill loads");
    report.registers = std::max(report.registers, number_before(line, "registers"));
    report.shared_bytes = std::max(report.shared_bytes, number_before(line, "bytes smem"));
    if (contains(line, "(C75") || contains(line, "warning")) report.warnings.emplace_back(line);
  });
  return report;
}

std::string architecture_of(const DeviceProperties& device) {
  return device.compute_capability == 90 ? "sm_90a" : fmt::format("sm_{}", device.compute_capability);
}

std::vector<std::string> compile_options(std::string_view architecture) {
  // The last one makes functions without a mark the device's: constexpr ones of headers that the host includes too.
  return {fmt::format("--gpu-architecture={}", architecture), "-std=c++20", "--ptxas-options=-v",
          "--device-as-default-execution-space"};
}

Compiled compile(const ProgramSpec& spec, std::string_view architecture, const Nvrtc& nvrtc) {
  const auto began = std::chrono::steady_clock::now();
  Compiled compiled = Compilation(nvrtc, spec).run(architecture);
  compiled.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  check_report(spec, compiled.report);
  return compiled;
}

Program::Program(const ProgramSpec& spec, Compiled compiled)
    : instance_(spec.instance), shared_bytes_(spec.shared_bytes), compiled_(std::move(compiled)) {}

void Program::check_fits(const DeviceProperties& device) const {
  const int shared = shared_bytes_ + compiled_.report.shared_bytes;
  if (shared > device.shared_bytes_per_block)
    throw CompileError(fmt::format(
        "{} needs {} bytes of shared memory, and {} has {} for a block{}", instance_, shared, device.product,
        device.shared_bytes_per_block,
        device.shared_bytes_per_block == environment::shared_bytes_limit() ? " under EJKERNEL_TRITON_SMEM_LIMIT" : ""));
}

void Program::load_on(const DeviceProperties& device) const {
  const int ordinal = device.device.ordinal;
  if (function(ordinal) != nullptr) return;
  const std::lock_guard lock(loading_);
  if (function(ordinal) != nullptr) return;
  const CurrentDevice current(ordinal);
  const DriverApi& api = driver();
  CUmodule loaded_module = nullptr;
  api.module_load(&loaded_module, compiled_.cubin.data());
  // Unloaded again if the driver fails before the end: the next call loads it anew.
  const auto unload = [&api](CUmodule given_up) { api.module_unload.attempt(given_up); };
  std::unique_ptr<std::remove_pointer_t<CUmodule>, decltype(unload)> module(loaded_module, unload);
  CUfunction loaded = nullptr;
  api.module_function(&loaded, module.get(), compiled_.lowered_name.c_str());
  if (shared_bytes_ > 0)
    api.function_set_attribute(loaded, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes_);
  // Otherwise the first launch would load it, which takes long and cannot be captured.
  if (api.function_load.address != nullptr) api.function_load(loaded);
  functions_[static_cast<size_t>(ordinal)].store(loaded, std::memory_order_release);
  module.release();  // for the life of the process
}

DeviceProperties made_up_device(std::string_view architecture) {
  struct Known {
    std::string_view architecture, product;
    int capability, num_units;
    int64_t cache_bytes, shared_bytes;
  };
  static constexpr Known kKnown[] = {{"sm_80", "NVIDIA A100", 80, 108, 40 << 20, 166912},
                                     {"sm_86", "NVIDIA A10", 86, 72, 6 << 20, 101376},
                                     {"sm_89", "NVIDIA L40S", 89, 142, 96 << 20, 101376},
                                     {"sm_90a", "NVIDIA H200", 90, 132, 50 << 20, 232448},
                                     {"sm_100", "NVIDIA B200", 100, 148, 126 << 20, 232448},
                                     {"sm_120", "NVIDIA RTX PRO 6000", 120, 188, 128 << 20, 101376}};
  std::string names;
  for (const Known& known : kKnown) {
    if (known.architecture == architecture)
      return {.device = {DeviceKind::cuda, -1},
              .product = std::string(known.product),
              .architecture = fmt::format("sm_{}", known.capability),
              .num_units = known.num_units,
              .cache_bytes = known.cache_bytes,
              .compute_capability = known.capability,
              .shared_bytes_per_block = std::min(known.shared_bytes, environment::shared_bytes_limit())};
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known.architecture);
  }
  throw InvalidArgument(
      fmt::format("cuda: the architecture must be one of {}, got '{}'; correct it", names, architecture));
}

ProgramWatch::ProgramWatch() : outer_(watching) { watching = this; }
ProgramWatch::~ProgramWatch() { watching = outer_; }

std::shared_ptr<const Program> load_program(const ProgramSpec& spec, const DeviceProperties& device) {
  auto program = find_or_make(spec, architecture_of(device));
  program->check_fits(device);
  if (device.device.ordinal >= 0) program->load_on(device);
  if (watching != nullptr) watching->programs.push_back(program);
  return program;
}

void program_detail::launch(const Program& program, const RunContext& context, Dim3 grid, Dim3 block, int shared_bytes,
                            void** args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const int ordinal = context.device->device.ordinal;
  const CurrentDevice current(ordinal);
  const auto& launch_kernel = driver().launch_kernel;
  const CUresult result =
      launch_kernel.attempt(program.function(ordinal), grid.x, grid.y, grid.z, block.x, block.y, block.z,
                            static_cast<unsigned>(shared_bytes), static_cast<CUstream>(context.stream), args, nullptr);
  note_subject(program.instance());
  if (result != CUDA_SUCCESS)
    emit(EventKind::launch_failure, "", program.instance(),
         [&] { return fmt::format("{} answered {}", launch_kernel.symbol, static_cast<int>(result)); });
  check(result, launch_kernel.symbol);
}

}  // namespace ejk::cuda
