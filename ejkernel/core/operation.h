// What an operation and a kernel are. Authors write typed structs; `operation<Op>()` and `make_kernel<Op, K>()` erase
// the types once, and everything behind them (registry, plans, C ABI, tools) is ordinary, untemplated code.
//
//   struct Toy {                                        // an operation: a struct of declarations
//     static constexpr std::string_view kName = "toy";
//     static constexpr int kRevision = 1;               // raise when results or the meaning of a field change
//     static constexpr std::string_view kSummary = "…", kSource = "…";
//     struct Inputs { Tensor x = {}; };
//     struct Params { double scale = 1; };
//     template <class T> struct Out { T y = {}; };
//     using Outputs = Out<Tensor>;  using Results = Out<Array>;
//     static constexpr auto inputs()  { return std::array{TensorField{"x", "float[batch, dim]", "…"}}; }
//     static constexpr auto outputs() { return std::array{TensorField{"y", "@x[batch, dim]", "…"}}; }
//     static constexpr auto params()  { return std::array{param<&Params::scale>("scale", Key::none, "…")}; }
//     static Work work(const Call<Toy>&);
//     static std::span<const KernelInfo* const> kernels();        // order is priority; the reference is last
//     // optional: kForms, form(), bind(), check(), kGradient, batch_dim()
//   };
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ejkernel/core/device.h"
#include "ejkernel/core/dims.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/schema.h"
#include "ejkernel/core/tensor.h"

namespace ejk {

/// What the problem costs, from shapes alone: arithmetic and the bytes that must cross memory once.
struct Work {
  double flops = 0;
  double bytes = 0;
};

/// What a config makes of a problem, by counting: the tuner leaves out what cannot be near the best.
struct Cost {
  double tasks = 1;       ///< that the device's units (threads, multiprocessors) work through, one at a time each
  double task_flops = 0;  ///< of one, what it computes in vain included
  double bytes = 0;       ///< that cross memory
  DType arithmetic = DType::f32;  ///< of what is multiplied
  int64_t shared_bytes = 0;       ///< of a block on a GPU
};

/// Bytes of the tensors that are given.
inline double bytes_of(std::span<const Tensor> tensors) {
  double bytes = 0;
  for (const Tensor& t : tensors)
    if (t.present()) bytes += static_cast<double>(num_bytes(t.dtype, t.shape));
  return bytes;
}

/// A kernel's answer to "can you do this call here?". It touches no data and launches nothing.
struct Support {
  bool ok = true;
  std::string reason = {};
  static Support yes() { return {}; }
  static Support no(std::string reason) { return {false, std::move(reason)}; }
};

/// What choices may depend on about a device; see runtime/devices.h for the machine's own.
struct DeviceProperties {
  Device device = {};
  std::string product = {};            ///< "AMD EPYC 9575F", "NVIDIA H200"
  std::string architecture = {};       ///< "x86_64 avx3_zen4 amx", "sm_90"
  int num_units = 1;                   ///< threads the library uses, or multiprocessors
  int64_t cache_bytes = 0;             ///< last-level cache
  int compute_capability = 0;          ///< 90 for sm_90; 0 on the host
  int64_t shared_bytes_per_block = 0;  ///< the most that a kernel of a GPU can opt into (232448 on an H200)
  /// Products of pairs of bf16 numbers for each of float32 numbers, at their measured peaks; 0 where nobody measured.
  double bf16_speedup = 0;
};

/// Bits of the optional status word (runtime §3): a fault in index contents that was masked.
namespace status {
inline constexpr uint32_t kPageId = 1;
inline constexpr uint32_t kLength = 2;
inline constexpr uint32_t kOffsets = 4;
inline constexpr uint32_t kGroupSize = 8;
inline constexpr uint32_t kBlockIndex = 16;
}  // namespace status

/// What `run` is handed besides the call.
struct RunContext {
  void* stream = nullptr;               ///< a CUstream for cuda; ignored on the host
  std::span<std::byte> workspace = {};  ///< at least the plan's workspace_bytes(), aligned to 64
  uint32_t* status = nullptr;           ///< OR-ed atomically when given
  const void* code = nullptr;           ///< what the kernel's `prepare` made for this choice
  const DeviceProperties* device = nullptr;
};

/// A small trivially copyable struct with its type erased: Params and Config values.
template <size_t kCapacity>
class Block {
 public:
  Block() = default;
  template <class T>
  static Block of(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kCapacity && alignof(T) <= 16);
    Block block;
    std::memcpy(block.bytes_, &value, sizeof(T));
    return block;
  }
  template <class T>
  T as() const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kCapacity);
    T value;
    std::memcpy(static_cast<void*>(&value), bytes_, sizeof(T));
    return value;
  }
  const void* data() const { return bytes_; }
  void* data() { return bytes_; }
  /// Byte for byte: equal values of a type with padding may differ.
  friend bool operator==(const Block& a, const Block& b) { return std::memcmp(a.bytes_, b.bytes_, kCapacity) == 0; }

 private:
  alignas(16) std::byte bytes_[kCapacity] = {};
};
using ParamsBlock = Block<320>;
using ConfigBlock = Block<64>;

/// A call with its types erased: tensors in field order. An aliased output may be absent here or lie differently; a
/// `Call` always has it, as the input that it is.
struct CallView {
  std::span<const Tensor> inputs = {};
  const ParamsBlock* params = nullptr;
  std::span<const Tensor> outputs = {};
};

/// The same call as its operation's author sees it.
template <class Op>
struct Call {
  typename Op::Inputs inputs;
  typename Op::Params params;
  typename Op::Outputs outputs;
};

template <class Struct>
inline constexpr size_t kNumTensors = sizeof(Struct) / sizeof(Tensor);

/// Struct of Tensors <-> tensors in field order. Both are trivially copyable and hold nothing else.
template <class Struct>
Struct to_struct(std::span<const Tensor> tensors) {
  static_assert(std::is_trivially_copyable_v<Struct> && sizeof(Struct) % sizeof(Tensor) == 0);
  Struct result;
  std::memcpy(static_cast<void*>(&result), tensors.data(), sizeof(Struct));
  return result;
}
template <class Struct>
std::array<Tensor, kNumTensors<Struct>> to_array(const Struct& tensors) {
  static_assert(std::is_trivially_copyable_v<Struct> && sizeof(Struct) % sizeof(Tensor) == 0);
  return std::bit_cast<std::array<Tensor, kNumTensors<Struct>>>(tensors);
}
/// Per output the input that it aliases; -1: none.
template <class Op>
constexpr auto aliased_inputs() {
  const auto inputs = Op::inputs();
  const auto outputs = Op::outputs();
  std::array<int, kNumTensors<typename Op::Outputs>> aliased = {};
  for (size_t o = 0; o < aliased.size(); ++o) aliased[o] = aliased_input(inputs, outputs[o]);
  return aliased;
}
template <class Op>
Call<Op> typed(const CallView& view) {
  using Outputs = typename Op::Outputs;
  Call<Op> call{to_struct<typename Op::Inputs>(view.inputs), view.params->as<typename Op::Params>(),
                to_struct<Outputs>(view.outputs)};
  constexpr auto kAliased = aliased_inputs<Op>();
  if constexpr (std::any_of(kAliased.begin(), kAliased.end(), [](int input) { return input >= 0; })) {
    auto outputs = to_array(call.outputs);
    for (size_t o = 0; o < outputs.size(); ++o)
      if (kAliased[o] >= 0) outputs[o] = view.inputs[static_cast<size_t>(kAliased[o])];
    call.outputs = to_struct<Outputs>(outputs);
  }
  return call;
}

/// One implementation of an operation on one platform, as the registry knows it.
struct KernelInfo {
  std::string name;
  Platform platform = Platform::reference;
  Backend backend = Backend::any;
  int revision = 1;
  std::span<const ConfigField> config_fields = {};
  Support (*supports)(const CallView&, const DeviceProperties&) = nullptr;
  ConfigBlock (*heuristic)(const CallView&, const DeviceProperties&) = nullptr;
  std::vector<ConfigBlock> (*candidates)(const CallView&, const DeviceProperties&) = nullptr;
  /// Whether this machine can run a config of legal values; null where it can run all. A reason is a fact about the
  /// machine.
  Support (*runs_here)(const ConfigBlock&, const DeviceProperties&) = nullptr;
  /// What a config costs; null for a kernel that does not say.
  Cost (*cost)(const CallView&, const ConfigBlock&, const DeviceProperties&) = nullptr;
  size_t (*workspace_bytes)(const CallView&, const ConfigBlock&, const DeviceProperties&) = nullptr;
  void (*run)(const CallView&, const ConfigBlock&, const RunContext&) = nullptr;
  /// Loads what `run` launches; null without such code. Shared by all calls of a problem, so it may depend on what the
  /// tuning key tells apart and on no length or stride. Unsupported where it fails: the next kernel gets the call.
  std::shared_ptr<const void> (*prepare)(const CallView&, const ConfigBlock&, const DeviceProperties&) = nullptr;
  /// Declared fields of a kernel that comes from outside (plug-in, Python); validate_signatures compares them.
  std::vector<std::string> signature = {};
  std::string_view file = {};  ///< that it was made in, as the compiler calls it
};

/// For kernels without anything to choose.
struct NoConfig {
  static constexpr std::array<ConfigField, 0> fields() { return {}; }
};

namespace operation_detail {
template <class K>
struct ConfigOf {
  using Type = NoConfig;
};
template <class K>
requires requires { typename K::Config; }
struct ConfigOf<K> {
  using Type = typename K::Config;
};

// Static storage for what the erased spans point at.
template <class Op>
inline constexpr auto kInputs = Op::inputs();
template <class Op>
inline constexpr auto kOutputs = Op::outputs();
template <class Op>
inline constexpr auto kParams = Op::params();
template <class Config>
inline constexpr auto kConfigFields = Config::fields();
template <class Op>
constexpr std::span<const std::string_view> forms() {
  if constexpr (requires { Op::kForms; })
    return Op::kForms;
  else
    return {};
}

template <class K>
constexpr Backend backend_of() {
  if constexpr (requires { K::kBackend; })
    return K::kBackend;
  else
    return K::kPlatform == Platform::cuda ? Backend::gpu : Backend::cpu;
}
}  // namespace operation_detail

template <class K>
using ConfigOf = typename operation_detail::ConfigOf<K>::Type;

/// A kernel is a struct of static functions:
///   kName, kPlatform, [kBackend, kRevision], [Config], [supports], [heuristic, candidates], [runs_here], [cost],
///   [workspace_bytes], [prepare], run.
template <class Op, class K>
KernelInfo make_kernel(const char* file = __builtin_FILE()) {  // std::source_location needs clang 16
  using Config = ConfigOf<K>;
  KernelInfo info;
  info.file = file;
  info.name = std::string(K::kName);
  info.platform = K::kPlatform;
  info.backend = operation_detail::backend_of<K>();
  if constexpr (requires { K::kRevision; }) info.revision = K::kRevision;
  info.config_fields = operation_detail::kConfigFields<Config>;

  info.supports = [](const CallView& view, const DeviceProperties& device) {
    if (!serves(operation_detail::backend_of<K>(), device.device))
      return Support::no("it serves " + std::string(name(operation_detail::backend_of<K>())) + ", the tensors are on " +
                         to_string(device.device));
    if constexpr (requires { K::supports(typed<Op>(view), device); })
      return K::supports(typed<Op>(view), device);
    else
      return Support::yes();
  };
  info.heuristic = [](const CallView& view, [[maybe_unused]] const DeviceProperties& device) {
    if constexpr (std::is_same_v<Config, NoConfig>)
      return ConfigBlock();
    else
      return ConfigBlock::of<Config>(K::heuristic(typed<Op>(view), device));
  };
  info.candidates = [](const CallView& view, [[maybe_unused]] const DeviceProperties& device) {
    std::vector<ConfigBlock> all;
    if constexpr (std::is_same_v<Config, NoConfig>)
      all.emplace_back();
    else
      for (const Config& config : K::candidates(typed<Op>(view), device)) all.push_back(ConfigBlock::of(config));
    return all;
  };
  if constexpr (requires { &K::runs_here; })
    info.runs_here = [](const ConfigBlock& config, const DeviceProperties& device) {
      return K::runs_here(config.as<Config>(), device);
    };
  if constexpr (requires { &K::cost; })
    info.cost = [](const CallView& view, const ConfigBlock& config, const DeviceProperties& device) {
      return K::cost(typed<Op>(view), config.as<Config>(), device);
    };
  info.workspace_bytes = []([[maybe_unused]] const CallView& view, [[maybe_unused]] const ConfigBlock& config,
                            [[maybe_unused]] const DeviceProperties& device) -> size_t {
    if constexpr (requires { K::workspace_bytes(typed<Op>(view), config.as<Config>(), device); })
      return K::workspace_bytes(typed<Op>(view), config.as<Config>(), device);
    else
      return 0;
  };
  if constexpr (requires { &K::prepare; })
    info.prepare = [](const CallView& view, [[maybe_unused]] const ConfigBlock& config,
                      const DeviceProperties& device) -> std::shared_ptr<const void> {
      if constexpr (std::is_same_v<Config, NoConfig>)
        return K::prepare(typed<Op>(view), device);
      else
        return K::prepare(typed<Op>(view), config.as<Config>(), device);
    };
  info.run = [](const CallView& view, [[maybe_unused]] const ConfigBlock& config, const RunContext& context) {
    if constexpr (std::is_same_v<Config, NoConfig>)
      K::run(typed<Op>(view), context);
    else
      K::run(typed<Op>(view), config.as<Config>(), context);
  };
  return info;
}

/// An operation's declaration with its types erased.
struct Operation {
  std::string_view name;
  int revision = 1;
  std::string_view summary;
  std::string_view source;
  std::span<const TensorField> inputs;
  std::span<const TensorField> outputs;
  std::span<const ParamField> params;
  std::span<const std::string_view> forms;  ///< names of the forms; empty: one unnamed form
  std::string_view gradient;                ///< name of the operation that is its gradient; empty: none
  ParamsBlock default_params;
  int (*form)(std::span<const Tensor> inputs, const ParamsBlock& params) = nullptr;
  /// Computed dimensions and everything the contracts cannot say; throws InvalidArgument.
  void (*check)(std::span<const Tensor> inputs, const ParamsBlock& params, Dims& dims) = nullptr;
  /// The dimension whose entries are calls of their own under these parameters: what an output holds for one depends on
  /// that entry of the inputs, and not on its number. Empty: none; null: the operation declares none.
  std::string_view (*batch_dim)(const ParamsBlock& params) = nullptr;
  Work (*work)(const CallView&) = nullptr;
  std::span<const KernelInfo* const> (*kernels)() = nullptr;
};

template <class Op>
const Operation& operation() {
  using Inputs = typename Op::Inputs;
  using Params = typename Op::Params;
  static_assert(kNumTensors<Inputs> == operation_detail::kInputs<Op>.size(), "every input has its field, in order");
  static_assert(kNumTensors<typename Op::Outputs> == operation_detail::kOutputs<Op>.size(),
                "every output has its field");
  static_assert(aliases_are_sound(operation_detail::kInputs<Op>, operation_detail::kOutputs<Op>),
                "an output with & has the contract of the input of its name, or that input's dtype and dimensions");
  static_assert(!(requires { Op::kGradient; } && std::any_of(operation_detail::kOutputs<Op>.begin(),
                                                             operation_detail::kOutputs<Op>.end(), is_aliased)),
                "an operation that writes its input has no gradient: what that would need is gone");
  static const Operation erased = [] {
    Operation op;
    op.name = Op::kName;
    op.revision = Op::kRevision;
    op.summary = Op::kSummary;
    op.source = Op::kSource;
    op.inputs = operation_detail::kInputs<Op>;
    op.outputs = operation_detail::kOutputs<Op>;
    op.params = operation_detail::kParams<Op>;
    op.forms = operation_detail::forms<Op>();
    if constexpr (requires { Op::kGradient; }) op.gradient = Op::kGradient;
    op.default_params = ParamsBlock::of(Params{});
    op.form = []([[maybe_unused]] std::span<const Tensor> inputs, [[maybe_unused]] const ParamsBlock& params) {
      if constexpr (requires { Op::form(to_struct<Inputs>(inputs), params.as<Params>()); })
        return static_cast<int>(Op::form(to_struct<Inputs>(inputs), params.as<Params>()));
      else
        return 0;
    };
    op.check = []([[maybe_unused]] std::span<const Tensor> inputs, [[maybe_unused]] const ParamsBlock& params,
                  [[maybe_unused]] Dims& dims) {
      if constexpr (requires { Op::check(to_struct<Inputs>(inputs), params.as<Params>(), dims); })
        Op::check(to_struct<Inputs>(inputs), params.as<Params>(), dims);
    };
    if constexpr (requires { &Op::batch_dim; })
      op.batch_dim = [](const ParamsBlock& params) { return Op::batch_dim(params.as<Params>()); };
    op.work = [](const CallView& view) { return Op::work(typed<Op>(view)); };
    op.kernels = &Op::kernels;
    return op;
  }();
  return erased;
}

}  // namespace ejk
