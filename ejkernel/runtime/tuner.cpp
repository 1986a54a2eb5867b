#include "ejkernel/runtime/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "ejkernel/core/error.h"
#include "ejkernel/core/events.h"
#include "ejkernel/core/log.h"
#include "ejkernel/runtime/batch_fold_internal.h"
#include "ejkernel/runtime/calibration.h"
#include "ejkernel/runtime/cost_model.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/recorded.h"
#include "ejkernel/runtime/search.h"
#include "ejkernel/runtime/synthetic.h"
#include "ejkernel/runtime/tuner_program.h"
#include "ejkernel/runtime/tuner_worker.h"
#include "ejkernel/runtime/tuning_lab.h"

namespace ejk {
namespace {

/// How many places the proof of one finalist has.
struct NumPlaces {
  int least, most;
};

/// The part of the budget that the last heats, fastest against heuristic, may count on.
constexpr double kLastHeat = 0.5;
/// And the part that one race of the search may take; how broad the search is, is what that pays for, within limits.
constexpr double kRace = 0.2;
constexpr size_t kLeastBreadth = 16, kMostBreadth = 256;
/// On the host each is run with other data in other memory: where tensors lie and what they hold makes some per cent of
/// a small call, which is noise to whoever calls from elsewhere. To start another program for it would take a GPU's
/// longer than the heat.
constexpr NumPlaces kPlaces = {.least = 6, .most = 16};
/// Of the normal distribution 95 %, one-sided.
constexpr double kNormal = 1.645;
/// Of candidates that are nearly alike the race finds any; there as many of the fastest as there is time for, within
/// this, meet the heuristic's config.
constexpr size_t kFinalists = 8;
/// From the least number of places on half of the finalists go on, and again half of them after so many more.
constexpr int kHalving = 2;
/// Who was chosen among several proves itself in places this much later than each other, while the budget allows it:
/// how a machine shares cores and caches with others' work changes within a second, and with that what a config gains.
constexpr double kBetweenProofs = 0.1;
/// A heat has this many samples of each config at least.
constexpr int kHeatSamples = 5;
/// Of inputs whose memory is kept while there are other places, so that these get other memory. Where it is more, there
/// may be no room for that, and it lies in many pages wherever it lies.
constexpr double kSmallBytes = 64 << 20;
/// A winner must be faster than the heuristic's config by this at least, at the slow end of what is known of its gain:
/// of a logarithm, as gains are counted.
constexpr double kMargin = 0.01;
/// Of a GPU's free memory, what the heuristic's config may take: another candidate's workspace may be larger.
constexpr double kDeviceShare = 0.75;
/// Of the winner, after it was timed: what is wrong now and then shows itself.
constexpr int kFinalChecks = 8;

CallView view_of(const Plan& plan, std::vector<Tensor>& outputs) {
  for (const OutputSpec& spec : plan.outputs())
    outputs.push_back(spec.present ? Tensor(nullptr, spec.dtype, spec.shape, plan.device()) : Tensor());
  return {plan.inputs(), &plan.params(), outputs};
}

/// The operation's batch dimension in a plan's call; 0: it has none whose entries are calls of their own.
int64_t batch_of(const Plan& plan) {
  const Operation& op = plan.operation();
  const Dims::Entry* batch = op.batch_dim == nullptr ? nullptr : plan.dims().find(op.batch_dim(plan.params()));
  return batch == nullptr ? 0 : batch->value;
}

/// The plan's inputs with a batch of so many.
std::vector<Tensor> with_batch(const Plan& plan, int64_t batch) {
  const Operation& op = plan.operation();
  const std::string_view name = op.batch_dim(plan.params());
  std::vector<Tensor> smaller(plan.inputs().begin(), plan.inputs().end());
  for (size_t i = 0; i < smaller.size(); ++i) {
    Tensor& t = smaller[i];
    if (!t.present()) continue;
    const int axis = batches::find_dim(op.inputs[i].contract, plan.form(), t.rank(), name).axis;
    if (axis != batches::kNone && t.shape[axis] == batch_of(plan)) t.shape[axis] = batch;
  }
  return smaller;
}

/// What a GPU holds while the plan is measured: every tensor, the workspace, and what is written to empty the cache.
double device_bytes(const Plan& plan) {
  std::vector<Tensor> outputs;
  view_of(plan, outputs);
  return synthetic_bytes(plan.inputs()) + bytes_of(outputs) + static_cast<double>(plan.workspace_bytes()) +
         2 * static_cast<double>(device_properties(plan.device()).cache_bytes);
}

/// Why the plan's call is too large to be measured with copies of its inputs; empty: it is not.
std::string why_too_large(const Plan& plan, const TuneOptions& options) {
  constexpr double kMiB = 1 << 20;
  const double inputs = synthetic_bytes(plan.inputs());
  const double most = options.most_input_bytes > 0 ? options.most_input_bytes : most_copied_bytes();
  if (inputs > most)
    return fmt::format("its inputs take {:.0f} MiB, more than the {:.0f} that may be made up", inputs / kMiB,
                       most / kMiB);
  if (plan.device().kind == DeviceKind::cpu) return "";
  const double needed = device_bytes(plan), room = kDeviceShare * free_bytes(plan.device());
  if (needed > room)
    return fmt::format("it takes {:.0f} MiB of {}, more than the {:.0f} that may be used", needed / kMiB,
                       to_string(plan.device()), room / kMiB);
  return "";
}

/// The plan itself, or one of the same kernel for as large a part of its batch as is not too large.
Plan affordable(const Plan& plan, const TuneOptions& options) {
  const std::string why = why_too_large(plan, options);
  if (why.empty()) return plan;
  for (int64_t batch = batch_of(plan) / 2; batch > 0; batch /= 2) {
    Plan smaller = Plan::make(
        plan.operation().name, with_batch(plan, batch), plan.params(),
        {.platform = plan.kernel().platform, .kernel = plan.kernel().name, .policy = Policy{.autotune = false}});
    if (why_too_large(smaller, options).empty()) return smaller;
  }
  throw Unsupported(fmt::format("{}: {}; free memory, or tune a smaller call", plan.operation().name, why));
}

/// A call's inputs in host memory.
struct HostInputs {
  std::vector<Tensor> tensors = {};
  std::vector<Array> memory = {};  ///< of those that were made or fetched
};

/// The caller's own, copied where they are a GPU's or `anew` says so; or made up from the seed for a call without.
HostInputs inputs_of(const Plan& plan, std::span<const Tensor> given, uint64_t seed, bool anew = false) {
  HostInputs inputs;
  for (const Tensor& tensor : given) {
    const bool is_here = !tensor.present() || tensor.device.kind == DeviceKind::cpu;
    const Copy copy = is_here && !anew ? Copy{tensor, {}} : copy_to({}, tensor);
    inputs.tensors.push_back(copy.tensor);
    inputs.memory.push_back(copy.memory);
  }
  if (!given.empty()) return inputs;
  SyntheticInputs made = make_synthetic_inputs(plan.operation(), plan.inputs(), plan.params(), seed);
  return {std::move(made.tensors), std::move(made.memory)};
}

/// Where a plan's candidates run: in this process; in a fork of it for a kernel from outside, which nobody here has
/// tested; for a GPU in a program of its own.
class Lab {
 public:
  Lab(const Plan& plan, std::span<const Tensor> inputs, std::span<const ConfigBlock> candidates,
      const TuneOptions& options, double until, Heuristic heuristic = Heuristic::is_checked) {
    if (options.own_process || plan.device().kind != DeviceKind::cpu) {
      job_.emplace(plan, inputs, candidates);
      worker_.emplace([this](int socket) { return job_->start_worker(socket); }, options.patience_seconds, until);
      return;
    }
    here_.emplace(plan, inputs, candidates, until, heuristic);
    if (!plan.kernel().signature.empty())
      worker_.emplace([this](int socket) { return fork_worker(*here_, socket); }, options.patience_seconds, until);
  }
  TuningLab& lab() { return worker_ ? static_cast<TuningLab&>(*worker_) : *here_; }
  std::string begin() {
    std::string why = here_ ? here_->begin() : "";
    return why.empty() && worker_ ? worker_->begin() : why;
  }

 private:
  std::optional<TuningJob> job_;
  std::optional<PlanLab> here_;
  std::optional<WorkerLab> worker_;  ///< goes first: it asks the others
};

/// A lab with inputs of its own, where the heuristic's config is known to be right from the first place.
struct OtherPlace {
  OtherPlace(const Plan& plan, HostInputs own, std::span<const ConfigBlock> candidates, const TuneOptions& options,
             double until)
      : inputs(std::move(own)), lab(plan, inputs.tensors, candidates, options, until, Heuristic::is_trusted) {}
  HostInputs inputs;
  Lab lab;
};

/// Counts for `progress`, and tells the log.
class ReportingLab : public TuningLab {
 public:
  ReportingLab(TuningLab& inside, const Plan& plan, std::span<const ConfigBlock> candidates, const TuneOptions& options)
      : inside_(inside), plan_(plan), candidates_(candidates), options_(options) {}
  void expect(size_t candidate) override { inside_.expect(candidate); }
  std::string admit(size_t candidate) override {
    std::string why = inside_.admit(candidate);
    if (!why.empty())
      emit(EventKind::tuning, plan_.operation().name, plan_.kernel().name,
           [&] { return fmt::format("{} is rejected: {}", to_string(plan_.kernel(), candidates_[candidate]), why); });
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

/// The device's rates. Where they cannot be measured now, for want of memory say, none is known, and then only what
/// does not fit has no hope.
Peaks rates_of(Device device) try { return known_peaks(device); } catch (const std::exception& error) {
  log(LogLevel::warning, fmt::format("{} is not calibrated: {}", to_string(device), error.what()));
  return {};
}

/// Takes those out that the cost model gives no hope.
std::vector<CandidateReport> leave_out_hopeless(const Plan& plan, std::vector<ConfigBlock>& candidates) {
  std::vector<CandidateReport> left_out;
  const KernelInfo& kernel = plan.kernel();
  if (kernel.cost == nullptr) return left_out;
  std::vector<Tensor> outputs;
  const CallView view = view_of(plan, outputs);
  const std::vector<std::string> reasons =
      hopeless(kernel, view, device_properties(plan.device()), rates_of(plan.device()), candidates);
  std::vector<ConfigBlock> kept;
  for (size_t n = 0; n < candidates.size(); ++n)
    if (reasons[n].empty())
      kept.push_back(candidates[n]);
    else
      left_out.push_back({.config = candidates[n], .rejected = "not tried: " + reasons[n]});
  candidates = std::move(kept);
  return left_out;
}

/// Where the search begins besides the heuristic's config: 0, or the candidate that won for a near problem.
struct Start {
  size_t at = 0;
  std::string problem = {};
};
Start start_of(const Plan& plan, std::span<const ConfigBlock> candidates) {
  const std::optional<NearConfig> near = find_near_config(config_record_key(plan.request(), plan.kernel()));
  for (size_t n = 1; near && n < candidates.size(); ++n)
    if (config_values(plan.kernel(), candidates[n]) == near->values) return {n, near->problem};
  return {};
}

/// As broad a search as leaves a race of some six rounds in its part of the budget; a GPU's candidates have to be
/// compiled.
size_t breadth_of(TuningLab& lab, Device device, double budget_seconds) {
  if (device.kind != DeviceKind::cpu || lab.is_out_of_time()) return kLeastBreadth;
  const double began = now_seconds();
  lab.sample(0);
  const double rounds = 6 * (now_seconds() - began);
  return static_cast<size_t>(std::clamp(kRace * budget_seconds / rounds, 0.0 + kLeastBreadth, 0.0 + kMostBreadth));
}

SearchResult admit_all(size_t count, TuningLab& lab) {
  SearchResult result;
  result.trials.resize(count);
  for (size_t n = 0; n < count; ++n) lab.expect(n);
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

/// The candidates against the heuristic's config, in rounds of a sample of each, every other round backwards, until all
/// ratios of times are known well enough. One that failed has no samples.
std::vector<Comparison> run_heat(std::span<const size_t> candidates, const MeasureOptions& options, TuningLab& lab) {
  std::vector<size_t> runners = {0};
  runners.insert(runners.end(), candidates.begin(), candidates.end());
  std::vector<std::vector<double>> seconds(runners.size());
  std::vector<bool> failed(runners.size());
  std::vector<Comparison> results(candidates.size());
  const double until = now_seconds() + options.max_seconds;
  for (int64_t round = 0;; ++round) {
    for (size_t turn = 0; turn < runners.size(); ++turn) {
      const size_t n = round % 2 == 0 ? turn : runners.size() - 1 - turn;
      if (failed[n]) continue;
      const double took = lab.sample(runners[n]);
      failed[n] = took < 0;
      seconds[n].push_back(std::max(took, 1e-12));
    }
    if (failed[0]) return std::vector<Comparison>(candidates.size());
    if (round + 1 < options.min_samples) continue;
    bool is_known = true;
    for (size_t n = 1; n < runners.size(); ++n) {
      results[n - 1] = failed[n] ? Comparison() : comparison_of(seconds[0], seconds[n], options.confidence);
      is_known = is_known && results[n - 1].ratio.spread() <= options.spread;
    }
    if (is_known || now_seconds() >= until) return results;
  }
}

/// What the logarithm of a ratio of times is over places, and between what it is sure to be.
struct Gain {
  double middle, low, high;
};
/// Hodges and Lehmann's estimate and Wilcoxon's interval (95 %, one-sided): a burst of other work makes one place tell
/// something wild, and a mean would believe it.
Gain gain_over_places(std::span<const double> ratios) {
  std::vector<double> means;
  for (size_t a = 0; a < ratios.size(); ++a)
    for (size_t b = 0; b <= a; ++b) means.push_back((ratios[a] + ratios[b]) / 2);
  std::sort(means.begin(), means.end());
  const auto n = static_cast<double>(ratios.size());
  const double cut = n * (n + 1) / 4 - kNormal * std::sqrt(n * (n + 1) * (2 * n + 1) / 24);
  const auto out = static_cast<size_t>(std::max(0.0, cut));
  return {means[means.size() / 2], means[out], means[means.size() - 1 - out]};
}

/// A candidate of the last heats.
struct Finalist {
  size_t at;
  std::vector<Comparison> heats = {};  ///< with the heuristic's config, one in each place

  /// Over the heuristic's config: negative where the candidate is faster. One place knows only its own noise.
  Gain gain() const {
    const Summary& first = heats.front().ratio;
    if (heats.size() == 1) return {std::log(first.median), std::log(first.low), std::log(first.high)};
    return gain_over_places(ratios());
  }
  /// Over another, which was in the same places.
  Gain gain_over(const Finalist& other) const {
    std::vector<double> differences = ratios();
    for (size_t n = 0; n < heats.size(); ++n) differences[n] -= std::log(other.heats[n].ratio.median);
    return gain_over_places(differences);
  }
  bool wins() const { return gain().high < -kMargin; }
  bool may_win() const { return gain().low < -kMargin; }
  /// As it is told of: times are medians over places, the ratio is what is known of the gain.
  Comparison comparison() const {
    if (heats.size() == 1) return heats.front();
    std::vector<double> a, b;
    int64_t num_samples = 0;
    for (const Comparison& heat : heats) {
      a.push_back(heat.a.median);
      b.push_back(heat.b.median);
      num_samples += heat.ratio.num_samples;
    }
    Comparison all = comparison_of(a, b, 0.95);
    all.ratio = {std::exp(gain().middle), std::exp(gain().low), std::exp(gain().high), num_samples};
    return all;
  }

 private:
  std::vector<double> ratios() const {
    std::vector<double> all;
    for (const Comparison& heat : heats) all.push_back(std::log(heat.ratio.median));
    return all;
  }
};

/// The fastest of a race, the winner first; as many as `seconds` suffice for in the least number of places, and then
/// for the proof of one.
std::vector<Finalist> finalists_of(const SearchResult& found, double seconds) {
  std::vector<Finalist> all;
  for (size_t n = 1; n < found.trials.size(); ++n)
    if (n != found.best && found.trials[n].rejected.empty() && !found.trials[n].samples.empty()) all.push_back({n});
  std::sort(all.begin(), all.end(), [&](const Finalist& a, const Finalist& b) {
    return found.trials[a.at].quartile() < found.trials[b.at].quartile();
  });
  all.insert(all.begin(), {found.best});
  const double heat = kHeatSamples * PlanLab::seconds_of_sample(found.trials[0].median());
  constexpr double kOthers = 3;  // the heuristic's config beside them; it and the one of the proof
  const double most = std::clamp(seconds / (kPlaces.least * heat) - kOthers, 1.0, 0.0 + kFinalists);
  all.resize(std::min(all.size(), static_cast<size_t>(most)));
  return all;
}

bool gains_more(const Finalist& a, const Finalist& b) { return a.gain().middle < b.gain().middle; }

/// Leaves `most` of those that may still be the answer, one at least while there is any: they may win, and may be
/// faster than the one that leads by what matters.
void leave_out_beaten(std::vector<Finalist>& finalists, size_t most) {
  std::erase_if(finalists, [](const Finalist& f) { return !f.may_win(); });
  if (finalists.empty()) return;
  std::sort(finalists.begin(), finalists.end(), gains_more);
  const Finalist leader = finalists.front();
  std::erase_if(finalists,
                [&](const Finalist& f) { return f.at != leader.at && f.gain_over(leader).low > -kMargin / 2; });
  finalists.resize(std::min(finalists.size(), std::max<size_t>(most, 1)), leader);
}

/// A finalist has to win over places, beyond what they differ by: how much a config gains differs by some per cent
/// between them, and a config serves the calls of all. Of several the one that leads is chosen first, in more places
/// for ever fewer of them. Then it has to win in places that had no part in that: of many that are alike one always
/// looks fastest where it was chosen, and what a race chose may be so as well. These go on while it is open whether it
/// wins. A winner is checked again. Where none wins, the report is of the one that came next.
template <class LabIn>  // Lab& lab_in(place): a lab there, until the next is asked for
void run_last_heats(std::vector<Finalist> finalists, double until, NumPlaces places, LabIn&& lab_in,
                    TuneReport& report) {
  const auto rejected = [&](const Finalist& f) -> std::string& { return report.candidates[f.at].rejected; };
  // One place has to tell by itself; of several none needs to know more than what they differ by.
  MeasureOptions heat = places.most == 1
                            ? MeasureOptions{.spread = kMargin / 4, .confidence = 0.99}
                            : MeasureOptions{.spread = kMargin, .min_samples = kHeatSamples, .confidence = 0.99};
  Lab* lab = nullptr;
  int place = 0;
  const auto run_in_next_place = [&](double seconds) {
    lab = &lab_in(place++);
    const std::string why = lab->begin();
    std::erase_if(finalists, [&](const Finalist& f) {
      rejected(f) = why.empty() ? lab->lab().admit(f.at) : why;
      return !rejected(f).empty();
    });
    std::vector<size_t> candidates;
    for (const Finalist& f : finalists) candidates.push_back(f.at);
    heat.max_seconds = seconds;
    const std::vector<Comparison> results = run_heat(candidates, heat, lab->lab());
    for (size_t n = 0; n < finalists.size(); ++n) finalists[n].heats.push_back(results[n]);
    std::erase_if(finalists, [&](const Finalist& f) {
      const bool has_failed = f.heats.back().ratio.num_samples == 0;
      if (has_failed) rejected(f) = "it failed while it was timed";
      return has_failed;
    });
    if (!finalists.empty()) report.comparison = finalists.front().comparison();
  };
  const auto is_late = [&] { return now_seconds() >= until; };
  const auto share = [&](int places_left) { return (until - now_seconds()) / places_left; };

  const bool are_several = finalists.size() > 1;
  while (are_several && !finalists.empty() && (finalists.size() > 1 || place < places.least)) {
    run_in_next_place(share(2 * places.most - place));
    if (place >= places.least)
      leave_out_beaten(finalists, is_late() ? 1 : kFinalists >> (1 + (place - places.least) / kHalving));
  }
  for (Finalist& f : finalists) f.heats.clear();

  for (int proof = 0; proof < places.most && !finalists.empty(); ++proof) {
    const Finalist& chosen = finalists.front();
    if (proof >= places.least && (is_late() || chosen.wins() || !chosen.may_win())) break;
    if (are_several) {
      const double pause = std::clamp(share(places.most - proof) / 2, 0.0, kBetweenProofs);
      std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    }
    run_in_next_place(share(places.most - proof));
  }
  if (finalists.empty() || !finalists.front().wins()) return;
  std::string& why = rejected(finalists.front());
  for (int n = 0; n < kFinalChecks && why.empty(); ++n) why = lab->lab().admit(finalists.front().at);
  report.faster = why.empty();
  if (report.faster) report.best = report.candidates[finalists.front().at].config;
}

void tell(const Plan& plan, const TuneReport& report) {
  const auto emit_of_plan = [&](auto text) {
    emit(EventKind::tuning, plan.operation().name, plan.kernel().name, text);
  };
  for (const CandidateReport& candidate : report.candidates)
    if (candidate.num_samples > 0)
      emit_of_plan([&] {
        return fmt::format("{} takes {:.4g} us ({} samples)", to_string(plan.kernel(), candidate.config),
                           candidate.seconds * 1e6, candidate.num_samples);
      });
  emit_of_plan([&] {
    return fmt::format("tuned in {:.2f} s: {}", report.seconds,
                       report.faster
                           ? fmt::format("{}, {:.3f} of the heuristic's time", to_string(plan.kernel(), report.best),
                                         report.comparison.ratio.median)
                       : report.complete ? "nothing beats the heuristic's config"
                                         : "nothing beat the heuristic's config before the budget ended");
  });
}

ConfigProvenance provenance_of(const TuneReport& report) {
  return {.how = report.faster || report.complete ? "tuned" : std::string(kUnfinished),
          .seconds = report.faster ? report.comparison.b.median : report.candidates.front().seconds,
          .heuristic_seconds = report.faster ? report.comparison.a.median : report.candidates.front().seconds,
          .ratio_high = report.faster ? report.comparison.ratio.high : 1,
          .num_samples = report.comparison.ratio.num_samples,
          .num_candidates = static_cast<int64_t>(report.candidates.size()),
          .search_seconds = report.seconds,
          .transferred_from = report.transferred_from};
}

void publish(const Plan& plan, TuneReport& report) {
  const ChooseRequest request = plan.request();
  const RecordKey key = config_record_key(request, plan.kernel());
  if (!report.faster && !report.complete) {
    // What a search that was cut short did not find says nothing against what is known already.
    const std::optional<StoredConfig> stored = find_stored_config(key);
    report.published = stored && !stored->unfinished_after;
    if (report.published || has_memory_config(request, plan.kernel())) return;
  }
  set_memory_config(request, plan.kernel(), report.faster ? std::optional(report.best) : std::nullopt);
  // Nothing over the heuristic's config is an answer too: the next process need not look again.
  report.published = put_stored_config(key, report.faster ? config_values(plan.kernel(), report.best) : ConfigValues(),
                                       provenance_of(report));
}

}  // namespace

std::vector<ConfigBlock> tuning_candidates(const Plan& plan) {
  const KernelInfo& kernel = plan.kernel();
  const DeviceProperties& device = device_properties(plan.device());
  std::vector<Tensor> outputs;
  const CallView view = view_of(plan, outputs);
  std::vector<ConfigBlock> all = {heuristic_that_fits(kernel, view, calibrated_properties(device.device))};
  if (writes_nothing(outputs)) return all;
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

bool writes_nothing(std::span<const Tensor> outputs) {
  return std::all_of(outputs.begin(), outputs.end(),
                     [](const Tensor& output) { return !output.present() || output.num_elements() == 0; });
}

TuneReport tune(const Plan& plan, const TuneOptions& options, std::span<const Tensor> given) {
  const std::string_view op = plan.operation().name;
  const KernelInfo& kernel = plan.kernel();
  const Unrecorded unrecorded;
  const double began = now_seconds(), until = began + options.budget_seconds;
  std::vector<ConfigBlock> candidates = tuning_candidates(plan);
  if (candidates.size() < 2)
    throw Unsupported(
        fmt::format("{}: kernel {} has one config for this call; there is nothing to tune", op, kernel.name));
  const std::vector<CandidateReport> left_out = leave_out_hopeless(plan, candidates);

  // A GPU's are copied for the process that measures.
  const bool is_on_gpu = plan.device().kind != DeviceKind::cpu;
  if (is_on_gpu && !why_too_large(plan, options).empty()) given = {};
  const Plan tried = given.empty() ? affordable(plan, options) : plan;
  const HostInputs inputs = inputs_of(tried, given, options.seed);
  Lab first_place(tried, inputs.tensors, candidates, options, began + (1 - kLastHeat) * options.budget_seconds);
  if (const std::string why = first_place.begin(); !why.empty())
    throw Unsupported(
        fmt::format("{}: kernel {} cannot be tuned: its heuristic's config fails: {}", op, kernel.name, why));
  ReportingLab lab(first_place.lab(), plan, candidates, options);
  const Start start = start_of(plan, candidates);
  const auto searched = [&] {
    const size_t breadth = breadth_of(first_place.lab(), plan.device(), options.budget_seconds);
    return search(candidates, kernel.config_fields, lab, {.seed = options.seed, .also = start.at, .breadth = breadth});
  };
  const SearchResult found = options.verify_only ? admit_all(candidates.size(), lab) : searched();

  TuneReport report{.kernel = plan.choice().kernel, .candidates = {}, .best = candidates.front(), .comparison = {}};
  report.candidates = reports_of(candidates, found.trials);
  report.candidates.insert(report.candidates.end(), left_out.begin(), left_out.end());
  report.batch = batch_of(tried) == batch_of(plan) ? 0 : batch_of(tried);
  report.transferred_from = start.problem;
  report.complete = found.complete;
  const bool has_other_places = !is_on_gpu && !options.own_process;
  std::list<OtherPlace> others;
  const auto lab_in = [&](int place) -> Lab& {
    if (!has_other_places) return first_place;
    if (synthetic_bytes(tried.inputs()) > kSmallBytes) others.clear();
    const uint64_t seed = options.seed + 1 + static_cast<uint64_t>(place);
    return others.emplace_back(tried, inputs_of(tried, given, seed, /*anew=*/true), candidates, options, until).lab;
  };
  if (found.best != 0)
    run_last_heats(finalists_of(found, has_other_places ? until - now_seconds() : 0), until,
                   has_other_places ? kPlaces : NumPlaces{1, 1}, lab_in, report);
  report.seconds = now_seconds() - began;
  tell(plan, report);
  if (options.publish && !options.verify_only) publish(plan, report);
  return report;
}

}  // namespace ejk
