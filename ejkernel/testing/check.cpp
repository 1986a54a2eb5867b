#include "ejkernel/testing/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/plan.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/testing/mirror.h"

namespace ejk::testing {
namespace {

/// A problem as kernels are asked about it: outputs are specs without data.
struct SpecCall {
  SpecCall(const Problem& problem, Device device) : inputs(problem.views()) {
    for (Tensor& input : inputs) input.device = device;
    for (const OutputSpec& spec : check_call(*problem.operation, inputs, problem.params).outputs)
      outputs.push_back(spec.present ? Tensor(nullptr, spec.dtype, spec.shape, device) : Tensor());
    view = {inputs, &problem.params, outputs};
  }
  std::vector<Tensor> inputs, outputs;
  CallView view;
};

/// One guarded run, step by step.
class GuardedRun {
 public:
  GuardedRun(const Problem& problem, const Kernel& kernel, const RunSettings& settings)
      : problem_(problem),
        kernel_(kernel),
        settings_(settings),
        random_(settings.seed ^ 0x52554E5Eu),
        mirror_(settings.device, settings.stream) {}

  Outcome run() {
    const std::optional<Plan> plan = make_plan();
    if (!plan) return std::move(outcome_);
    outcome_.config = to_string(plan->kernel(), plan->choice().config);
    place_inputs(*plan);
    place_outputs(*plan);
    for (const Placed& input : inputs_)
      if (input.view.present()) input.buffer->remember();
    launch(*plan);
    look_for_strays(*plan);
    return std::move(outcome_);
  }

 private:
  /// A plan in a registry of one, so that no other kernel can answer for this one.
  std::optional<Plan> make_plan() {
    auto alone = std::make_shared<RegisteredOperation>();
    alone->declaration = problem_.operation;
    alone->kernels = {kernel_};
    PlanOptions options{.platform = kernel_->platform, .kernel = kernel_->name};
    const SpecCall call(problem_, settings_.device);
    try {
      options.config = settings_.config ? settings_.config : random_config(call);
      return Plan::make(std::move(alone), call.inputs, problem_.params, options);
    } catch (const Unsupported& declined) {
      outcome_.supported = false;
      outcome_.declined = declined.what();
    }
    return std::nullopt;
  }

  std::optional<ConfigValues> random_config(const SpecCall& call) {
    if (settings_.plain || kernel_->config_fields.empty()) return std::nullopt;
    const DeviceProperties& device = device_properties(settings_.device);
    if (!kernel_->supports(call.view, device).ok) return std::nullopt;
    const auto candidates = kernel_->candidates(call.view, device);
    if (candidates.empty() || random_.chance(0.3)) return std::nullopt;
    return config_values(*kernel_, random_.pick(candidates));
  }

  /// What the call writes is a copy, in the problem's layout.
  void place_inputs(const Plan& plan) {
    inputs_ = problem_.inputs;
    for (const OutputSpec& spec : plan.outputs())
      if (spec.aliased_input >= 0) {
        const std::shared_ptr<Buffer> original = problem_.inputs[static_cast<size_t>(spec.aliased_input)].buffer;
        if (inputs_[static_cast<size_t>(spec.aliased_input)].buffer == original) move_to_copy(inputs_, original);
      }
  }

  void place_outputs(const Plan& plan) {
    // Kernels of a GPU may ask for rows at multiples of 16 bytes; elsewhere every address of an element serves.
    const bool is_gpu = settings_.device.kind != DeviceKind::cpu;
    const size_t alignment = is_gpu && !settings_.plain && random_.chance(0.7) ? 16 : 1;
    for (size_t o = 0; o < plan.outputs().size(); ++o) {
      const OutputSpec& spec = plan.outputs()[o];
      const bool wanted = !settings_.wanted || (*settings_.wanted >> o & 1) != 0;
      outputs_.emplace_back();
      if (!spec.present || !wanted) continue;
      if (spec.aliased_input >= 0) {
        outputs_.back() = inputs_[static_cast<size_t>(spec.aliased_input)];
        continue;
      }
      Layout layout;
      if (!settings_.plain) layout = random_layout(random_, spec.dtype, spec.shape.rank(), alignment);
      layout.fence = settings_.fence;
      outputs_.back() = place(spec.dtype, spec.shape, layout);
    }
    workspace_ = place(DType::f32, {static_cast<int64_t>((plan.workspace_bytes() + 3) / 4)},
                       {.fence = aligned_fence(plan.workspace_bytes())});
    fill(status_.view, [](int64_t) { return 0; });
  }

  /// The workspace is aligned to 64 bytes, so it can stand before a page only when its size is a multiple.
  Fence aligned_fence(size_t bytes) const {
    return settings_.fence == Fence::page_after && bytes % 64 != 0 ? Fence::bands : settings_.fence;
  }

  void launch(const Plan& plan) {
    std::vector<Tensor> inputs, outputs;
    for (const Placed& input : inputs_) inputs.push_back(mirror_.up(input));
    for (const Placed& output : outputs_) outputs.push_back(mirror_.up(output));
    const Tensor workspace = mirror_.up(workspace_), status = mirror_.up(status_);
    try {
      plan.run(inputs, outputs,
               {.stream = settings_.stream,
                .workspace = {workspace.as<std::byte>(), plan.workspace_bytes()},
                .status = status.as<uint32_t>()});
    } catch (const InvalidArgument& refusal) {
      // A plan has not seen addresses; a kernel of a GPU may refuse them. It has not touched anything then.
      if (settings_.device.kind == DeviceKind::cpu)
        outcome_.faults.push_back(fmt::format("run threw: {}", refusal.what()));
      outcome_.supported = settings_.device.kind == DeviceKind::cpu;
      outcome_.declined = refusal.what();
    } catch (const std::exception& error) {
      outcome_.faults.push_back(fmt::format("run threw: {}", error.what()));
    }
    mirror_.down();
    outcome_.status = *status_.view.as<uint32_t>();
    for (size_t o = 0; o < outputs_.size(); ++o) {
      const int input = plan.outputs()[o].aliased_input;  // written whether or not the output is wanted
      outcome_.outputs.push_back(contiguous(input < 0 ? outputs_[o].view : inputs_[static_cast<size_t>(input)].view));
    }
  }

  void look_for_strays(const Plan& plan) {
    // Elements that the call may write get back what was there: all else must be as it was.
    for (const OutputSpec& spec : plan.outputs()) {
      if (spec.aliased_input < 0) continue;
      const auto i = static_cast<size_t>(spec.aliased_input);
      copy_elements(problem_.inputs[i].view, inputs_[i].view);
    }
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].view.present()) continue;
      if (const std::string where = inputs_[i].buffer->changes(); !where.empty())
        outcome_.faults.push_back(fmt::format("wrote {} input {}: {}", is_written(plan, i) ? "beside" : "to",
                                              problem_.operation->inputs[i].name, where));
    }
    for (size_t o = 0; o < outputs_.size(); ++o) {
      if (!outputs_[o].view.present() || plan.outputs()[o].aliased_input >= 0) continue;
      if (const std::string where = stray_writes(outputs_[o]); !where.empty())
        outcome_.faults.push_back(
            fmt::format("wrote beside output {}: {}", problem_.operation->outputs[o].name, where));
    }
    // Inside its workspace a kernel writes what it likes.
    if (const std::string where = stray_writes(workspace_); !where.empty())
      outcome_.faults.push_back(fmt::format("wrote beside its workspace: {}", where));
    if (const std::string where = stray_writes(status_); !where.empty())
      outcome_.faults.push_back(fmt::format("wrote beside its status word: {}", where));
  }

  static bool is_written(const Plan& plan, size_t input) {
    return std::any_of(plan.outputs().begin(), plan.outputs().end(),
                       [&](const OutputSpec& spec) { return spec.aliased_input == static_cast<int>(input); });
  }

  const Problem& problem_;
  const Kernel& kernel_;
  const RunSettings& settings_;
  Random random_;
  std::vector<Placed> inputs_, outputs_;
  Placed workspace_, status_ = place(DType::u32, {1});
  Mirror mirror_;
  Outcome outcome_;
};

/// Nearly nothing but zeros expected: a kernel that does nothing but clear would pass.
bool is_vacuous(const Answer& answer) {
  size_t zeros = 0, all = 0;
  for (const Expected& expected : answer.outputs)
    for (double ref : expected.ref) ++all, zeros += ref == 0 || std::isinf(ref);
  return all == 0 || static_cast<double>(zeros) > 0.95 * static_cast<double>(all);
}

/// Where two writers claim one place of what is otherwise exact, runs may differ in which one wins.
bool is_settled(const Answer& answer) {
  return std::none_of(answer.outputs.begin(), answer.outputs.end(),
                      [](const Expected& expected) { return expected.exact && expected.at; });
}

/// A proper part of the outputs that are there, none of them only where one is an input, which is written all the same;
/// nothing when there is no such part.
std::optional<uint32_t> random_part(Random& random, const Operation& op, const std::vector<Array>& outputs) {
  uint32_t present = 0;
  bool may_be_empty = false;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o].present()) continue;
    present |= uint32_t{1} << o;
    may_be_empty = may_be_empty || is_aliased(op.outputs[o]);
  }
  if (present == 0) return std::nullopt;
  const uint32_t part = present & static_cast<uint32_t>(random.bits());
  if (part != present && (part != 0 || may_be_empty)) return part;
  const uint32_t lowest = present & (~present + 1);
  if (lowest != present) return lowest;
  return may_be_empty ? std::optional<uint32_t>(0) : std::nullopt;
}

void judge_outputs(const Problem& problem, const Answer& answer, const Outcome& outcome, Verdict& verdict) {
  for (size_t o = 0; o < outcome.outputs.size(); ++o) {
    const Array& got = outcome.outputs[o];
    const std::string_view name = problem.operation->outputs[o].name;
    const Expected& expected = answer.outputs[o];
    if (!got.present() || !expected.present) continue;
    const Judgement judgement = judge(expected, got);
    verdict.outputs.push_back({std::string(name), judgement.ratio});
    if (!judgement.failure.empty()) verdict.failures.push_back(fmt::format("{}: {}", name, judgement.failure));
  }
  if (outcome.status != answer.status)
    verdict.failures.push_back(fmt::format("status word: got {}, expected {}", outcome.status, answer.status));
}

/// What the answer left out, against the reference kernel of the device. The host's is too slow for such problems.
void compare_with_reference(const Problem& problem, const Answer& answer, const Kernel& kernel,
                            const RunSettings& settings, const Outcome& outcome, Verdict& verdict) {
  if (settings.device.kind == DeviceKind::cpu || kernel->name == kDeviceReference) return;
  for (const Kernel& reference : kernels_of(*problem.operation, settings.device)) {
    if (reference->name != kDeviceReference || is_too_slow(problem, reference)) continue;
    const Outcome right =
        run_guarded(problem, reference,
                    {.seed = settings.seed, .device = settings.device, .stream = settings.stream, .plain = true});
    if (!right.supported || !right.faults.empty()) continue;  // its own check says so
    for (size_t o = 0; o < outcome.outputs.size(); ++o) {
      if (!outcome.outputs[o].present() || !answer.outputs[o].present) continue;
      if (const std::string wrong = compare_whole(answer.outputs[o], outcome.outputs[o], right.outputs[o]);
          !wrong.empty())
        verdict.failures.push_back(fmt::format("{}: {}", problem.operation->outputs[o].name, wrong));
    }
  }
}

}  // namespace

double Verdict::ratio() const {
  double worst = 0;
  for (const OutputVerdict& output : outputs) worst = std::max(worst, output.ratio);
  return worst;
}

void copy_elements(const Tensor& from, const Tensor& to) {
  if (bits(to.dtype) < 8) return fill(to, [&](int64_t n) { return get(from, n); });  // nibbles have no address
  const Array elements = contiguous(from);
  const auto size = static_cast<int64_t>(bits(to.dtype) / 8);
  const int64_t row = to.rank() == 0 ? 1 : to.shape[-1];
  for (int64_t n = 0; n < to.num_elements(); n += row)
    std::memcpy(to.as<std::byte>() + element_offset(to, n) * size, elements.as<std::byte>() + n * size,
                static_cast<size_t>(row * size));
}

Outcome run_guarded(const Problem& problem, const Kernel& kernel, const RunSettings& settings) {
  return GuardedRun(problem, kernel, settings).run();
}

Verdict check_kernel(const Problem& problem, const Answer& answer, const Kernel& kernel, const RunSettings& settings) {
  Verdict verdict;
  const Outcome whole = run_guarded(problem, kernel, settings);
  verdict.supported = whole.supported;
  verdict.declined = whole.declined;
  if (!whole.supported) return verdict;
  verdict.failures = whole.faults;
  verdict.vacuous = is_vacuous(answer);
  if (whole.outputs.empty()) return verdict;
  judge_outputs(problem, answer, whole, verdict);
  if (!answer.complete && is_settled(answer)) compare_with_reference(problem, answer, kernel, settings, whole, verdict);

  Random random(settings.seed ^ 0x50415254u);
  RunSettings again = settings;
  again.seed = settings.seed;  // the same config; layouts follow from what is wanted
  again.wanted = random_part(random, *problem.operation, whole.outputs);
  if (!again.wanted) return verdict;
  const Outcome part = run_guarded(problem, kernel, again);
  if (!part.supported) return verdict;  // not in these layouts
  for (const std::string& fault : part.faults)
    verdict.failures.push_back(fmt::format("{} (with outputs {:#b} wanted)", fault, *again.wanted));
  if (!promises_equal_bits(problem) || !is_settled(answer)) {  // then it is right on its own
    Verdict of_part;
    judge_outputs(problem, answer, part, of_part);
    for (const std::string& failure : of_part.failures)
      verdict.failures.push_back(fmt::format("{} (with outputs {:#b} wanted)", failure, *again.wanted));
    return verdict;
  }
  for (size_t o = 0; o < part.outputs.size(); ++o) {
    if (!part.outputs[o].present()) continue;
    if (const std::string difference = compare_bits(part.outputs[o], whole.outputs[o]); !difference.empty())
      verdict.failures.push_back(fmt::format("{}: differs when other outputs are not wanted: {}",
                                             problem.operation->outputs[o].name, difference));
  }
  return verdict;
}

std::string report(const Problem& problem, const Kernel& kernel, const Verdict& verdict) {
  std::string text;
  for (const std::string& failure : verdict.failures)
    text += fmt::format("{} {}: {}\n  problem: {}\n  reproduce: {}\n", problem.operation->name, kernel->name, failure,
                        problem.label, replay_command(problem, *kernel));
  return text;
}

double flops_of(const Problem& problem) { return problem.operation->work(SpecCall(problem, {}).view).flops; }

Support supports(const Problem& problem, const Kernel& kernel, Device device) {
  return kernel->supports(SpecCall(problem, device).view, device_properties(device));
}

bool is_too_slow(const Problem& problem, const Kernel& kernel) {
  if (kernel->platform == Platform::reference) return flops_of(problem) > kReferenceFlops;
  return kernel->name == kDeviceReference && flops_of(problem) > kDeviceReferenceFlops;
}

std::vector<Kernel> kernels_of(const Operation& operation, Device device) {
  std::vector<Kernel> kernels;
  for (const Kernel& kernel : KernelRegistry::instance().find(operation.name)->kernels)
    if (serves(kernel->backend, device)) kernels.push_back(kernel);
  return kernels;
}

}  // namespace ejk::testing
