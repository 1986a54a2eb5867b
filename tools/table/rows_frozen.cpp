// T-23: a config that was kept is found by another process, and gives the same bits there.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <optional>
#include <sstream>

#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/core/store_archive.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/runtime/config_store.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/runtime/tuner.h"
#include "ejkernel/testing/operations.h"
#include "ejkernel/testing/process.h"
#include "ejkernel/testing/temporary_folder.h"
#include "tools/table/rows.h"

namespace ejk::testing {
namespace {

/// The same in every process. The calls promise equal bits; nothing else could be frozen.
Problem problem_of(uint64_t seed, int64_t i) {
  const auto all = test_operations();
  const TestOperation& tests = *all[static_cast<size_t>(i) % all.size()];
  return with_equal_bits(tests.random(
      {.seed = seed * 1000003 + static_cast<uint64_t>(i), .size = i % 8 == 0 ? Size::normal : Size::small}));
}

Plan plan_of(const Problem& problem, std::optional<ConfigValues> config = {}) {
  PlanOptions options{.policy = Policy{.autotune = false}};
  options.config = std::move(config);
  return Plan::make(problem.operation->name, problem.views(), problem.params, options);
}

/// "cpu block_q=64 … 0123456789abcdef": what the call ran, and all bits of its outputs.
std::string run(const Plan& plan, const Problem& problem) {
  std::vector<Array> outputs = plan.allocate_outputs();
  const std::vector<Tensor> views(outputs.begin(), outputs.end());
  run_with_workspace(plan, problem.views(), views);
  view_aliased(plan.outputs(), problem.views(), outputs);
  return fmt::format("{} {} {:016x}", plan.kernel().name, to_string(plan.kernel(), plan.choice().config),
                     digest_of_outputs(outputs));
}

/// One that the heuristic does not take and this machine runs; none where there is nothing to choose.
std::optional<ConfigValues> another_config(const Plan& plan, const Problem& problem, Random& random) {
  std::vector<ConfigBlock> others = tuning_candidates(plan);
  others.erase(others.begin());
  random.shuffle(others);
  for (const ConfigBlock& other : others) {
    const ConfigValues values = config_values(plan.kernel(), other);
    try {
      plan_of(problem, values);
      return values;
    } catch (const Unsupported&) {
    }
  }
  return std::nullopt;
}

/// Keeps a config for every problem that has one to choose, and says what each process must print after that. Problems
/// with one key share a config.
std::vector<std::string> freeze(const RowRequest& request) {
  Random random(request.seed);
  std::map<std::string, ConfigValues> kept;
  std::vector<std::string> lines;
  for (int64_t i = 0; i < request.n; ++i) {
    const Problem problem = problem_of(request.seed, i);
    const Plan known = plan_of(problem);
    const RecordKey key = config_record_key(known.request(), known.kernel());
    if (!kept.contains(key.text))
      if (const auto config = another_config(known, problem, random)) {
        if (!put_stored_config(key, *config, {})) throw Unsupported("table: the store keeps nothing");
        kept.emplace(key.text, *config);
      }
    const auto config = kept.find(key.text);
    lines.push_back(config == kept.end() ? "heuristics " + run(known, problem)
                                         : "store " + run(plan_of(problem, config->second), problem));
  }
  return lines;
}

/// Every record of the process's store.
void export_store(const std::string& path) {
  ArchiveBuilder builder;
  store().for_each([&](const StoredRecord& stored) { builder.add(stored.key, stored.record); });
  if (!builder.write(path)) throw Unsupported("table: the archive cannot be written");
}

void import_archive(const std::string& path, const std::string& root) {
  std::string why;
  const auto archive = Archive::open(path, why);
  if (archive == nullptr) throw Unsupported("table: the archive " + why);
  const Store into(root);
  archive->for_each([&](const StoredRecord& stored) { into.put(stored.key, stored.record); });
}

std::vector<std::string> lines_of(const ProcessResult& process) {
  if (process.exit_code != 0) throw Unsupported("table: a process failed: " + process.err.substr(0, 300));
  std::vector<std::string> lines;
  std::istringstream text(process.out);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::string_view bits_of(std::string_view line) { return line.substr(line.rfind(' ') + 1); }

}  // namespace

std::string replay_frozen(uint64_t seed, int64_t n, int threads) {
  const cpu::ScopedNumThreads scope(threads);
  std::string lines;
  for (int64_t i = 0; i < n; ++i) {
    const Problem problem = problem_of(seed, i);
    const Plan plan = plan_of(problem);
    lines += fmt::format("{} {}\n", name(plan.choice().tier), run(plan, problem));
  }
  return lines;
}

/// The store of this process goes through an archive into another one's store, and to a third process as an archive
/// that is read in place. A fourth has nothing: where its bits do not differ anywhere, equal bits would prove nothing.
RowResult frozen_configs(const RowRequest& request) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const TemporaryFolder folder(Medium::memory);
  use_store(folder / "first");
  const std::vector<std::string> expected = freeze(request);
  export_store(folder / "configs.ejk");
  use_store("");
  import_archive(folder / "configs.ejk", folder / "second");
  const auto replay = [&](const std::string& store, const std::string& archive, int threads) {
    return lines_of(run_process(
        {program, "frozen", std::to_string(request.seed), std::to_string(request.n), std::to_string(threads)},
        {"EJKERNEL_CACHE_DIR=" + folder / store, "EJKERNEL_CONFIG_PATH=" + archive}));
  };
  const auto imported = replay("second", "", 1), in_place = replay("third", folder / "configs.ejk", 3),
             without = replay("fourth", "", 1);
  Tally tally;
  int64_t from_store = 0, other_bits = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    std::string wrong;
    for (const auto* other : {&imported, &in_place})
      if (i >= other->size() || (*other)[i] != expected[i])
        wrong = fmt::format("problem {} ({}): {}, not {}", i, problem_of(request.seed, static_cast<int64_t>(i)).label,
                            i < other->size() ? (*other)[i] : "nothing", expected[i]);
    tally.add(wrong);
    from_store += expected[i].starts_with("store ");
    other_bits += i < without.size() && bits_of(without[i]) != bits_of(expected[i]);
  }
  RowResult result = tally.result();
  result.figures = {{"configs_from_the_store", static_cast<double>(from_store)},
                    {"other_bits_without_the_store", static_cast<double>(other_bits)},
                    {"operations", static_cast<double>(test_operations().size())}};
  if (other_bits == 0) {
    ++result.failures;
    result.notes.emplace_back("no bits differ without the store: equal ones prove nothing");
  }
  return result;
}

}  // namespace ejk::testing
