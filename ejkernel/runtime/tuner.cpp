#include "ejkernel/runtime/tuner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "ejkernel/core/error.h"
#include "ejkernel/core/log.h"
#include "ejkernel/runtime/admission.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/search.h"
#include "ejkernel/runtime/synthetic.h"
#include "ejkernel/runtime/tuner_worker.h"

namespace ejk {
namespace {

/// The reference checks the heuristic's config where that is at most this much arithmetic: a tenth of a second.
constexpr double kReferenceFlops = 5e7;
/// The part of the budget that the last heat, fastest against heuristic, may count on.
constexpr double kLastHeat = 0.25;
/// A winner must be faster than the heuristic's config by this at least, at the slow end of the 99 % interval.
constexpr double kMargin = 0.01;
constexpr double kSampleSeconds = 100e-6;
/// Of the winner, after it was timed: what is wrong now and then shows itself.
constexpr int kFinalChecks = 8;

double free_bytes() {
  return static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

CallView view_of(const Plan& plan, std::vector<Tensor>& outputs) {
  for (const OutputSpec& spec : plan.outputs())
    outputs.push_back(spec.present ? Tensor(nullptr, spec.dtype, spec.shape, plan.device()) : Tensor());
  return {plan.inputs(), &plan.params(), outputs};
}

bool asks_for_equal_bits(const Plan& plan) {
  for (const ParamField& field : plan.operation().params)
    if (field.name == "deterministic") return field.get(plan.params().data()) == ParamValue(true);
  return false;
}

/// For a caller without data of its own.
SyntheticInputs make_inputs(const Plan& plan, uint64_t seed) {
  double bytes = 0;
  for (const Tensor& input : plan.inputs())
    if (input.present()) bytes += static_cast<double>(num_bytes(input.dtype, input.shape));
  if (bytes > free_bytes() / 4)
    throw Unsupported(
        fmt::format("{}: its inputs take {:.0f} MiB, more than a quarter of the memory that is free; pass "
                    "data, or tune a smaller batch",
                    plan.operation().name, bytes / (1 << 20)));
  return make_synthetic_inputs(plan.operation(), plan.inputs(), plan.params(), seed);
}

/// Runs candidates in this process, on host memory.
class HostLab : public TuningLab {
 public:
  HostLab(const Plan& plan, std::span<const Tensor> inputs, std::span<const ConfigBlock> candidates, double until)
      : plan_(plan), inputs_(inputs), candidates_(candidates), proving_(plan, inputs), until_(until) {
    entries_.resize(candidates.size());
  }

  /// What candidates are compared with: the heuristic's results. Why there are none; empty when there are.
  std::string prepare_expected() {
    Entry& entry = entries_[0];
    if (std::string why = make_plan(0); !why.empty()) return why;
    if (std::string why = timed_run(entry); !why.empty()) return why;
    expected_ = proving_.results();
    if (plan_.work().flops > kReferenceFlops || plan_.kernel().platform == Platform::reference) return "";
    std::optional<Plan> reference;
    try {
      reference = Plan::make(plan_.operation().name, inputs_, plan_.params(), {.platform = Platform::reference});
    } catch (const Unsupported&) {
      return "";  // nothing to compare with
    }
    if (std::string why = proving_.run(*reference); !why.empty()) return "the reference kernel: " + why;
    return proving_.differs_from(expected_);
  }

  std::string admit(size_t candidate) override {
    Entry& entry = entries_[candidate];
    if (std::string why = make_plan(candidate); !why.empty()) return why;
    if (std::string why = timed_run(entry); !why.empty()) return why;
    if (std::string why = proving_.differs_from(expected_); !why.empty()) return why;
    if (!asks_for_equal_bits(plan_)) return "";
    const std::vector<Array> first = proving_.results();
    if (std::string why = timed_run(entry); !why.empty()) return why;
    return proving_.equals(first) ? "" : "two runs of it differ, and the call asks for equal bits";
  }

  double sample(size_t candidate) override {
    Entry& entry = entries_[candidate];
    const std::span<std::byte> workspace = proving_.workspace_for(*entry.plan);
    const double began = now_seconds();
    try {
      for (int64_t n = 0; n < entry.runs; ++n) entry.plan->run(inputs_, proving_.outputs(), {.workspace = workspace});
    } catch (const std::exception&) {
      return -1;
    }
    return (now_seconds() - began) / static_cast<double>(entry.runs);
  }

  bool is_out_of_time() override { return now_seconds() >= until_; }

 private:
  struct Entry {
    std::optional<Plan> plan;
    int64_t runs = 1;  ///< of one sample
  };

  std::string make_plan(size_t candidate) {
    Entry& entry = entries_[candidate];
    PlanOptions options{.platform = plan_.kernel().platform, .kernel = plan_.kernel().name};
    options.config = config_values(plan_.kernel(), candidates_[candidate]);
    try {
      entry.plan = Plan::make(plan_.operation().name, inputs_, plan_.params(), options);
    } catch (const std::exception& error) {
      return fmt::format("it cannot be planned: {}", error.what());
    }
    const auto needed = static_cast<double>(entry.plan->workspace_bytes());
    if (needed > free_bytes() / 2)
      return fmt::format("it needs a workspace of {:.0f} MiB, more than half of what is free", needed / (1 << 20));
    return "";
  }

  std::string timed_run(Entry& entry) {
    const double began = now_seconds();
    std::string why = proving_.run(*entry.plan);
    const double seconds = std::max(now_seconds() - began, 1e-9);
    entry.runs = static_cast<int64_t>(std::ceil(kSampleSeconds / seconds));
    return why;
  }

  const Plan& plan_;
  std::span<const Tensor> inputs_;
  std::span<const ConfigBlock> candidates_;
  std::vector<Entry> entries_;
  Proving proving_;
  std::vector<Array> expected_;
  double until_;
};

/// Counts for `progress`, and tells the log.
class ReportingLab : public TuningLab {
 public:
  ReportingLab(TuningLab& inside, const Plan& plan, std::span<const ConfigBlock> candidates, const TuneOptions& options)
      : inside_(inside), plan_(plan), candidates_(candidates), options_(options) {}
  std::string admit(size_t candidate) override {
    std::string why = inside_.admit(candidate);
    if (log_enabled(LogLevel::info) && !why.empty())
      log(LogLevel::info, fmt::format("{}: tuning kernel {}: {} is rejected: {}", plan_.operation().name,
                                      plan_.kernel().name, to_string(plan_.kernel(), candidates_[candidate]), why));
    if (options_.progress) options_.progress(++done_, candidates_.size());
    return why;
  }
  double sample(size_t candidate) override { return inside_.sample(candidate); }
  bool is_out_of_time() override { return inside_.is_out_of_time(); }

 private:
  TuningLab& inside_;
  const Plan& plan_;
  std::span<const ConfigBlock> candidates_;
  const TuneOptions& options_;
  size_t done_ = 0;
};

SearchResult admit_all(size_t count, TuningLab& lab) {
  SearchResult result;
  result.trials.resize(count);
  for (size_t n = 0; n < count; ++n) {
    result.trials[n].tried = true;
    result.trials[n].rejected = lab.admit(n);
  }
  return result;
}

std::vector<CandidateReport> reports_of(std::span<const ConfigBlock> candidates, std::span<const Trial> trials) {
  std::vector<CandidateReport> reports;
  for (size_t n = 0; n < candidates.size(); ++n)
    reports.push_back({.config = candidates[n],
                       .rejected = trials[n].tried ? trials[n].rejected : "its turn did not come",
                       .seconds = trials[n].samples.empty() ? 0 : trials[n].median(),
                       .num_samples = static_cast<int64_t>(trials[n].samples.size())});
  return reports;
}

/// The fastest against the heuristic's config, interleaved; then it is checked again.
void run_last_heat(size_t fastest, double until, TuningLab& lab, TuneReport& report) {
  bool failed = false;
  const auto sampler = [&](size_t candidate) -> Sampler {
    return [&, candidate] {
      const double seconds = lab.sample(candidate);
      failed = failed || seconds < 0;
      return std::max(seconds, 1e-12);
    };
  };
  report.comparison =
      compare(sampler(0), sampler(fastest),
              {.max_seconds = std::max(0.0, until - now_seconds()), .spread = kMargin / 4, .confidence = 0.99});
  std::string& rejected = report.candidates[fastest].rejected;
  if (failed) rejected = "it failed while it was timed";
  for (int n = 0; n < kFinalChecks && rejected.empty(); ++n) rejected = lab.admit(fastest);
  report.faster = rejected.empty() && report.comparison.ratio.high < 1 - kMargin;
  if (report.faster) report.best = report.candidates[fastest].config;
}

void log_report(const Plan& plan, const TuneReport& report) {
  if (!log_enabled(LogLevel::info)) return;
  for (const CandidateReport& candidate : report.candidates)
    if (candidate.num_samples > 0)
      log(LogLevel::info, fmt::format("{}: tuning kernel {}: {} takes {:.4g} us ({} samples)", plan.operation().name,
                                      plan.kernel().name, to_string(plan.kernel(), candidate.config),
                                      candidate.seconds * 1e6, candidate.num_samples));
  log(LogLevel::info,
      fmt::format("{}: tuned kernel {} in {:.2f} s: {}", plan.operation().name, plan.kernel().name, report.seconds,
                  report.faster ? fmt::format("{}, {:.3f} of the heuristic's time",
                                              to_string(plan.kernel(), report.best), report.comparison.ratio.median)
                                : "nothing beats the heuristic's config"));
}

ConfigProvenance provenance_of(const TuneReport& report) {
  return {.seconds = report.faster ? report.comparison.b.median : report.candidates.front().seconds,
          .heuristic_seconds = report.faster ? report.comparison.a.median : report.candidates.front().seconds,
          .ratio_high = report.faster ? report.comparison.ratio.high : 1,
          .num_samples = report.comparison.ratio.num_samples,
          .num_candidates = static_cast<int64_t>(report.candidates.size()),
          .search_seconds = report.seconds};
}

void publish(const Plan& plan, TuneReport& report) {
  const ChooseRequest request = plan.request();
  set_memory_config(request, plan.kernel(), report.faster ? std::optional(report.best) : std::nullopt);
  // Nothing over the heuristic's config is an answer too: the next process need not look again.
  put_stored_config(config_record_key(request, plan.kernel()),
                    report.faster ? config_values(plan.kernel(), report.best) : ConfigValues(), provenance_of(report));
  report.published = true;
}

}  // namespace

std::vector<ConfigBlock> tuning_candidates(const Plan& plan) {
  const KernelInfo& kernel = plan.kernel();
  const DeviceProperties& device = device_properties(plan.device());
  std::vector<Tensor> outputs;
  const CallView view = view_of(plan, outputs);
  std::vector<ConfigBlock> all = {kernel.heuristic(view, device)};
  std::vector<ConfigValues> seen = {config_values(kernel, all.front())};
  for (const ConfigBlock& candidate : kernel.candidates(view, device)) {
    ConfigValues values = config_values(kernel, candidate);
    if (!is_legal(kernel, candidate) || std::find(seen.begin(), seen.end(), values) != seen.end()) continue;
    all.push_back(candidate);
    seen.push_back(std::move(values));
  }
  return all;
}

bool is_tunable(const Plan& plan) { return tuning_candidates(plan).size() > 1; }

TuneReport tune(const Plan& plan, const TuneOptions& options, std::span<const Tensor> given) {
  const std::string_view op = plan.operation().name;
  const KernelInfo& kernel = plan.kernel();
  if (plan.device().kind != DeviceKind::cpu)
    throw Unsupported(
        fmt::format("{}: kernels on {} are not tuned in the process that uses them", op, to_string(plan.device())));
  const double began = now_seconds(), until = began + options.budget_seconds;
  const std::vector<ConfigBlock> candidates = tuning_candidates(plan);
  if (candidates.size() < 2)
    throw Unsupported(
        fmt::format("{}: kernel {} has one config for this call; there is nothing to tune", op, kernel.name));

  SyntheticInputs made;
  if (given.empty()) made = make_inputs(plan, options.seed);
  const std::span<const Tensor> inputs = given.empty() ? std::span<const Tensor>(made.tensors) : given;

  HostLab host(plan, inputs, candidates, began + (1 - kLastHeat) * options.budget_seconds);
  if (const std::string why = host.prepare_expected(); !why.empty())
    throw Unsupported(
        fmt::format("{}: kernel {} cannot be tuned: its heuristic's config fails: {}", op, kernel.name, why));
  // A kernel from outside is one that nobody here has tested.
  std::optional<WorkerLab> worker;
  if (!kernel.signature.empty()) worker.emplace(host, options.patience_seconds);
  TuningLab& chosen = worker ? static_cast<TuningLab&>(*worker) : host;
  ReportingLab lab(chosen, plan, candidates, options);
  const SearchResult found = options.verify_only ? admit_all(candidates.size(), lab)
                                                 : search(candidates, kernel.config_fields, options.seed, lab);

  TuneReport report{.kernel = plan.choice().kernel, .candidates = {}, .best = candidates.front(), .comparison = {}};
  report.candidates = reports_of(candidates, found.trials);
  report.complete = found.complete;
  if (found.best != 0) run_last_heat(found.best, until, chosen, report);
  report.seconds = now_seconds() - began;
  log_report(plan, report);
  if (options.publish && !options.verify_only) publish(plan, report);
  return report;
}

}  // namespace ejk
