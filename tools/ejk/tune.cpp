// ejk tune: finds configs that beat the heuristics' on this machine, and keeps them in the store.
#include "ejkernel/runtime/tuner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/autotune.h"
#include "ejkernel/runtime/explain.h"
#include "ejkernel/runtime/json.h"
#include "ejkernel/runtime/planned_call.h"
#include "ejkernel/runtime/tuner_program.h"
#include "tools/ejk/bench.h"
#include "tools/ejk/pace.h"
#include "tools/ejk/print.h"
#include "tools/ejk/verbs.h"
#include "tools/ejk/workload.h"

namespace ejk::tool {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  CallFlags call;
  std::vector<std::string> cases;
  std::string recorded, hlo;
  double budget = 10;
  bool resume = false, dry_run = false, verify_only = false, own_process = false, worker = false;
  bool json = false, text = false;
};

/// One to tune; its data are made when its turn comes.
struct Problem {
  std::string name = {}, operation = {};
  bool backward = false;
  bool is_listed = false;  ///< one of the library's named problems that nobody named
  uint64_t seed = 0;
  int64_t calls = 0;  ///< how many a program makes; 0: it was described by hand
  Device device = {};
  PlanOptions options = {};
  std::function<ToolCall(bool with_data)> make = {};  ///< data are in host memory
};

Problem problem_of(const BenchEntry& entry, bool is_listed) {
  return {
      .name = entry.name,
      .operation = entry.call.operation,
      .backward = entry.call.backward,
      .is_listed = is_listed,
      .seed = entry.call.seed,
      .device = entry.call.device,
      .options = plan_options(entry.call),
      .make = [call = entry.call](bool with_data) { return with_data ? make_call_with_data(call) : make_specs(call); }};
}

/// That of its tensors; a call has at least one.
Device device_of(const Invocation& recorded) {
  const auto present = [](const Tensor& input) { return input.present(); };
  return std::find_if(recorded.inputs.begin(), recorded.inputs.end(), present)->device;
}

/// Without samples to put in it stays without data: the tuner makes them.
ToolCall recorded_call(const Invocation& recorded, bool with_data) {
  ToolCall call{.operation = recorded.operation, .inputs = recorded.inputs, .params = recorded.params};
  if (!with_data || !recorded.has_samples()) return call;
  const auto made = std::make_shared<SyntheticInputs>(inputs_of(recorded, 1));
  call.inputs = made->tensors;
  call.owners.push_back(made);
  return call;
}

/// "flash_attention bf16[2, 1024, 8, 128]", the heaviest first.
std::vector<Problem> problems_of_calls(const std::vector<Invocation>& calls) {
  std::vector<Problem> problems;
  for (const RecordedProblem& recorded : recorded_problems(calls)) {
    const Invocation& call = calls[recorded.calls.front()];
    problems.push_back({.name = fmt::format("{} {}", call.operation, to_string(call.inputs.front())),
                        .operation = call.operation,
                        .calls = recorded.count,
                        .device = device_of(call),
                        .options = call.options,
                        .make = [call, why_not = recorded.why_not](bool with_data) {
                          if (!why_not.empty()) throw Unsupported(why_not);
                          return recorded_call(call, with_data);
                        }});
  }
  return problems;
}

std::vector<Invocation> calls_of_program(const std::string& file) {
  std::vector<Invocation> calls;
  for (PlannedCall& planned : load_planned_calls(file)) calls.push_back(std::move(planned.call));
  if (calls.empty())
    throw_invalid("ejk", "--hlo", "name the text of a program that calls ejkernel", file + ", where no such call is",
                  "write one with jax.jit(f).lower(…).as_text()");
  return calls;
}

void require_alone(std::string_view flag, const std::string& other) {
  if (!other.empty())
    throw_invalid("ejk", flag, "be the only description of the problems", other + " as well", "leave one of them out");
}

/// The tuner is what looks for a config, whatever the policy.
void require_no_choice(const CallFlags& call) {
  if (!call.config.empty())
    throw_invalid("ejk", "--config", "be left out of tune, which tries every config", call.config.front(),
                  "time one with ejk bench");
  if (!call.policy.empty())
    throw_invalid("ejk", "--policy", "be left out of tune, which looks for a config in any case", call.policy,
                  "leave it out");
}

std::vector<Problem> problems_of(const Flags& flags) {
  require_no_choice(flags.call);
  if (!flags.recorded.empty()) {
    require_alone("--recorded", flags.call.operation);
    require_alone("--recorded", flags.hlo);
    const std::vector<Invocation> calls = load_invocations(flags.recorded);
    if (calls.empty())
      throw_invalid("ejk", "--recorded", "name a file with calls", flags.recorded + ", where there is none",
                    "record some with EJKERNEL_OPS_RECORD=" + flags.recorded);
    return problems_of_calls(calls);
  }
  if (!flags.hlo.empty()) {
    require_alone("--hlo", flags.call.operation);
    return problems_of_calls(calls_of_program(flags.hlo));
  }
  std::vector<Problem> problems;
  const bool are_listed = flags.cases.empty() && !names_a_problem(flags.call);
  for (const BenchEntry& entry : entries_of("tune", flags.call, flags.cases))
    problems.push_back(problem_of(entry, are_listed));
  return problems;
}

Json config_of(const KernelInfo& kernel, const ConfigBlock& config) { return Json::parse(config_json(kernel, config)); }

/// What came of one problem, as one line of JSON; people get the same in words.
Json result_json(const Problem& problem, const Json& result) {
  Json json = {{"case", problem.name}, {"operation", problem.operation}, {"backward", problem.backward}};
  if (problem.calls > 0) json["calls"] = problem.calls;
  json.update(result);
  return json;
}

/// The cost model left it out.
bool is_untried(const CandidateReport& candidate) { return candidate.rejected.starts_with("not tried"); }

std::string outcome(const TuneReport& report, bool verify_only) {
  const auto count = [&](auto is) { return std::count_if(report.candidates.begin(), report.candidates.end(), is); };
  if (verify_only)
    return fmt::format("{} candidates, {} not tried, {} rejected", report.candidates.size(), count(is_untried),
                       count([](const CandidateReport& c) { return !c.rejected.empty() && !is_untried(c); }));
  std::string text =
      report.faster
          ? fmt::format("{}: {:.3f}x as fast as the heuristic's {}", to_string(*report.kernel, report.best),
                        1 / report.comparison.ratio.median, to_string(*report.kernel, report.candidates.front().config))
          : fmt::format("nothing beats the heuristic's {}",
                        to_string(*report.kernel, report.candidates.front().config));
  text +=
      fmt::format(" ({} of {} candidates timed{})", count([](const CandidateReport& c) { return c.num_samples > 0; }),
                  report.candidates.size(), report.complete ? "" : ", then the budget ended");
  return text;
}

/// Whether store or memory already answer for the plan's problem.
bool is_tuned(const Plan& plan) {
  PlanOptions options = plan.options();
  options.policy = Policy{.autotune = false, .heuristics = true};
  options.config = {};
  const Explanation told = explain(plan.operation().name, plan.inputs(), plan.params(), options);
  return std::any_of(told.trail.tiers.begin(), told.trail.tiers.end(), [](const TierAnswer& answer) {
    return (answer.tier == Tier::memory || answer.tier == Tier::store) && !answer.answer.starts_with("miss") &&
           !answer.answer.ends_with("before the budget ended");
  });
}

void print_candidates(const std::string& name, const Plan& plan, bool as_json) {
  const std::vector<ConfigBlock> candidates = tuning_candidates(plan);
  if (as_json) {
    Json json = {{"case", name}, {"kernel", plan.kernel().name}, {"candidates", Json::array()}};
    for (const ConfigBlock& candidate : candidates)
      json["candidates"].push_back({{"config", config_of(plan.kernel(), candidate)}});
    fmt::print("{}\n", json.dump());
    return;
  }
  fmt::print("{}  kernel {}, {} candidates\n", name, plan.kernel().name, candidates.size());
  for (const ConfigBlock& candidate : candidates) fmt::print("  {}\n", to_string(plan.kernel(), candidate));
}

/// Problem by problem, with a line for each.
class Tuning {
 public:
  Tuning(const Flags& flags, std::vector<Problem> problems)
      : flags_(flags), problems_(std::move(problems)), pace_(problems_.size(), flags.budget) {
    for (const Problem& problem : problems_) width_ = std::max(width_, label(problem).size());
  }

  int run() {
    for (size_t n = 0; n < problems_.size(); ++n) {
      const double began = now_seconds();
      try {
        progress_.show(fmt::format("{} of {}: {} …", n + 1, problems_.size(), problems_[n].name));
        handle(n);
      } catch (const InvalidArgument& error) {
        // A dtype that an operation has, and its gradient has not.
        if (!problems_[n].is_listed) throw;
        leave_out(problems_[n], fmt::format("left out: {}", error.what()));
      } catch (const Unsupported& error) {
        progress_.clear();
        ++num_failed_;
        fmt::print(stderr, "ejk: {}\n", printable(error.what()));
      }
      pace_.finish(now_seconds() - began);
    }
    if (num_tuned_ > 0 && !flags_.json && !flags_.verify_only)
      fmt::print("{} problems: {:.3f}x the heuristics' speed in geometric mean\n", num_tuned_,
                 std::exp(logs_ / num_tuned_));
    return num_failed_ == 0 ? kOk : kFailed;
  }

 private:
  static std::string label(const Problem& problem) {
    return problem.calls == 0 ? problem.name : fmt::format("{}, {} calls", problem.name, problem.calls);
  }

  void handle(size_t n) {
    const Problem& problem = problems_[n];
    const ToolCall call = problem.make(/*with_data=*/!flags_.dry_run);
    PlanOptions options = problem.options;
    options.policy = Policy{.autotune = false, .heuristics = true};
    const Plan plan = Plan::make(call.operation, on_device(call.inputs, problem.device), call.params, options);
    if (flags_.dry_run) {
      progress_.clear();
      print_candidates(problem.name, plan, flags_.json);
    } else if (!is_tunable(plan) || (flags_.resume && is_tuned(plan))) {
      leave_out(problem,
                is_tunable(plan) ? "tuned already" : fmt::format("kernel {} has one config", plan.kernel().name));
    } else {
      tune_one(n, plan, call);
    }
  }

  void say(const Problem& problem, const std::string& text) {
    progress_.clear();
    if (!flags_.json) fmt::print("{:<{}}  {}\n", label(problem), width_, text);
  }

  void leave_out(const Problem& problem, const std::string& why) {
    say(problem, why);
    if (flags_.json) fmt::print("{}\n", result_json(problem, {{"left_out", why}}).dump());
  }

  void tune_one(size_t n, const Plan& plan, const ToolCall& call) {
    const Problem& problem = problems_[n];
    const double began = now_seconds();
    const auto show = [&](size_t done, size_t all) {
      progress_.show(fmt::format("{} of {}: {}, candidate {} of {}, {}", n + 1, problems_.size(), problem.name, done,
                                 all, pace_.left(now_seconds() - began)));
    };
    const TuneReport report = tune(plan,
                                   {.budget_seconds = flags_.budget,
                                    .own_process = flags_.own_process,
                                    .seed = problem.seed + 1,
                                    .verify_only = flags_.verify_only,
                                    .progress = show},
                                   call.owners.empty() ? std::span<const Tensor>() : call.inputs);
    say(problem, outcome(report, flags_.verify_only));
    if (flags_.json) fmt::print("{}\n", result_json(problem, Json::parse(to_json(report))).dump());
    if (!flags_.verify_only && !report.published) {
      ++num_failed_;
      progress_.clear();
      fmt::print(stderr, "ejk: {}: the store must be writable for this to be kept, got '{}'; see ejk doctor\n",
                 problem.name, printable(store().root()));
    }
    logs_ += report.faster ? -std::log(report.comparison.ratio.median) : 0;
    ++num_tuned_;
  }

  const Flags& flags_;
  std::vector<Problem> problems_;
  Pace pace_;
  Progress progress_;
  size_t width_ = 0;
  double logs_ = 0;
  int num_tuned_ = 0, num_failed_ = 0;
};

}  // namespace

Action declare_tune(Options& options) {
  const auto flags = std::make_shared<Flags>();
  options.seconds(flags->budget, "the most to spend on one problem (default 10)", "budget")
      .flag("resume", flags->resume, "leave out problems that store or memory answer for")
      .flag("dry-run", flags->dry_run, "list the candidates; run none")
      .flag("verify-only", flags->verify_only, "check every candidate against the heuristic's config; time none")
      .flag("own-process", flags->own_process,
            "try candidates in a process of their own, as those of a GPU and of plug-ins are")
      .value("recorded", flags->recorded, "FILE",
             "the calls that EJKERNEL_OPS_RECORD=FILE recorded, the heaviest first")
      .value("hlo", flags->hlo, "FILE", "the calls of a lowered program, as StableHLO or HLO text")
      .flag("json", flags->json, "one line of JSON for each problem: what is printed where the output is no terminal")
      .flag("text", flags->text, "words, where it is none as well")
      .flag("worker", flags->worker, "be that process: what the library starts, and no use by hand");
  declare_operations(options, flags->call, &flags->cases);
  return [flags] {
    if (flags->worker) return run_tuner_program();
    if (flags->json && flags->text)
      throw_invalid("ejk", "--text", "be given without --json", "both", "leave one of them out");
    flags->json = !flags->text && (flags->json || isatty(STDOUT_FILENO) == 0);
    return Tuning(*flags, problems_of(*flags)).run();
  };
}

}  // namespace ejk::tool
