// ejk bench: named problems, timed; how far from the machine's own peak, which the same run measures.
#include "tools/ejk/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/core/version.h"
#include "ejkernel/runtime/config.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/json.h"
#include "ejkernel/runtime/registry.h"
#include "tools/ejk/cases.h"
#include "tools/ejk/print.h"
#include "tools/ejk/verbs.h"
#include "tools/ejk/workload.h"

namespace ejk::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kLongestPass = " backward";  // that a label may end in

std::string label(const BenchResult& r) {
  return r.pass.empty() ? r.entry.name : fmt::format("{} {}", r.entry.name, r.pass);
}

Summary measured(const BenchFlags& flags, const TimedWorkload& workload) {
  return measure(workload.sampler(), {.max_seconds = flags.seconds, .spread = 0.005, .min_samples = 5});
}

BenchResult measure_call(const BenchFlags& flags, const BenchEntry& entry, std::string_view pass) {
  const TimedWorkload workload(entry.call, flags.warm);
  const Plan& plan = workload.plan();
  const Work work = plan.work();
  return {.entry = entry,
          .pass = std::string(pass),
          .kernel = plan.kernel().name,
          .config = to_string(plan.kernel(), plan.choice().config),
          .tier = std::string(name(plan.choice().tier)),
          .time = measured(flags, workload),
          .flops = work.flops,
          .bytes = work.bytes,
          .dtype = plan.inputs().front().dtype};
}

/// A call; for a gradient the call that it belongs to, the gradient, and one after the other.
std::vector<BenchResult> measure_entry(const BenchFlags& flags, const BenchEntry& entry, Progress& progress) {
  progress.show(fmt::format("{} …", entry.name));
  std::vector<BenchResult> results;
  if (entry.call.backward) {
    BenchEntry forward = entry;
    forward.call.backward = false;
    forward.call.config.clear();  // is the gradient's
    results = {measure_call(flags, forward, "forward"), measure_call(flags, entry, "backward")};
    BenchResult both = results[1];
    both.pass = "both";
    if (results[0].kernel != both.kernel) both.kernel = fmt::format("{}, {}", results[0].kernel, both.kernel);
    both.config = fmt::format("{}; {}", results[0].config, both.config);
    both.flops += results[0].flops;
    both.bytes += results[0].bytes;
    both.time = measured(flags, TimedWorkload(std::array{forward.call, entry.call}, flags.warm));
    results.push_back(std::move(both));
  } else {
    results.push_back(measure_call(flags, entry, ""));
  }
  progress.clear();
  return results;
}

Ceiling ceiling_of(const BenchResult& r, const Peaks& peaks) {
  return ejk::ceiling_of(peaks, r.dtype, r.flops, r.bytes);
}

/// 0 where nobody measured what bounds it.
double percent_of_peak(const BenchResult& r, const Peaks& peaks) {
  return 100 * ceiling_of(r, peaks).seconds / r.time.median;
}
std::string percent_text(double percent) { return percent > 0 ? fmt::format("{:.1f}", percent) : "-"; }

/// For what stands as "-".
std::string why_no_percent(DType dtype, Device device) {
  return fmt::format("no % of peak for {}: the rate of its products is not measured on {}", name(dtype),
                     to_string(device));
}

std::string command_of(const CallFlags& call) {
  std::string text = "ejk bench";
  for (const std::string& argument : arguments_of(call)) text += " " + shell_word(argument);
  return text;
}

Json result_json(const BenchResult& r, const Peaks& peaks) {
  const Ceiling ceiling = ceiling_of(r, peaks);
  return {{"case", r.entry.name},
          {"operation", r.entry.call.operation},
          {"backward", r.entry.call.backward},
          {"pass", r.pass.empty() ? Json() : Json(r.pass)},
          {"kernel", r.kernel},
          {"config", r.config},
          {"tier", r.tier},
          {"seconds", r.time.median},
          {"low", r.time.low},
          {"high", r.time.high},
          {"samples", r.time.num_samples},
          {"flops", r.flops},
          {"bytes", r.bytes},
          {"percent_of_peak", ceiling.of.empty() ? Json() : Json(percent_of_peak(r, peaks))},
          {"peak_of", ceiling.of.empty() ? why_no_percent(r.dtype, r.entry.call.device) : std::string(ceiling.of)},
          {"command", command_of(r.entry.call)},
          {"arguments", arguments_of(r.entry.call)}};
}

/// e^(mean of logs); 0 when nothing counts.
double geometric_mean(const std::vector<BenchResult>& results, double (*of)(const BenchResult&)) {
  double sum = 0;
  for (const BenchResult& r : results) sum += std::log(of(r));
  return results.empty() ? 0 : std::exp(sum / static_cast<double>(results.size()));
}

/// "16 threads", "132 multiprocessors"
std::string units_text(const Peaks& peaks, Device device) {
  if (device.kind == DeviceKind::cpu) return fmt::format("{} threads", peaks.num_threads);
  return fmt::format("{} multiprocessors", device_properties(device).num_units);
}

Json peaks_json(const Peaks& peaks, Device at) {
  const DeviceProperties& device = device_properties(at);
  Json json{
      {"version", kVersion},
      {"device", {{"product", device.product}, {"architecture", device.architecture}, {"threads", peaks.num_threads}}}};
  for (const auto& [name, rate] : kRates)
    json[fmt::format("peak_{}{}",
                     rate != &Peaks::bytes_per_second ? ""
                     : at.kind == DeviceKind::cpu     ? "read_"
                                                      : "copy_",
                     name)] = peaks.*rate;
  return json;
}

Json report_json(const BenchFlags& flags, const Peaks& peaks, const std::vector<BenchResult>& results) {
  Json json = peaks_json(peaks, flags.call.device);
  json["caches"] = flags.warm ? "warm" : "cold";
  json["cases"] = Json::array();
  for (const BenchResult& r : results) json["cases"].push_back(result_json(r, peaks));
  json["geometric_mean_seconds"] = geometric_mean(results, [](const BenchResult& r) { return r.time.median; });
  return json;
}

void print_peaks(const Peaks& peaks, Device at) {
  const DeviceProperties& device = device_properties(at);
  fmt::print("{} ({}), {}; peaks measured now: ", device.product, device.architecture, units_text(peaks, at));
  std::string others;
  for (const auto& [rate, of] :
       {std::pair(peaks.f64_flops_per_second, "float64"), std::pair(peaks.bf16_flops_per_second, "bfloat16"),
        std::pair(peaks.f8_flops_per_second, "float8"), std::pair(peaks.i8_flops_per_second, "int8")})
    if (rate > 0) others += fmt::format("{}{:.4g} of {}", others.empty() ? "" : ", ", rate / 1e9, of);
  fmt::print("{:.4g} GFLOP/s of float32 multiply-adds ({}), {:.4g} GB/s {}\n", peaks.flops_per_second / 1e9, others,
             peaks.bytes_per_second / 1e9, at.kind == DeviceKind::cpu ? "read" : "copied, reads and writes counted");
}

/// Prints lines as results come: the widths of the texts are guessed from the entries.
class Report {
 public:
  Report(const Peaks& peaks, Device device, const std::vector<BenchEntry>& entries) : peaks_(peaks), device_(device) {
    for (const BenchEntry& entry : entries)
      name_width_ = std::max(name_width_, entry.name.size() + (entry.call.backward ? kLongestPass.size() : 0));
  }

  void heading(bool warm) const {
    print_peaks(peaks_, device_);
    const std::string cold = device_.kind == DeviceKind::cpu
                                 ? "caches cold: up to 32 sets of buffers take turns, past {}"
                                 : "caches cold: {} written before each run; times are the device's own";
    fmt::print(
        "median of samples with its 95 % interval; {}\n\n",
        warm ? "caches warm: one set of buffers" : fmt::format(fmt::runtime(cold), bytes_text(cold_bytes(device_))));
    line("case", "kernel", "config (tier)", "ms", "±", "GFLOP/s", "GB/s", "% of peak", "of");
  }

  void result(const BenchResult& r) const {
    const std::string_view of = ceiling_of(r, peaks_).of;
    line(label(r), r.kernel, fmt::format("{} ({})", r.config, r.tier), fmt::format("{:#.4g}", 1e3 * r.time.median),
         fmt::format("{:.1f} %", 100 * r.time.spread()), fmt::format("{:.4g}", r.flops / r.time.median / 1e9),
         fmt::format("{:.4g}", r.bytes / r.time.median / 1e9), percent_text(percent_of_peak(r, peaks_)),
         of.empty() ? "-" : of);
    std::fflush(stdout);
  }

  void mean(const std::vector<BenchResult>& results) const {
    if (results.size() < 2) return;
    double percent = 0;
    for (const BenchResult& r : results) percent += std::log(percent_of_peak(r, peaks_));
    const double seconds = geometric_mean(results, [](const BenchResult& r) { return r.time.median; });
    line("geometric mean", "", "", fmt::format("{:#.4g}", 1e3 * seconds), "",
         fmt::format("{:.4g}",
                     geometric_mean(results, [](const BenchResult& r) { return r.flops / r.time.median / 1e9; })),
         fmt::format("{:.4g}",
                     geometric_mean(results, [](const BenchResult& r) { return r.bytes / r.time.median / 1e9; })),
         percent_text(std::exp(percent / static_cast<double>(results.size()))), "");
  }

  /// Of every "-" among the percentages.
  void reasons(const std::vector<BenchResult>& results) const {
    std::set<DType> unknown;
    for (const BenchResult& r : results)
      if (ceiling_of(r, peaks_).of.empty()) unknown.insert(r.dtype);
    for (const DType dtype : unknown) fmt::print("{}\n", why_no_percent(dtype, device_));
  }

 private:
  void line(std::string_view name, std::string_view kernel, std::string_view config, std::string_view ms,
            std::string_view spread, std::string_view gflops, std::string_view gbytes, std::string_view percent,
            std::string_view of) const {
    fmt::print("{:<{}} | {:<10} | {:<38} | {:>9} {:>7} | {:>8} | {:>7} | {:>9} | {}\n", name, name_width_, kernel,
               config, ms, spread, gflops, gbytes, percent, of);
  }

  const Peaks& peaks_;
  Device device_;
  size_t name_width_ = 14;
};

/// Measures the peaks once more: what disturbed the first measurement would make every percentage too high.
void correct_peaks(Peaks& peaks, Device device, bool lines_are_printed) {
  const Peaks again = measure_peaks(device);
  const auto growth = [](double now, double before) { return before > 0 ? now / before : 1; };
  const double more = std::max(growth(again.flops_per_second, peaks.flops_per_second),
                               growth(again.bytes_per_second, peaks.bytes_per_second));
  raise_peaks(peaks, again);
  if (lines_are_printed && more > 1.05)
    fmt::print(
        stderr,
        "ejk: the peaks measured again are {:.4g} GFLOP/s and {:.4g} GB/s: the machine was busy at the start, and "
        "percentages of the peak above are too high\n",
        again.flops_per_second / 1e9, again.bytes_per_second / 1e9);
}

int bench_entries(const BenchFlags& flags, const std::vector<BenchEntry>& entries) {
  for (const BenchEntry& entry : entries) require_plan(entry.call);
  Progress progress;
  progress.show("measuring the machine's peaks …");
  const Device device = flags.call.device;
  Peaks peaks = measure_peaks(device);
  progress.clear();
  const Report report(peaks, device, entries);
  if (!flags.json) report.heading(flags.warm);
  std::vector<BenchResult> results;
  for (const BenchEntry& entry : entries) {
    for (BenchResult& result : measure_entry(flags, entry, progress)) {
      if (!flags.json) report.result(result);
      results.push_back(std::move(result));
    }
  }
  if (!flags.json) {
    report.mean(results);
    report.reasons(results);
  }
  correct_peaks(peaks, device, !flags.json);
  keep_peaks(device, peaks);
  const Json json = report_json(flags, peaks, results);
  if (flags.json) fmt::print("{}\n", json.dump(2));
  if (!flags.save.empty()) save_baseline(flags.save, json);
  return kOk;
}

/// --peaks
int bench_peaks(const BenchFlags& flags) {
  const Device device = flags.call.device;
  const Peaks peaks = measure_peaks(device);
  if (flags.json)
    fmt::print("{}\n", peaks_json(peaks, device).dump(2));
  else
    print_peaks(peaks, device);
  return kOk;
}

bool has_baseline(const BenchFlags& flags) {
  return !flags.baseline.empty() || !flags.baseline_kernel.empty() || !flags.baseline_config.empty() ||
         !flags.baseline_program.empty();
}

bool names_a_choice(const CallFlags& call) {
  return !call.kernel.empty() || !call.platform.empty() || !call.policy.empty() || !call.config.empty();
}

/// What measures no cases has none to save or to compare, and a comparison saves none.
void refuse_what_would_be_ignored(const BenchFlags& flags) {
  const std::string instead = flags.peaks      ? "--peaks"
                              : flags.overhead ? "--overhead"
                              : flags.planning ? "--planning"
                                               : "";
  const auto refuse_beside = [](std::string_view flag, const std::string& other) {
    throw_invalid("ejk", flag, "come with cases that are measured", other, "leave one of them out");
  };
  if (!instead.empty() && has_baseline(flags)) refuse_beside("a baseline", instead);
  if (!flags.save.empty() && !instead.empty()) refuse_beside("--save", instead);
  if (flags.peaks && !flags.call.operation.empty()) refuse_beside(flags.call.operation, instead);
  const bool describes_a_call = !flags.cases.empty() || names_a_problem(flags.call) || names_a_choice(flags.call);
  if (flags.overhead && describes_a_call) refuse_beside("what describes a call", instead);
  if (!flags.save.empty() && has_baseline(flags)) refuse_beside("--save", "a baseline");
  if (!flags.save.empty()) require_writable(flags.save);
  if (flags.fail_over.empty()) return;
  parse_percent("--fail-over", flags.fail_over);
  if (!has_baseline(flags))
    throw_invalid("ejk", "--fail-over", "come with a baseline", "none", "name one with --baseline FILE");
}

int bench(const BenchFlags& flags) {
  refuse_what_would_be_ignored(flags);
  if (flags.threads < 0 || flags.threads > 4096)
    throw_invalid("ejk", "--threads", "be from 1 to 4096", std::to_string(flags.threads), "leave it out for all");
  if (flags.threads > 0) {
    setenv("EJKERNEL_NUM_THREADS", std::to_string(flags.threads).c_str(), 1);
    environment::reload();
  }
  if (flags.peaks) return bench_peaks(flags);
  if (flags.overhead) return bench_overhead(flags);
  const std::vector<BenchEntry> entries = entries_of("bench", flags.call, flags.cases);
  if (flags.worker) return bench_worker(flags, entries.front());
  if (flags.planning) return bench_planning(flags, entries);
  if (has_baseline(flags)) return bench_against_baseline(flags, entries);
  return bench_entries(flags, entries);
}

}  // namespace

std::vector<std::string> arguments_of(const CallFlags& call) {
  std::vector<std::string> all = {call.operation};
  const auto add = [&](std::string_view name, std::string_view value) {
    if (!value.empty()) all.push_back(fmt::format("--{}={}", name, value));
  };
  if (call.backward) all.emplace_back("--backward");
  add("case", call.case_name);
  add("form", call.form);
  add("dtype", call.dtype);
  for (const auto& [name, value] : call.dims) add(name, std::to_string(value));
  for (const std::string& input : call.inputs) add("input", input);
  for (const auto& [name, value] : call.params) add(name, value);
  if (call.seed != 0) add("seed", std::to_string(call.seed));
  if (call.device.kind != DeviceKind::cpu) add("device", to_string(call.device));
  add("platform", call.platform);
  add("kernel", call.kernel);
  add("policy", call.policy);
  for (const std::string& config : call.config) add("config", config);
  return all;
}

void require_plan(const CallFlags& call) {
  if (!call.case_name.empty()) return;  // its data would have to be made
  const ToolCall specs = make_specs(call);
  Plan::make(specs.operation, specs.inputs, specs.params, plan_options(call));
}

double parse_percent(std::string_view flag, const std::string& text) {
  double percent = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, percent);
  if (error != std::errc() || !(stopped == end || (*stopped == '%' && stopped + 1 == end)) || !(percent >= 0))
    throw_invalid("ejk", flag, "be a percentage", fmt::format("'{}'", text), "for example 5%");
  return percent / 100;
}

std::vector<BenchEntry> entries_of(const std::string& verb, const CallFlags& call,
                                   const std::vector<std::string>& cases) {
  std::vector<BenchEntry> entries;
  const auto add = [&](const std::string& operation, const std::string& name, const std::string& case_name) {
    BenchEntry entry{name, call};
    entry.call.operation = operation;
    entry.call.case_name = case_name;
    entries.push_back(std::move(entry));
  };
  if (names_a_problem(call) && cases.empty()) {
    require_operation(verb, call);
    add(call.operation, call.operation, "");
    return entries;
  }
  for (const std::string& case_name : cases) {
    require_operation(verb, call);
    require_case(call.operation, case_name);
    add(call.operation, case_name, case_name);
  }
  if (!entries.empty()) return entries;
  for (const std::string& operation : KernelRegistry::instance().names()) {
    if (!call.operation.empty() && operation != call.operation) continue;
    if (call.operation.empty() && !forward_of(operation).empty()) continue;  // --backward asks for those
    for (const NamedCase& c : cases_of(operation))
      if (c.primary) add(operation, c.name, c.name);
  }
  if (entries.empty())
    throw_invalid("ejk", verb, "have a problem to time",
                  fmt::format("an operation without primary cases ({})", call.operation),
                  fmt::format("give its dimensions, see ejk {} OP --help", verb));
  return entries;
}

Action declare_bench(Options& options) {
  const auto flags = std::make_shared<BenchFlags>();
  options.flag("json", flags->json, "print JSON")
      .seconds(flags->seconds, "at most, per case (default: 1)")
      .value("threads", flags->threads, "N", "threads of CPU kernels (default: EJKERNEL_NUM_THREADS, else all)")
      .flag("warm", flags->warm, "keep the data in the caches (default: cold)")
      .flag("overhead", flags->overhead, "time the host's part of a call instead")
      .flag("planning", flags->planning,
            "time the first plan of a process instead: compiled, from the store, and as it came compiled")
      .flag("peaks", flags->peaks, "measure the machine's peaks only")
      .value("save", flags->save, "FILE", "keep the results, and beside them in FILE.program what made them");
  declare_device(options, flags->call.device);
  options.group("Comparison, interleaved A/B")
      .value("baseline", flags->baseline, "FILE", "against what --save kept")
      .value("baseline-kernel", flags->baseline_kernel, "NAME", "against another kernel of this build")
      .values("baseline-config", flags->baseline_config, "FIELD=VALUE", "against another config")
      .value("baseline-program", flags->baseline_program, "EJK", "against another build's ejk, for what FILE lists")
      .value("fail-over", flags->fail_over, "PERCENT", "exit with 3 when a case is surely slower by more than this")
      .flag("worker", flags->worker, "be the other side of a comparison: answers each line \"sample\" with seconds");
  declare_operations(options, flags->call, &flags->cases);
  return [flags] { return bench(*flags); };
}

}  // namespace ejk::tool
