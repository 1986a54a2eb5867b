// What the parts of `ejk bench` share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ejkernel/runtime/calibration.h"
#include "ejkernel/runtime/timer.h"
#include "tools/ejk/call_flags.h"

namespace ejk::tool {

struct BenchFlags {
  CallFlags call;                  ///< operation, problem, and what to choose
  std::vector<std::string> cases;  ///< named ones; empty: the primary ones, or the problem of `call`
  bool json = false, warm = false, overhead = false, planning = false, peaks = false, worker = false;
  double seconds = 1;   ///< at most, per case
  int64_t threads = 0;  ///< 0: as the library has it
  std::string save, baseline, baseline_program, baseline_kernel, fail_over;
  std::vector<std::string> baseline_config;
};

/// One line of a benchmark: a call and the name it goes by.
struct BenchEntry {
  std::string name;
  CallFlags call;
};

/// The problems that a verb's flags ask for: the one they describe, the cases by name, or all primary cases of the
/// operation, or of all forward operations.
std::vector<BenchEntry> entries_of(const std::string& verb, const CallFlags& call,
                                   const std::vector<std::string>& cases);

/// What was measured for an entry.
struct BenchResult {
  BenchEntry entry;
  std::string pass;  ///< "forward", "backward" or "both" where a gradient was asked for
  std::string kernel, config, tier;
  Summary time;
  double flops = 0, bytes = 0;
  DType dtype = DType::f32;  ///< of the first input
};

/// The arguments that make `ejk` build this entry's call again, without the program and the verb.
std::vector<std::string> arguments_of(const CallFlags& call);

/// --overhead
int bench_overhead(const BenchFlags& flags);
/// --planning
int bench_planning(const BenchFlags& flags, const std::vector<BenchEntry>& entries);
/// --worker: prepares the one entry, then answers every "sample" line on standard input with seconds.
int bench_worker(const BenchFlags& flags, const BenchEntry& entry);
/// --baseline…: the same entries by two programs or two choices, interleaved.
int bench_against_baseline(const BenchFlags& flags, std::vector<BenchEntry> entries);

/// InvalidArgument where `save_baseline` could not write; makes the folder that the program gets.
void require_writable(const std::string& file);
/// --save: the results, and beside them the program and the library that made them.
void save_baseline(const std::string& file, nlohmann::ordered_json results);

/// What is wrong with a call that its dimensions describe is said before anything takes time.
void require_plan(const CallFlags& call);

/// "5%" or "5" -> 0.05
double parse_percent(std::string_view flag, const std::string& text);

}  // namespace ejk::tool
