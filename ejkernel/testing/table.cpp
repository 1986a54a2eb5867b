#include "ejkernel/testing/table.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ejkernel/core/validate.h"
#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/testing/process.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFolder = "benchmarks/results/reliability";

struct GitAnswer {
  bool ok = false;
  std::string text;
};

/// What git says of the tree; no shell reads the words, some of which come from a record.
GitAnswer git(const fs::path& root, std::vector<std::string> words) {
  words.insert(words.begin(), {"git", "-C", root.string()});
  ProcessResult result = run_process(words);
  while (!result.out.empty() && result.out.back() == '\n') result.out.pop_back();
  return {result.exit_code == 0, std::move(result.out)};
}

/// `words`, and the paths that the row depends on.
std::vector<std::string> about(const Row& row, std::vector<std::string> words) {
  words.emplace_back("--");
  words.insert(words.end(), row.depends_on.begin(), row.depends_on.end());
  return words;
}

std::string commit_of(const fs::path& root, const Row& row) {
  const GitAnswer commit = git(root, {"rev-parse", "--short=12", "HEAD"});
  const GitAnswer changed = git(root, about(row, {"status", "--porcelain"}));
  if (!commit.ok || !changed.ok) return "unknown";
  return commit.text + (changed.text.empty() ? "" : "+changes");
}

/// By contents, so that a rebased or reverted commit changes nothing; files that git does not track yet count.
bool has_changed_since(const fs::path& root, const Row& row, const std::string& commit) {
  if (commit.empty() || commit.find_first_not_of("0123456789abcdef") != std::string::npos) return true;
  const GitAnswer since = git(root, about(row, {"diff", "--name-only", commit}));
  const GitAnswer now = git(root, about(row, {"status", "--porcelain"}));
  return !since.ok || !now.ok || !since.text.empty() || !now.text.empty();
}

std::string machine(const Row& row) {
  const DeviceProperties& cpu = device_properties({});
  const std::string host = fmt::format("{}, {}, {} threads", cpu.product, cpu.architecture, cpu.num_units);
  if (!row.needs_gpu) return host;
  const DeviceProperties& gpu = device_properties({DeviceKind::cuda, 0});
  const int version = cuda::driver_report().version;
  return fmt::format("{} ({}), driver for CUDA {}.{}; {}", gpu.product, gpu.architecture, version / 1000,
                     version % 1000 / 10, host);
}

void write(const Record& record, const Row& row, const fs::path& root) {
  Json json = {
      {"id", record.id},         {"category", row.category},  {"figure", row.figure},
      {"n", record.n},           {"target", record.target},   {"failures", record.failures},
      {"seed", record.seed},     {"commit", record.commit},   {"machine", record.machine},
      {"preset", record.preset}, {"command", record.command}, {"minutes", std::round(record.minutes * 100) / 100}};
  if (!record.figures.empty()) json["figures"] = record.figures;
  if (!record.notes.empty()) json["notes"] = record.notes;
  const fs::path path = root / kFolder / (record.id + ".json");
  fs::create_directories(path.parent_path());
  std::ofstream file(path);
  // A note may quote bytes that are no UTF-8.
  file << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  if (!file.flush())
    throw_invalid("table", "the record " + path.string(), "be a file that can be written", "one that cannot",
                  "check the folder and the disk");
}

/// False: there is none, or it does not read as one.
bool read(Record& record, const fs::path& path) {
  std::ifstream file(path);
  if (!file) return false;
  const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  try {
    record.id = json.at("id");
    record.n = json.at("n");
    record.target = json.at("target");
    record.failures = json.at("failures");
    record.seed = json.at("seed");
    record.commit = json.at("commit");
    record.machine = json.at("machine");
    record.preset = json.value("preset", record.preset);
    record.command = json.at("command");
    record.minutes = json.at("minutes");
    record.figures = json.value("figures", std::map<std::string, double>());
    record.notes = json.value("notes", std::vector<std::string>());
  } catch (const Json::exception&) {
    return false;
  }
  return true;
}

}  // namespace

const Row& find_row(std::string_view id) {
  std::string known;
  for (const Row& row : table_rows()) {
    if (row.id == id) return row;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.id);
  }
  throw_invalid("table", "the row", "be one of the table", id, known);
}

std::string_view this_preset() {
#if defined(__SANITIZE_ADDRESS__)
  return "asan";
#elif defined(__SANITIZE_THREAD__)
  return "tsan";
#elif defined(NDEBUG)
  return "release";
#else
  return "dev";
#endif
}

Record produce_record(const Row& row, RowFunction produce, const RowRequest& request, const fs::path& root,
                      const std::string& commit) {
  if (this_preset() != row.preset)
    throw_invalid("table", std::string(row.id), fmt::format("be produced by the {} preset", row.preset), this_preset(),
                  fmt::format("run ./dev table --preset {} {}", row.preset, row.id));
  const auto begin = std::chrono::steady_clock::now();
  const RowResult result = produce(request);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const std::string words = row.preset == "release" ? "" : fmt::format("--preset {} ", row.preset);
  const Record record{
      .id = std::string(row.id),
      .n = result.n,
      .target = row.target,
      .failures = result.failures,
      .seed = request.seed,
      .commit = commit.empty() ? commit_of(root, row) : commit,
      .machine = machine(row),
      .preset = std::string(row.preset),
      .command = fmt::format("./dev table {}{} --n {} --seed {}", words, row.id, request.n, request.seed),
      .minutes = seconds.count() / 60,
      .figures = result.figures,
      .notes = result.notes};
  write(record, row, root);
  return record;
}

std::string_view name(RowState state) {
  switch (state) {
    case RowState::ok:
      return "ok";
    case RowState::stale:
      return "stale";
    case RowState::missing:
      return "missing";
    case RowState::failed:
      return "FAILED";
    case RowState::short_of_target:
      return "short";
  }
  return "?";
}

RowStatus row_status(const Row& row, const fs::path& root) {
  RowStatus status{.row = &row};
  Record record;
  if (!read(record, root / kFolder / (std::string(row.id) + ".json")) || record.id != row.id) return status;
  status.record = std::move(record);
  if (status.record.failures > 0)
    status.state = RowState::failed;
  else if (status.record.n < row.target)
    status.state = RowState::short_of_target;
  else if (status.record.preset != row.preset || has_changed_since(root, row, status.record.commit))
    status.state = RowState::stale;
  else
    status.state = RowState::ok;
  return status;
}

std::vector<RowStatus> table_status(const fs::path& root) {
  std::vector<RowStatus> all;
  for (const Row& row : table_rows()) all.push_back(row_status(row, root));
  return all;
}

std::string commit_at(const fs::path& folder) {
  const GitAnswer answer = git(folder, {"describe", "--always", "--dirty=+changes", "--exclude=*", "--abbrev=12"});
  return answer.ok ? answer.text : "unknown";
}

fs::path find_tree(const fs::path& from) {
  for (fs::path folder = fs::absolute(from);; folder = folder.parent_path()) {
    std::error_code ignored;
    if (fs::exists(folder / kFolder, ignored)) return folder;
    if (folder == folder.root_path())
      throw_invalid("table", "the working folder", fmt::format("be inside a source tree (with {})", kFolder),
                    from.string(), "change into the repository");
  }
}

}  // namespace ejk::testing
