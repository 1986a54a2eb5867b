// ejk tune: finds configs that beat the heuristics' on this machine, and keeps them in the store.
#include "ejkernel/runtime/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "ejkernel/core/error.h"
#include "ejkernel/runtime/explain.h"
#include "ejkernel/runtime/json.h"
#include "ejkernel/runtime/tuner_program.h"
#include "tools/ejk/bench.h"
#include "tools/ejk/print.h"
#include "tools/ejk/verbs.h"
#include "tools/ejk/workload.h"

namespace ejk::tool {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  CallFlags call;
  std::vector<std::string> cases;
  double budget = 10;
  bool resume = false, dry_run = false, verify_only = false, own_process = false, json = false, worker = false;
};

Json config_of(const KernelInfo& kernel, const ConfigBlock& config) { return Json::parse(config_json(kernel, config)); }

/// What came of one problem, as one line of JSON; people get the same in words.
Json report_json(const BenchEntry& entry, const TuneReport& report) {
  Json json = {{"case", entry.name},
               {"operation", entry.call.operation},
               {"backward", entry.call.backward},
               {"kernel", report.kernel->name},
               {"faster", report.faster},
               {"config", config_of(*report.kernel, report.best)},
               {"heuristic", config_of(*report.kernel, report.candidates.front().config)},
               {"complete", report.complete},
               {"published", report.published},
               {"seconds", report.seconds},
               {"candidates", Json::array()}};
  if (!report.transferred_from.empty()) json["transferred_from"] = report.transferred_from;
  if (report.faster) {
    json["ratio"] = report.comparison.ratio.median;
    json["ratio_low"] = report.comparison.ratio.low;
    json["ratio_high"] = report.comparison.ratio.high;
  }
  for (const CandidateReport& c : report.candidates) {
    Json candidate = {{"config", config_of(*report.kernel, c.config)}};
    if (!c.rejected.empty()) candidate["rejected"] = c.rejected;
    if (c.num_samples > 0) candidate.update({{"seconds", c.seconds}, {"samples", c.num_samples}});
    json["candidates"].push_back(std::move(candidate));
  }
  return json;
}

std::string outcome(const TuneReport& report, bool verify_only) {
  const auto count = [&](auto is) { return std::count_if(report.candidates.begin(), report.candidates.end(), is); };
  if (verify_only)
    return fmt::format("{} candidates, {} rejected", report.candidates.size(),
                       count([](const CandidateReport& c) { return !c.rejected.empty(); }));
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
    return (answer.tier == Tier::memory || answer.tier == Tier::store) && !answer.answer.starts_with("miss");
  });
}

void print_candidates(const BenchEntry& entry, const Plan& plan, bool as_json) {
  const std::vector<ConfigBlock> candidates = tuning_candidates(plan);
  if (as_json) {
    Json json = {{"case", entry.name}, {"kernel", plan.kernel().name}, {"candidates", Json::array()}};
    for (const ConfigBlock& candidate : candidates)
      json["candidates"].push_back({{"config", config_of(plan.kernel(), candidate)}});
    fmt::print("{}\n", json.dump());
    return;
  }
  fmt::print("{}  kernel {}, {} candidates\n", entry.name, plan.kernel().name, candidates.size());
  for (const ConfigBlock& candidate : candidates) fmt::print("  {}\n", to_string(plan.kernel(), candidate));
}

int tune_all(const Flags& flags) {
  const std::vector<BenchEntry> entries = entries_of("tune", flags.call, flags.cases);
  Progress progress;
  double logs = 0;
  int num_tuned = 0, num_failed = 0;
  size_t width = 0;
  for (const BenchEntry& entry : entries) width = std::max(width, entry.name.size());
  for (size_t n = 0; n < entries.size(); ++n) {
    const BenchEntry& entry = entries[n];
    progress.show(fmt::format("{} of {}: {} …", n + 1, entries.size(), entry.name));
    const ToolCall call = make_call_with_data(entry.call);
    PlanOptions options = plan_options(entry.call);
    options.policy = Policy{.autotune = false, .heuristics = true};
    const Plan plan = Plan::make(call.operation, on_device(call.inputs, entry.call.device), call.params, options);
    const std::string name = fmt::format("{:<{}}  ", entry.name, width);
    if (flags.dry_run) {
      progress.clear();
      print_candidates(entry, plan, flags.json);
      continue;
    }
    if (!is_tunable(plan) || (flags.resume && is_tuned(plan))) {
      progress.clear();
      if (!flags.json)
        fmt::print("{}{}\n", name,
                   is_tunable(plan) ? "tuned already" : fmt::format("kernel {} has one config", plan.kernel().name));
      continue;
    }
    const double began = now_seconds();
    const auto show = [&](size_t done, size_t all) {
      const double left = std::max(0.0, flags.budget - (now_seconds() - began)) +
                          flags.budget * static_cast<double>(entries.size() - n - 1);
      progress.show(fmt::format("{} of {}: {}, candidate {} of {}, at most {:.0f} s left", n + 1, entries.size(),
                                entry.name, done, all, left));
    };
    try {
      const TuneReport report = tune(plan,
                                     {.budget_seconds = flags.budget,
                                      .own_process = flags.own_process,
                                      .seed = entry.call.seed + 1,
                                      .verify_only = flags.verify_only,
                                      .progress = show},
                                     call.inputs);
      progress.clear();
      flags.json ? fmt::print("{}\n", report_json(entry, report).dump())
                 : fmt::print("{}{}\n", name, outcome(report, flags.verify_only));
      logs += report.faster ? -std::log(report.comparison.ratio.median) : 0;
      ++num_tuned;
    } catch (const Unsupported& error) {
      progress.clear();
      ++num_failed;
      fmt::print(stderr, "ejk: {}\n", error.what());
    }
  }
  if (num_tuned > 0 && !flags.json && !flags.verify_only)
    fmt::print("{} problems: {:.3f}x the heuristics' speed in geometric mean\n", num_tuned, std::exp(logs / num_tuned));
  return num_failed == 0 ? kOk : kFailed;
}

}  // namespace

Action declare_tune(Options& options) {
  const auto flags = std::make_shared<Flags>();
  options.seconds(flags->budget, "the most to spend on one problem (default 10)")
      .flag("resume", flags->resume, "leave out problems that store or memory answer for")
      .flag("dry-run", flags->dry_run, "list the candidates; run none")
      .flag("verify-only", flags->verify_only, "check every candidate against the heuristic's config; time none")
      .flag("own-process", flags->own_process,
            "try candidates in a process of their own, as those of a GPU and of plug-ins are")
      .flag("json", flags->json, "one line of JSON for each problem")
      .flag("worker", flags->worker, "be that process: what the library starts, and no use by hand");
  declare_operations(options, flags->call, &flags->cases);
  return [flags] { return flags->worker ? run_tuner_program() : tune_all(*flags); };
}

}  // namespace ejk::tool
