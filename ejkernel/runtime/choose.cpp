#include "ejkernel/runtime/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/events.h"
#include "ejkernel/core/log.h"
#include "ejkernel/platform/cuda/stream.h"
#include "ejkernel/runtime/calibration.h"
#include "ejkernel/runtime/clock_cache.h"
#include "ejkernel/runtime/config_store.h"
#include "ejkernel/runtime/cost_model.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/single_flight.h"
#include "ejkernel/runtime/synthetic.h"
#include "ejkernel/runtime/timer.h"
#include "ejkernel/runtime/tuner.h"

namespace ejk {
namespace {

struct OverlayEntry {
  std::string operation, kernel;
  ConfigValues values;
};
/// Null outside of any: a static Overlay may outlive the thread's own objects.
thread_local std::vector<OverlayEntry>* overlays = nullptr;

std::span<const OverlayEntry> overlays_here() {
  return overlays == nullptr ? std::span<const OverlayEntry>() : std::span<const OverlayEntry>(*overlays);
}

thread_local std::optional<Policy> policy_on_this_thread;
thread_local const CallAtHand* call_at_hand = nullptr;  ///< the innermost

constexpr size_t kMaxMemoryConfigs = 16384;
constexpr size_t kMaxChoices = 4096;

/// No config: nothing beats the heuristic's.
ClockCache<std::optional<ConfigBlock>>& memory_tier() {
  static auto* cache = new ClockCache<std::optional<ConfigBlock>>(kMaxMemoryConfigs);  // calls may come at exit
  return *cache;
}

struct CachedChoice {
  std::shared_ptr<const Choice> choice;
  uint64_t generation = 0;
};
ClockCache<CachedChoice>& choices() {
  static auto* cache = new ClockCache<CachedChoice>(kMaxChoices);  // never destroyed: they hold compiled code
  return *cache;
}

/// Why a kernel's code could not be had.
ClockCache<std::string>& failures() {
  static auto* cache = new ClockCache<std::string>(kMaxChoices);
  return *cache;
}
/// Why a problem could not be tuned.
ClockCache<std::string>& tuning_failures() {
  static auto* cache = new ClockCache<std::string>(kMaxMemoryConfigs);
  return *cache;
}
// Rises when a memory config changes, so that a cached choice made before is looked at again.
std::atomic<uint64_t> memory_generation{0};
std::atomic<int64_t> illegal_configs{0};
std::atomic<double> tuning_seconds{0};

/// Counts the scope's time, however it ends.
struct TimeSpentTuning {
  const double began = now_seconds();
  ~TimeSpentTuning() { tuning_seconds.fetch_add(now_seconds() - began); }
};

uint64_t generation() { return KernelRegistry::instance().generation() + memory_generation.load(); }

Policy effective_policy(const PlanOptions& options) {
  if (options.policy) return *options.policy;
  return policy_on_this_thread ? *policy_on_this_thread : policy_of_environment();
}

std::optional<Platform> effective_platform(const PlanOptions& options) {
  return options.platform ? options.platform : environment::platform();
}

/// Why a config cannot be run on this machine; empty when it can.
std::string fault_of(const KernelInfo& kernel, const ConfigBlock& config, const DeviceProperties& device) {
  if (!is_legal(kernel, config)) return "a field holds none of its legal values";
  return kernel.runs_here == nullptr ? "" : kernel.runs_here(config, device).reason;
}

/// Why a kernel is not even asked. Most calls pass over some, so its text is made only for who reads it.
enum class Exclusion { none, by_kernel, by_platform, by_backend, by_device };

Exclusion exclusion_of(const KernelInfo& kernel, const PlanOptions& options, const std::optional<Platform>& platform,
                       Device device) {
  if (!options.kernel.empty() && kernel.name != options.kernel) return Exclusion::by_kernel;
  if (platform && kernel.platform != *platform) return Exclusion::by_platform;
  if (options.backend && kernel.backend != Backend::any && kernel.backend != *options.backend)
    return Exclusion::by_backend;
  return serves(kernel.backend, device) ? Exclusion::none : Exclusion::by_device;
}

/// One call on its way to a choice.
class Chooser {
 public:
  Chooser(const ChooseRequest& request, Trail* trail)
      : request_(request),
        options_(*request.options),
        declaration_(*request.operation->declaration),
        device_(device_properties(request.device)),
        view_{request.inputs, request.params, {}},
        trail_(trail) {
    outputs_.reserve(request.checked->outputs.size());
    for (const OutputSpec& spec : request.checked->outputs)
      outputs_.push_back(spec.present ? Tensor(nullptr, spec.dtype, spec.shape, request.device) : Tensor());
    view_.outputs = outputs_;
    platform_ = effective_platform(options_);
  }

  /// The first kernel on the list that accepts and whose code can be had; all reasons otherwise. Without a trail nobody
  /// asks the kernels behind it.
  std::shared_ptr<const Choice> run() {
    std::vector<std::pair<const KernelInfo*, std::string>> reasons;
    std::shared_ptr<const Choice> choice;
    for (const auto& kernel : request_.operation->kernels) {
      const Exclusion exclusion = exclusion_of(*kernel);
      Support support = exclusion == Exclusion::none ? kernel->supports(view_, device_) : Support{false, {}};
      if (support.ok && choice == nullptr) {
        choice = choice_of(kernel, support);
        if (choice != nullptr) note_fallback(*kernel);
      }
      if (trail_ != nullptr) {
        if (exclusion != Exclusion::none) support.reason = reason_of(exclusion, *kernel);
        trail_->kernels.push_back({kernel->name, kernel->platform, support.ok, support.reason});
      }
      if (choice != nullptr && trail_ == nullptr) return choice;
      if (!support.ok) reasons.emplace_back(kernel.get(), std::move(support.reason));
    }
    if (choice != nullptr) return choice;
    std::string text;
    for (const auto& [kernel, reason] : reasons)
      text +=
          fmt::format("\n  {}: {}", kernel->name, reason.empty() ? reason_of(exclusion_of(*kernel), *kernel) : reason);
    throw Unsupported(fmt::format("{}: no kernel supports this call{}", declaration_.name, text));
  }

  /// The problem and the kernel: what a config or a choice is found by.
  std::string key_for(const KernelInfo& kernel) const {
    return problem_key(declaration_, request_.inputs, *request_.params, *request_.checked,
                       device_fingerprint(request_.device)) +
           kernel.name;
  }

 private:
  /// The kernel's config and code; null when its code cannot be had, and `support` then says why.
  std::shared_ptr<const Choice> choice_of(const std::shared_ptr<const KernelInfo>& kernel, Support& support) {
    key_ = key_for(*kernel);
    hash_ = digest_of(key_).low;
    // Code is loaded for one device; configs serve all that are alike. What was chosen without asking tier 5 is no
    // answer to a call that may.
    const Policy policy = effective_policy(options_);
    const std::string choice_key = key_ + static_cast<char>(request_.device.ordinal) + (policy.autotune ? '1' : '0');
    const auto now = trail_ == nullptr ? circumstances_of(options_) : std::nullopt;
    const auto is_current = [&](const CachedChoice& there) {
      return there.generation == now->generation && still_runs_here(*there.choice, device_);
    };
    if (now)
      if (const auto hit = choices().find(hash_, choice_key); hit && is_current(*hit)) return hit->choice;

    Choice made = choose_config(kernel, policy);
    if (!prepare(made, support)) return nullptr;
    if (trail_ == nullptr)
      emit(EventKind::choice, declaration_.name, kernel->name,
           [&] { return fmt::format("tier {}: {}", name(made.tier), to_string(*kernel, made.config)); });
    auto choice = std::make_shared<const Choice>(std::move(made));
    if (!now || choice->is_for_now) return choice;
    return choices().put_unless(hash_, choice_key, {std::move(choice), now->generation}, is_current).choice;
  }

  /// A failure is remembered for the problem, kernel and config: compiling in vain takes as long as compiling.
  bool prepare(Choice& choice, Support& support) {
    const KernelInfo& kernel = *choice.kernel;
    if (kernel.prepare == nullptr) return true;
    const std::string key = fmt::format("{}|{}|{}", key_, request_.device.ordinal, to_string(kernel, choice.config));
    const uint64_t hash = digest_of(key).low;
    if (const auto failure = failures().find(hash, key)) return decline(support, *failure);
    try {
      choice.code = kernel.prepare(view_, choice.config, device_);
      return true;
    } catch (const Unsupported& error) {
      if (options_.config) throw;
      failures().put(hash, key, error.what());
      log(LogLevel::warning, fmt::format("{}: kernel {} gives way to the next on the list: {}", declaration_.name,
                                         kernel.name, error.what()));
      return decline(support, error.what());
    }
  }

  bool decline(Support& support, std::string reason) {
    if (options_.config) throw Unsupported(reason);
    support = Support::no(std::move(reason));
    if (trail_ != nullptr) trail_->tiers.clear();  // they answered for a kernel that is not taken
    return false;
  }

  Exclusion exclusion_of(const KernelInfo& kernel) const {
    return ejk::exclusion_of(kernel, options_, platform_, request_.device);
  }

  std::string reason_of(Exclusion exclusion, const KernelInfo& kernel) const {
    switch (exclusion) {
      case Exclusion::by_kernel:
        return fmt::format("the call asks for kernel {}", options_.kernel);
      case Exclusion::by_platform:
        return fmt::format("{} asks for platform {}", options_.platform ? "the call" : "EJKERNEL_PLATFORM",
                           name(*platform_));
      case Exclusion::by_backend:
        return fmt::format("the call asks for backend {}", name(*options_.backend));
      case Exclusion::by_device:
        return fmt::format("it serves {}, the tensors are on {}", name(kernel.backend), to_string(request_.device));
      case Exclusion::none:
        break;
    }
    return {};
  }

  /// A silent slow path is a bug: say once that the reference answers where something faster was hoped for.
  void note_fallback(const KernelInfo& kernel) const {
    const bool is_reference = kernel.platform == Platform::reference || kernel.name == "cuda_reference";
    if (!is_reference || platform_ || !options_.kernel.empty()) return;
    if (request_.operation->kernels.front()->name == kernel.name) return;
    log_once(
        fmt::format("fallback {}", declaration_.name), LogLevel::warning,
        fmt::format("{}: the reference kernel answers a call that no faster kernel supports; `ejk explain` says why",
                    declaration_.name));
  }

  /// The heuristic's config with these values. InvalidArgument for what no machine can run, Unsupported for what this
  /// one cannot.
  ConfigBlock config_with(const KernelInfo& kernel, const ConfigValues& values) const {
    const ConfigBlock config = config_from_values(declaration_.name, kernel, heuristic(kernel), values);
    if (const std::string fault = fault_of(kernel, config, device_); !fault.empty())
      throw Unsupported(fmt::format("{}: kernel {} cannot run the config {}: {}", declaration_.name, kernel.name,
                                    to_string(kernel, config), fault));
    return config;
  }

  void note(Tier tier, std::string answer) {
    if (trail_ != nullptr) trail_->tiers.push_back({tier, std::move(answer)});
  }

  Choice made(const std::shared_ptr<const KernelInfo>& kernel, const ConfigBlock& config, Tier tier,
              const std::string& how = "") {
    note(tier, fmt::format("hit: {}{}", to_string(*kernel, config), how.empty() ? "" : fmt::format(" ({})", how)));
    return {
        .operation = request_.operation, .kernel = kernel, .config = config, .tier = tier, .is_for_now = is_for_now_};
  }

  /// Read top to bottom: the first tier that answers wins, and is reported.
  Choice choose_config(const std::shared_ptr<const KernelInfo>& kernel, const Policy& policy) {
    if (options_.config) return made(kernel, config_with(*kernel, *options_.config), Tier::override_);
    note(Tier::override_, "miss: the call names no config");

    const std::span<const OverlayEntry> scoped = overlays_here();
    for (auto overlay = scoped.rbegin(); overlay != scoped.rend(); ++overlay)
      if (overlay->operation == declaration_.name && overlay->kernel == kernel->name)
        if (const auto config = from_values(Tier::overlay, *kernel, overlay->values))
          return made(kernel, *config, Tier::overlay);
    note(Tier::overlay, fmt::format("miss: {} overlays on this thread, none that serves", scoped.size()));

    if (const auto config = measured_config(*kernel, policy))
      return made(kernel, config->block, config->tier, config->how);

    if (policy.heuristics) return made(kernel, heuristic(*kernel), Tier::heuristics);
    if (!why_no_guess_.empty()) return made(kernel, heuristic(*kernel), Tier::heuristics, why_no_guess_);
    note(Tier::heuristics, "not allowed by policy");
    note(Tier::error, "no config");
    if (trail_ == nullptr)
      emit(EventKind::choice, declaration_.name, kernel->name, [] { return "tier error: no config"; });
    throw Unsupported(fmt::format("{}: no config for kernel {}: nothing was given, scoped or cached for this problem, "
                                  "and the policy switches heuristics off; pass a config or allow heuristics",
                                  declaration_.name, kernel->name),
                      ErrorCode::no_config);
  }

  struct Measured {
    ConfigBlock block;
    Tier tier;
    std::string how = {};  ///< it came about; empty: nobody says
  };

  /// Tiers 3, 4 and 5. Where one of them knows that nothing beats the heuristic's config, those behind it are not
  /// asked.
  std::optional<Measured> measured_config(const KernelInfo& kernel, const Policy& policy) {
    if (const auto known = memory_tier().find(hash_, key_)) {
      if (!*known) return nothing_faster(Tier::memory);
      const std::string fault = fault_of(kernel, **known, device_);
      if (fault.empty()) return Measured{**known, Tier::memory};
      pass_over(Tier::memory, fmt::format("{}: kernel {} cannot run the cached config {}: {}", declaration_.name,
                                          kernel.name, to_string(kernel, **known), fault));
    } else {
      note(Tier::memory, "miss");
    }
    if (kernel.config_fields.empty()) {
      why_no_guess_ = "there is one config";
      note(Tier::store, "not asked: there is one config");
      return std::nullopt;
    }

    if (const auto answer = stored_config(kernel, config_record_key(request_, kernel), policy)) return *answer;
    return tuner_config(kernel, policy);
  }

  /// Tier 4. No answer, or an empty one: nothing beats the heuristic's config.
  std::optional<std::optional<Measured>> stored_config(const KernelInfo& kernel, const RecordKey& record,
                                                       const Policy& policy) {
    const std::optional<StoredConfig> stored = find_stored_config(record);
    if (!stored) {
      note(Tier::store, "miss");
      return std::nullopt;
    }
    if (stored->values.empty()) {
      nothing_faster(Tier::store, stored->unfinished_after.has_value());
      if (!deserves_another_search(*stored, policy)) return std::optional<Measured>();
      return std::nullopt;
    }
    if (const auto config = from_values(Tier::store, kernel, stored->values))
      return Measured{*config, Tier::store, stored->how};
    return std::nullopt;
  }

  /// A search that its budget ended is made again where there is a good deal more time for it. Not for a little more:
  /// each process would spend it in vain.
  static bool deserves_another_search(const StoredConfig& stored, const Policy& policy) {
    constexpr double kMuchMore = 2;
    return policy.autotune && stored.unfinished_after && budget_seconds() >= kMuchMore * *stored.unfinished_after;
  }

  std::optional<Measured> nothing_faster(Tier tier, bool is_unfinished = false) {
    const std::string_view when = is_unfinished ? " before the budget ended" : "";
    why_no_guess_ = fmt::format("measured: nothing {} it{}", is_unfinished ? "beat" : "beats", when);
    note(tier, fmt::format("measured: nothing {} the heuristic's config{}", is_unfinished ? "beat" : "beats", when));
    return std::nullopt;
  }

  /// What this process may still spend on a problem.
  static double budget_seconds() {
    const double left = environment::autotune_total_seconds() - tuning_seconds.load();
    return std::min(left, environment::autotune_budget_seconds());
  }

  /// Tier 5. What goes wrong here, in a kernel's own functions as well, is not the call's error. It is remembered, so
  /// that the next call does not try again.
  std::optional<Measured> tuner_config(const KernelInfo& kernel, const Policy& policy) {
    try {
      const std::string why = why_not_tuned(kernel, policy);
      if (why.empty()) return tuned(kernel, policy);
      note(Tier::autotune, why);
    } catch (const std::exception& error) {
      note(Tier::autotune, fmt::format("failed: {}", error.what()));
      log(LogLevel::warning,
          fmt::format("{}: kernel {} is not tuned: {}", declaration_.name, kernel.name, error.what()));
      tuning_failures().put(hash_, key_, error.what());
    }
    return std::nullopt;
  }

  std::string why_not_tuned(const KernelInfo& kernel, const Policy& policy) {
    if (!policy.autotune) return "not allowed by policy";
    if (const auto failure = tuning_failures().find(hash_, key_)) return "failed before: " + *failure;
    if (environment::autotune_budget_seconds() <= 0) return "EJKERNEL_AUTOTUNE_BUDGET_MS is 0";
    if (budget_seconds() <= 0) return "the process's budget is spent";
    if (writes_nothing(outputs_)) return "the call writes nothing";
    const size_t count = kernel.candidates(view_, device_).size();
    if (count < 2) return "there is one candidate";
    if (is_captured()) {
      is_for_now_ = true;
      return "not while the call's stream is captured";
    }
    if (trail_ != nullptr)
      return fmt::format("would tune at the first call: {} candidates within {} s", count, budget_seconds());
    return "";
  }

  bool is_captured() const {
    void* stream = call_at_hand == nullptr ? nullptr : call_at_hand->stream();
    return request_.device.kind == DeviceKind::cuda && cuda::is_capturing(request_.device, stream);
  }

  /// The tensors of the call at hand, once they are written, where all of them have data and copies of them fit.
  std::span<const Tensor> data_at_hand() const {
    if (call_at_hand == nullptr) return {};
    const std::span<const Tensor> given = call_at_hand->inputs();
    const bool are_these = std::equal(given.begin(), given.end(), request_.inputs.begin(), request_.inputs.end(),
                                      [](const Tensor& a, const Tensor& b) { return is_same_spec(a, b); });
    if (!are_these || !have_data(given) || synthetic_bytes(given) > most_copied_bytes()) return {};
    synchronize(request_.device, call_at_hand->stream());
    return given;
  }

  std::optional<Measured> tuned(const KernelInfo& kernel, const Policy& policy) {
    const RecordKey record = config_record_key(request_, kernel);
    const SingleFlight flight(record.environment + record.text);
    is_for_now_ = !flight.is_ours();
    if (!flight.is_ours()) return std::nullopt;
    // Whoever had the flight before may have just landed.
    if (const auto answer = stored_config(kernel, record, policy)) return *answer;
    const TimeSpentTuning spent;
    const PlanOptions own{
        .platform = kernel.platform, .kernel = kernel.name, .config = config_values(kernel, heuristic(kernel))};
    const Plan plan = Plan::make(request_.operation, request_.inputs, *request_.params, own);
    const TuneReport report = tune(plan, {.budget_seconds = budget_seconds()}, data_at_hand());
    if (!report.faster) return nothing_faster(Tier::autotune, !report.complete);
    return Measured{report.best, Tier::autotune};
  }

  ConfigBlock heuristic(const KernelInfo& kernel) const {
    return heuristic_that_fits(kernel, view_, calibrated_properties(device_.device));
  }

  /// An illegal config is a miss.
  void pass_over(Tier tier, const std::string& why) {
    illegal_configs.fetch_add(1, std::memory_order_relaxed);
    note(tier, "illegal: " + why);
    log(LogLevel::warning, why);
  }

  /// The heuristic's config with values over it.
  std::optional<ConfigBlock> from_values(Tier tier, const KernelInfo& kernel, const ConfigValues& values) {
    try {
      return config_with(kernel, values);
    } catch (const Error& error) {
      pass_over(tier, error.what());
      return std::nullopt;
    }
  }

  const ChooseRequest& request_;
  const PlanOptions& options_;
  const Operation& declaration_;
  const DeviceProperties& device_;
  std::vector<Tensor> outputs_;
  CallView view_;
  Trail* trail_;
  std::optional<Platform> platform_;
  std::string key_;
  uint64_t hash_ = 0;
  bool is_for_now_ = false;
  /// Why the heuristic's config is no guess, so that it answers under every policy; empty: it is one.
  std::string why_no_guess_;
};

}  // namespace

std::string_view name(Tier tier) {
  switch (tier) {
    case Tier::override_:
      return "override";
    case Tier::overlay:
      return "overlay";
    case Tier::memory:
      return "memory";
    case Tier::store:
      return "store";
    case Tier::autotune:
      return "autotune";
    case Tier::heuristics:
      return "heuristics";
    case Tier::error:
      return "error";
  }
  return "?";
}

Policy policy_of_environment() {
  return {.autotune = environment::autotune_policy() == environment::AutotunePolicy::autotune, .heuristics = true};
}

std::optional<Circumstances> circumstances_of(const PlanOptions& options) {
  const Policy policy = effective_policy(options);
  if (options.config || overlays != nullptr || !policy.heuristics) return std::nullopt;
  return Circumstances{generation(), policy.autotune, effective_platform(options)};
}

bool still_runs_here(const Choice& choice, const DeviceProperties& device) {
  return fault_of(*choice.kernel, choice.config, device).empty();
}

bool may_be_asked(const KernelInfo& kernel, const PlanOptions& options, Device device) {
  return exclusion_of(kernel, options, effective_platform(options), device) == Exclusion::none;
}

std::shared_ptr<const Choice> choose(const ChooseRequest& request, Trail* trail) {
  return Chooser(request, trail).run();
}

void set_memory_config(const ChooseRequest& request, const KernelInfo& kernel,
                       const std::optional<ConfigBlock>& config) {
  const std::string key = Chooser(request, nullptr).key_for(kernel);
  memory_tier().put(digest_of(key).low, key, config);
  memory_generation.fetch_add(1);
}

bool has_memory_config(const ChooseRequest& request, const KernelInfo& kernel) {
  const std::string key = Chooser(request, nullptr).key_for(kernel);
  return memory_tier().find(digest_of(key).low, key).has_value();
}

void clear_memory_configs() {
  memory_tier().clear();
  tuning_failures().clear();
  memory_generation.fetch_add(1);
}

double seconds_spent_tuning() { return tuning_seconds.load(); }

int64_t num_illegal_configs() { return illegal_configs.load(std::memory_order_relaxed); }

Overlay::Overlay(std::string operation, std::string kernel, ConfigValues values) {
  OverlayEntry entry{std::move(operation), std::move(kernel), std::move(values)};
  if (overlays == nullptr) overlays = new std::vector<OverlayEntry>;
  overlays->push_back(std::move(entry));
}
Overlay::~Overlay() {
  overlays->pop_back();
  if (overlays->empty()) delete std::exchange(overlays, nullptr);
}

CallAtHand::CallAtHand(std::span<const Tensor> inputs, void* stream)
    : inputs_(inputs), stream_(stream), outer_(call_at_hand) {
  call_at_hand = this;
}
CallAtHand::~CallAtHand() { call_at_hand = outer_; }

PolicyOverride::PolicyOverride(Policy policy) : previous_(policy_on_this_thread) { policy_on_this_thread = policy; }
PolicyOverride::~PolicyOverride() { policy_on_this_thread = previous_; }

}  // namespace ejk
