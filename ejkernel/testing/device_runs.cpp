#include "ejkernel/testing/device_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/platform/cuda/stream.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/testing/operations.h"

namespace ejk::testing {
namespace {

Plan plan_of(const Configuration& configuration, std::span<const Tensor> inputs) {
  auto alone = std::make_shared<RegisteredOperation>();  // no other kernel can answer for this one
  alone->declaration = configuration.problem.operation;
  alone->kernels = {configuration.kernel};
  return Plan::make(std::move(alone), inputs, configuration.problem.params,
                    {.kernel = configuration.kernel->name, .config = configuration.config});
}

void compile(const Configuration& configuration, Device device) {
  std::vector<Tensor> specs;
  for (const Tensor& input : configuration.problem.views())
    specs.push_back(input.present() ? Tensor(nullptr, input.dtype, input.shape, device) : Tensor());
  try {
    plan_of(configuration, specs);
  } catch (const Error&) {  // whoever runs it meets the same error
  }
}

/// Contents of its own, in the shapes of `problem`: what a replay finds changed. Numbers change, indices stay.
Problem with_other_contents(const Problem& problem, uint64_t seed) {
  Problem other = relaid(problem, [](size_t) { return Layout{}; });
  Random random(seed);
  for (const Placed& input : other.inputs)
    if (input.view.present() && is_float(input.view.dtype) && input.view.rank() > 0) fill_normal(input.view, random, 1);
  return other;
}

/// More than that is left alone: a GPU with 80 GB shall have room for it.
constexpr int64_t kMostFarBytes = int64_t{64} << 30;

/// A tensor spread over so much of the device's memory that its last row begins near element `top`.
class FarTensor {
 public:
  FarTensor(const Tensor& like, Device device, int64_t top) {
    if (!like.present()) return;
    Shape strides = contiguous_strides(like.shape);
    const int axis = far_axis(like);
    is_far_ = axis >= 0;
    if (is_far_) strides[axis] = top / (like.shape[axis] - 1) / 8 * 8;  // rows stay aligned to 16 bytes
    view_ = Tensor(nullptr, like.dtype, like.shape, strides, device);
    memory_ = Array(like.dtype, {element_range(view_)[1]}, device);
    view_.data = memory_.data();
  }

  /// Most of it is never touched, but all of it must be there.
  static int64_t bytes_for(const Tensor& like, int64_t top) {
    return far_axis(like) >= 0 ? num_bytes(like.dtype, {top}) : 0;
  }

  const Tensor& view() const { return view_; }
  bool is_far() const { return is_far_; }

  /// Row by row from and to a contiguous tensor of the device; rows begin at whole bytes.
  void take(const Tensor& near) const { copy_rows(view_, near); }
  void give(const Tensor& near) const { copy_rows(near, view_); }

 private:
  /// The longest but the last, which stays contiguous; -1: there is none to spread.
  static int far_axis(const Tensor& like) {
    int axis = -1;
    for (int i = 0; i + 1 < like.rank() && like.num_elements() > 0; ++i)
      if (like.shape[i] > 1 && (axis < 0 || like.shape[i] > like.shape[axis])) axis = i;
    return axis;
  }
  static void copy_rows(const Tensor& to, const Tensor& from) {
    const cuda::CurrentDevice current(to.device);
    const int64_t row = to.rank() == 0 ? 1 : to.shape[-1];
    const auto size = static_cast<size_t>(num_bytes(to.dtype, {row}));
    const auto address = [&](const Tensor& t, int64_t n) {
      return reinterpret_cast<cuda::abi::CUdeviceptr>(t.as<char>() + element_offset(t, n) * bits(t.dtype) / 8);
    };
    for (int64_t n = 0; n < to.num_elements(); n += row)
      cuda::driver().copy_on_device(address(to, n), address(from, n), size, nullptr);
  }

  Array memory_;
  Tensor view_;
  bool is_far_ = false;
};

}  // namespace

std::vector<const TestOperation*> operations_on(Device device) {
  std::vector<const TestOperation*> found;
  for (const TestOperation* tests : test_operations())
    if (!kernels_of(*tests->declaration, device).empty()) found.push_back(tests);
  return found;
}

void in_threads(int64_t n, const std::function<void(int64_t)>& work) {
  std::atomic<int64_t> next = 0;
  const auto go = [&] {
    const cpu::ScopedNumThreads one(1);
    for (int64_t i; (i = next.fetch_add(1)) < n;) work(i);
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < cpu::default_num_threads(); ++i) threads.emplace_back(go);
  go();
  for (std::thread& thread : threads) thread.join();
}

std::string Configuration::text() const {
  std::string values;
  for (const auto& [field, value] : config.value_or(ConfigValues())) values += fmt::format(" {}={}", field, value);
  return fmt::format("{} {},{}; {}", problem.operation->name, problem.label, values, replay_command(problem, *kernel));
}

std::vector<Configuration> candidates_for(const Problem& problem, const Kernel& kernel, Device device) {
  std::vector<Tensor> inputs = problem.views(), outputs;
  for (Tensor& input : inputs) input.device = device;
  for (const OutputSpec& spec : check_call(*problem.operation, inputs, problem.params).outputs)
    outputs.push_back(spec.present ? Tensor(nullptr, spec.dtype, spec.shape, device) : Tensor());
  const CallView view{inputs, &problem.params, outputs};
  const DeviceProperties& properties = device_properties(device);
  std::vector<Configuration> all;
  if (!kernel->config_fields.empty())
    for (const ConfigBlock& config : kernel->candidates(view, properties))
      all.push_back({problem, kernel, config_values(*kernel, config),
                     kernel->cost == nullptr ? 0 : kernel->cost(view, config, properties).tasks});
  if (all.empty()) all.push_back({problem, kernel});
  return all;
}

void compile_all(std::span<const Configuration> all, Device device) {
  in_threads(static_cast<int64_t>(all.size()), [&](int64_t i) { compile(all[static_cast<size_t>(i)], device); });
}

std::vector<Configuration> configurations(const TestOperation& tests, const Kernel& kernel, Device device, size_t count,
                                          uint64_t seed, Size size) {
  constexpr size_t kWave = 16;
  constexpr int64_t kMostBytes = 32 << 20;  // what is compared a thousand times crosses to the host as often
  std::vector<Configuration> found;
  Random random(seed);
  for (uint64_t first = 0; found.size() < count && first < 50 * count; first += kWave) {
    std::vector<std::optional<Problem>> wave(kWave);
    in_threads(kWave, [&](int64_t i) {
      const uint64_t n = first + static_cast<uint64_t>(i);
      const bool dense = size == Size::normal || n % 2 == 0;
      wave[static_cast<size_t>(i)] =
          with_equal_bits(tests.random({.seed = seed * 1000003 + n, .size = size, .dense = dense}));
    });
    for (const std::optional<Problem>& problem : wave) {
      int64_t bytes = 0;
      for (const Tensor& input : problem->views())
        if (input.present()) bytes += num_bytes(input.dtype, input.shape);
      if (found.size() == count || bytes > kMostBytes) continue;
      if (is_too_slow(*problem, kernel) || !supports(*problem, kernel, device).ok) continue;
      found.push_back(random.pick(candidates_for(*problem, kernel, device)));
    }
  }
  compile_all(found, device);
  return found;
}

struct OtherWork::State {
  State(const Configuration& work, Device device)
      : resident(work.problem, work.kernel, device, work.config), stream(device), thread([this] { go_on(); }) {}
  void go_on() const {
    while (!stop) {
      for (int i = 0; i < 16; ++i) resident.run(stream);
      stream.synchronize();
    }
  }
  Resident resident;
  cuda::Stream stream;
  std::atomic<bool> stop = false;
  std::thread thread;
};

OtherWork::OtherWork(const Configuration& work, Device device) : state_(std::make_unique<State>(work, device)) {}

OtherWork::~OtherWork() {
  state_->stop = true;
  state_->thread.join();
}

int64_t unequal_reruns(const Configuration& configuration, Device device, int64_t reruns) {
  const Resident resident(configuration.problem, configuration.kernel, device, configuration.config);
  const cuda::Stream stream(device);
  const Digest first = resident.result(stream);
  int64_t unequal = 0;
  for (int64_t n = 0; n < reruns; ++n) unequal += !(resident.result(stream) == first);
  return unequal;
}

int64_t wrong_replays(const Configuration& configuration, Device device, int64_t replays) {
  const cuda::Stream stream(device);
  constexpr size_t kContents = 5;
  std::vector<std::unique_ptr<Resident>> contents;
  std::vector<Digest> expected;
  for (size_t i = 0; i < kContents; ++i) {
    const Problem problem = with_other_contents(configuration.problem, configuration.problem.seed + i);
    contents.push_back(std::make_unique<Resident>(problem, configuration.kernel, device, configuration.config));
    expected.push_back(contents.back()->result(stream));
  }
  const Resident resident(configuration.problem, configuration.kernel, device, configuration.config);
  resident.run(stream);  // what is loaded at the first launch is not part of the graph
  stream.synchronize();
  const cuda::Graph graph(stream, [&] { resident.run(stream); });
  int64_t wrong = 0;
  for (int64_t n = 0; n < replays; ++n) {
    const size_t which = static_cast<size_t>(n) * 7 % 11 % kContents;
    resident.take_inputs(*contents[which], stream);
    resident.poison(stream);
    graph.launch(stream);
    wrong += !(resident.digest(stream) == expected[which]);
  }
  return wrong;
}

int64_t wrong_beside(const Configuration& a, const Configuration& b, Device device, int64_t rounds) {
  const Resident first(a.problem, a.kernel, device, a.config), second(b.problem, b.kernel, device, b.config);
  const cuda::Stream one(device), two(device);
  const Digest alone = first.result(one), other_alone = second.result(two);
  int64_t wrong = 0;
  for (int64_t n = 0; n < rounds; ++n) {
    first.poison(one);
    second.poison(two);
    for (int i = 0; i < 4; ++i) {
      first.run(one);
      second.run(two);
    }
    const bool equal = first.digest(one) == alone;
    wrong += !(second.digest(two) == other_alone && equal);
  }
  return wrong;
}

std::optional<std::string> far_call(const Configuration& configuration, Device device, int64_t top) {
  const Resident near(configuration.problem, configuration.kernel, device, configuration.config);
  near.result(nullptr);
  int64_t far_bytes = 0;
  for (const Tensor& input : configuration.problem.views()) far_bytes += FarTensor::bytes_for(input, top);
  const std::span<const OutputSpec> specs = near.plan().outputs();
  for (size_t o = 0; o < specs.size(); ++o)
    if (specs[o].aliased_input < 0) far_bytes += FarTensor::bytes_for(near.outputs()[o], top);
  if (far_bytes > kMostFarBytes) return std::nullopt;
  std::vector<FarTensor> far_inputs, far_outputs;
  std::vector<Tensor> inputs, outputs;
  bool any = false;
  const auto spread = [&](const Tensor& like, std::vector<FarTensor>& far, std::vector<Tensor>& views) {
    far.emplace_back(like, device, top);
    views.push_back(far.back().view());
    any = any || far.back().is_far();
  };
  std::vector<Array> uploaded;
  for (const Tensor& input : configuration.problem.views()) {
    spread(input, far_inputs, inputs);
    if (!input.present()) continue;
    uploaded.push_back(to_device(contiguous(input), device));
    far_inputs.back().take(uploaded.back());
  }
  for (size_t o = 0; o < specs.size(); ++o) {
    const int input = specs[o].aliased_input;
    spread(input < 0 ? near.outputs()[o].view() : Tensor(), far_outputs, outputs);
    if (input >= 0) outputs.back() = inputs[static_cast<size_t>(input)];
  }
  if (!any) return std::nullopt;

  std::optional<Plan> plan;
  try {
    plan = plan_of(configuration, inputs);
  } catch (const Unsupported&) {
    return std::nullopt;
  }
  const Array workspace(DType::u8, {static_cast<int64_t>(plan->workspace_bytes())}, device);
  plan->run(inputs, outputs, {.workspace = {workspace.as<std::byte>(), plan->workspace_bytes()}});
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o].present()) continue;
    const Array gathered(outputs[o].dtype, outputs[o].shape, device);
    const int input = specs[o].aliased_input;
    (input < 0 ? far_outputs[o] : far_inputs[static_cast<size_t>(input)]).give(gathered);
    const std::string wrong = compare_bits(to_host(gathered), to_host(near.outputs()[o]));
    if (!wrong.empty())
      return fmt::format("{}, far at element {}, {}: {}", configuration.text(), top,
                         configuration.problem.operation->outputs[o].name, wrong);
  }
  return "";
}

}  // namespace ejk::testing
