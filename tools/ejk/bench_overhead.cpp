// ejk bench --overhead: what a call costs the host before a kernel has anything to do. On the host the problems have no
// elements, and the memory tier's and the store's own calls stand beside them; on a GPU they are as small as a kernel
// gets, and beside them stands the driver's launch of an empty kernel.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "ejkernel/c_api.h"
#include "ejkernel/core/digest.h"
#include "ejkernel/core/dlpack.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/core/version.h"
#include "ejkernel/platform/cuda/program.h"
#include "ejkernel/platform/cuda/stream.h"
#include "ejkernel/runtime/clock_cache.h"
#include "ejkernel/runtime/config.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/testing/table.h"
#include "tools/ejk/bench.h"
#include "tools/ejk/print.h"
#include "tools/ejk/scratch_folder.h"
#include "tools/ejk/workload.h"

namespace ejk::tool {
namespace {

using Json = nlohmann::ordered_json;

/// Seconds that each of the calls may take.
struct Targets {
  double run, c_run, execute;
};
constexpr Targets kOnHost{.run = 0.5e-6, .c_run = 1e-6, .execute = 3e-6};
/// Above the driver's launch of an empty kernel.
constexpr Targets kOnGpu{.run = 1.5e-6, .c_run = 2e-6, .execute = 4e-6};

/// The operation's default call with nothing in it: the first dimension of its first input is 0, and there are no
/// groups whose results would have to be zeros.
ToolCall empty_call(const std::string& operation) {
  CallFlags flags;
  flags.operation = operation;
  const Operation& op = *KernelRegistry::instance().find(operation)->declaration;
  flags.dims[std::string(op.inputs[0].contract.begin()->dims[0].name)] = 0;
  const std::vector<std::string> dims = dim_names(op, 0);
  if (std::find(dims.begin(), dims.end(), "num_groups") != dims.end()) flags.dims["num_groups"] = 0;
  return make_call_with_data(flags);
}

/// One warp's work, whatever the operation calls its dimensions; the gates are an LSTM's, 4 * hidden_size.
ToolCall smallest_call(const std::string& operation) {
  static constexpr std::pair<std::string_view, int64_t> kSmall[] = {
      {"batch", 1},          {"num_groups", 1},  {"num_seqs", 1},  {"max_num_seqs", 1}, {"max_num_pages", 1},
      {"num_pages", 1},      {"q_len", 16},      {"kv_len", 16},   {"seq_len", 16},     {"num_tokens", 16},
      {"total_tokens", 16},  {"num_q_heads", 1}, {"num_heads", 1}, {"num_kv_heads", 1}, {"head_dim", 64},
      {"key_dim", 64},       {"value_dim", 64},  {"dim", 64},      {"input_size", 64},  {"hidden_size", 64},
      {"gate_rows", 256},    {"m", 16},          {"k", 64},        {"n", 64},           {"num_all_groups", 1},
      {"table_num_pages", 1}};
  CallFlags flags;
  flags.operation = operation;
  flags.dtype = "bf16";
  const std::vector<std::string> dims = dim_names(*KernelRegistry::instance().find(operation)->declaration, 0);
  for (const auto& [name, extent] : kSmall)
    if (std::find(dims.begin(), dims.end(), name) != dims.end()) flags.dims[std::string(name)] = extent;
  return make_call_with_data(flags);
}

/// Tensors as the C interface takes them, by name.
class CTensors {
 public:
  CTensors(std::span<const TensorField> fields, std::span<const Tensor> tensors)
      : shapes_(tensors.size()), strides_(tensors.size()) {
    tensors_.reserve(tensors.size());
    names_.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].present()) continue;
      tensors_.push_back(to_dlpack_view(tensors[i], shapes_[i].data(), strides_[i].data()));
      names_.emplace_back(fields[i].name);
      list_.push_back({names_.back().c_str(), &tensors_.back()});
    }
  }
  const std::vector<ejk_tensor>& list() const { return list_; }

 private:
  std::vector<std::array<int64_t, kMaxRank>> shapes_, strides_;
  std::vector<DLTensor> tensors_;
  std::vector<std::string> names_;
  std::vector<ejk_tensor> list_;
};

void require(ejk_status status) {
  if (status == EJK_OK) return;
  const char* text = "";
  ejk_last_error(&text);
  throw Internal(
      fmt::format("ejk: bench --overhead: the C interface must run what C++ runs, got '{}'; please report it", text));
}

/// A plan's parameters as the C interface takes them, by name.
class CParams {
 public:
  explicit CParams(const Plan& plan) {
    require(ejk_params_new(std::string(plan.operation().name).c_str(), &params_));
    for (const ParamField& field : plan.operation().params)
      std::visit([&](const auto& value) { set(std::string(field.name), value); }, field.get(plan.params().data()));
  }
  CParams(const CParams&) = delete;
  CParams& operator=(const CParams&) = delete;
  ~CParams() { ejk_params_free(params_); }
  ejk_params_t* get() const { return params_; }

 private:
  void set(const std::string&, std::monostate) {}  // absent, as it is already
  void set(const std::string& name, bool value) { require(ejk_params_set_bool(params_, name.c_str(), value)); }
  void set(const std::string& name, int64_t value) { require(ejk_params_set_i64(params_, name.c_str(), value)); }
  void set(const std::string& name, double value) { require(ejk_params_set_f64(params_, name.c_str(), value)); }
  void set(const std::string& name, const std::string& value) {
    require(ejk_params_set_str(params_, name.c_str(), value.c_str()));
  }
  void set(const std::string& name, const std::vector<int64_t>& value) {
    require(ejk_params_set_i64s(params_, name.c_str(), value.data(), value.size()));
  }

  ejk_params_t* params_ = nullptr;
};

/// Host time of calls on one device, on a stream of its own where the device has streams.
class Stopwatch {
 public:
  Stopwatch(Device device, double seconds) : device_(device), seconds_(seconds) {
    if (device.kind != DeviceKind::cpu) stream_.emplace(device);
  }
  Device device() const { return device_; }
  void* stream() const { return stream_ ? stream_->handle() : nullptr; }

  Summary time_of(const std::function<void(int64_t)>& run) const {
    const Sampler sampler = stream_ ? launch_sampler(run) : make_sampler(run);
    return measure(sampler, {.max_seconds = seconds_, .spread = 0.005, .min_samples = 25});
  }

 private:
  /// Few enough that they do not wait for room in the queue.
  Sampler launch_sampler(const std::function<void(int64_t)>& run) const {
    constexpr int64_t kLaunches = 100;
    for (int64_t i = 0; i < kLaunches; ++i) run(i);
    return [this, run] {
      stream_->synchronize();
      const double began = now_seconds();
      for (int64_t i = 0; i < kLaunches; ++i) run(i);
      return (now_seconds() - began) / static_cast<double>(kLaunches);
    };
  }

  Device device_;
  double seconds_;
  std::optional<cuda::Stream> stream_;
};

/// The driver's own launch, with nothing of ours around it.
Summary time_of_empty_kernel(const Stopwatch& stopwatch) {
  const auto program = cuda::load_program({.file = "ejkernel/platform/cuda/device/empty.cu", .instance = "ejk::empty"},
                                          device_properties(stopwatch.device()));
  const auto function = program->function(stopwatch.device().ordinal);
  const auto stream = static_cast<cuda::abi::CUstream>(stopwatch.stream());
  const cuda::CurrentDevice current(stopwatch.device());
  const auto launch = cuda::driver().launch_kernel.address;
  return stopwatch.time_of([&](int64_t) {
    cuda::check(launch(function, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr), "cuLaunchKernel");
  });
}

Json figure(std::string_view operation, std::string_view what, const Summary& time, double target) {
  return {{"operation", operation}, {"what", what},     {"seconds", time.median},      {"low", time.low},
          {"high", time.high},      {"target", target}, {"met", time.median <= target}};
}

void measure_operation(const std::string& operation, const Stopwatch& stopwatch, const Targets& targets,
                       Json& figures) {
  const Device device = stopwatch.device();
  void* stream = stopwatch.stream();
  CallFlags flags;
  flags.device = device;
  const Workload workload(device.kind == DeviceKind::cpu ? empty_call(operation) : smallest_call(operation), flags, 0);
  const Plan& plan = workload.plan();
  const auto add = [&](std::string_view what, double target, const std::function<void(int64_t)>& run) {
    figures.push_back(figure(operation, what, stopwatch.time_of(run), target));
  };
  add("plan.run", targets.run, [&](int64_t i) { workload.run(i, stream); });

  const std::vector<Tensor> inputs(workload.inputs().begin(), workload.inputs().end());
  const std::vector<Tensor> outputs(workload.outputs().begin(), workload.outputs().end());
  const CTensors c_inputs(plan.operation().inputs, inputs), c_outputs(plan.operation().outputs, outputs);
  const CParams c_params(plan);
  ejk_plan_t* c_plan = nullptr;
  require(
      ejk_plan(operation.c_str(), c_inputs.list().data(), c_inputs.list().size(), c_params.get(), nullptr, &c_plan));
  Array workspace(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())}, device, stream);
  ejk_run_options options = {};
  options.size = sizeof options;
  options.stream = stream;
  options.workspace = workspace.data();
  options.workspace_bytes = plan.workspace_bytes();
  add("ejk_plan_run", targets.c_run, [&](int64_t) {
    require(ejk_plan_run(c_plan, c_inputs.list().data(), c_inputs.list().size(), c_outputs.list().data(),
                         c_outputs.list().size(), &options));
  });
  ejk_free(c_plan);

  add("execute", targets.execute, [&](int64_t) { execute(operation, inputs, plan.params(), {.stream = stream}); });
}

/// Seconds that the store's calls may take.
constexpr double kFind = 10e-6, kPut = 2e-3;

/// A config's record, read back and published over and over.
void measure_store(const Stopwatch& stopwatch, Json& figures) {
  const ScratchFolder folder;
  const Store store(folder.path());
  const RecordKey key = {"cpu|some processor|avx3", "flash_attention", std::string(300, 'k')};
  const Record record = {std::string(200, 'v'), "measured"};
  if (!store.put(key, record))
    throw_invalid("ejk", store.root(), "be a folder that records can be put in", "one that cannot",
                  "set EJKERNEL_CACHE_DIR");
  figures.push_back(figure("(the store)", "find", stopwatch.time_of([&](int64_t) { store.find(key); }), kFind));
  figures.push_back(figure("(the store)", "put", stopwatch.time_of([&](int64_t) { store.put(key, record); }), kPut));
}

/// Seconds that the memory tier may take to find a config.
constexpr double kHit = 100e-9;

/// A cache as the memory tier has it, full, and as many of its problems in turn as a model has.
void measure_memory_tier(const Stopwatch& stopwatch, Json& figures) {
  constexpr size_t kConfigs = 16384, kProblems = 64;
  struct Config {
    int block_q = 64, block_k = 64, stages = 2;
  };
  ClockCache<std::optional<ConfigBlock>> cache(kConfigs);
  std::vector<std::string> keys;
  std::vector<uint64_t> hashes;
  for (size_t i = 0; i < kConfigs; ++i) {
    keys.push_back(fmt::format("{:0>400}", i));  // equal up to their ends, as those of one operation nearly are
    hashes.push_back(digest_of(keys.back()).low);
    cache.put(hashes.back(), keys.back(), ConfigBlock::of(Config()));
  }
  const size_t first = kConfigs - kProblems;
  const auto find = [&](int64_t i) {
    const size_t at = first + static_cast<size_t>(i) % kProblems;
    if (!cache.find(hashes[at], keys[at])) throw Internal("ejk: bench --overhead: the cache lost what was put last");
  };
  figures.push_back(figure("(the memory tier)", "hit", stopwatch.time_of(find), kHit));
}

bool has_kernel_for(const std::string& operation, Device device) {
  const auto& kernels = KernelRegistry::instance().find(operation)->kernels;
  return std::any_of(kernels.begin(), kernels.end(),
                     [&](const auto& kernel) { return serves(kernel->backend, device); });
}

/// With where and of what the figures are: of the tree that stands here, or of a version where none does.
Json report_json(Device device, const Json& figures) {
  const DeviceProperties& properties = device_properties(device);
  return {{"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))},
          {"commit", testing::commit_at(std::filesystem::current_path())},
          {"version", kVersion},
          {"compiler", kCompiler},
          {"device", {{"product", properties.product}, {"architecture", properties.architecture}}},
          {"overhead", figures}};
}

}  // namespace

int bench_overhead(const BenchFlags& flags) {
  Json figures = Json::array();
  const Device device = flags.call.device;
  const Stopwatch stopwatch(device, std::min(flags.seconds, 0.3));
  Targets targets = kOnHost;
  if (device.kind != DeviceKind::cpu) {
    const Summary empty = time_of_empty_kernel(stopwatch);
    figures.push_back(figure("(the driver)", "empty kernel", empty, empty.median));
    targets = {empty.median + kOnGpu.run, empty.median + kOnGpu.c_run, empty.median + kOnGpu.execute};
  }
  for (const std::string& operation : KernelRegistry::instance().names()) {
    if (!flags.call.operation.empty() && operation != flags.call.operation) continue;
    if (!forward_of(operation).empty() || !has_kernel_for(operation, device)) continue;
    measure_operation(operation, stopwatch, targets, figures);
  }
  if (device.kind == DeviceKind::cpu && flags.call.operation.empty()) {
    measure_memory_tier(stopwatch, figures);
    measure_store(stopwatch, figures);
  }
  bool met = true;
  Table table("llrrrl", " | ");
  table.add({"operation", device.kind == DeviceKind::cpu ? "call of no elements" : "smallest call", "ns", "±",
             "target ns", ""});
  for (const Json& f : figures) {
    met = met && f["met"].get<bool>();
    const double spread = (f["high"].get<double>() - f["low"].get<double>()) / 2 / f["seconds"].get<double>();
    table.add({f["operation"], f["what"], fmt::format("{:.0f}", 1e9 * f["seconds"].get<double>()),
               fmt::format("{:.1f} %", 100 * spread), fmt::format("{:.0f}", 1e9 * f["target"].get<double>()),
               f["met"].get<bool>() ? "met" : "missed"});
  }
  if (flags.json)
    fmt::print("{}\n", report_json(device, figures).dump(2));
  else
    fmt::print("{}", table.text());
  return met ? kOk : kFailed;
}

}  // namespace ejk::tool
