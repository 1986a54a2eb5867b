#include "ejkernel/testing/table.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/devices.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFolder = "benchmarks/results/reliability";

/// What git says of the tree, or nothing when it fails. The words are constants of this file and of the rows.
std::string git(const fs::path& root, const std::string& words, bool* ok) {
  const std::string command = "git -C '" + root.string() + "' " + words + " 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> buffer{};
  if (pipe == nullptr) return *ok = false, text;
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe.get()))
    text.append(buffer.data(), count);
  *ok = std::ferror(pipe.get()) == 0;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string paths_of(const Row& row) {
  std::string paths = " --";
  for (std::string_view path : row.depends_on) paths += fmt::format(" {}", path);
  return paths;
}

std::string commit_of(const fs::path& root, const Row& row) {
  bool ok = true;
  const std::string commit = git(root, "rev-parse --short=12 HEAD", &ok);
  const std::string changed = git(root, "status --porcelain" + paths_of(row), &ok);
  return commit.empty() ? "unknown" : commit + (changed.empty() ? "" : "+changes");
}

bool has_changed_since(const fs::path& root, const Row& row, const std::string& commit) {
  bool ok = true;
  if (commit.find_first_not_of("0123456789abcdef") != std::string::npos) return true;
  if (git(root, "rev-parse --verify " + commit + "^{commit}", &ok).empty()) return true;
  const std::string since = git(root, "log --format=%h " + commit + "..HEAD" + paths_of(row), &ok);
  const std::string now = git(root, "status --porcelain" + paths_of(row), &ok);
  return !ok || !since.empty() || !now.empty();
}

std::string machine() {
  const DeviceProperties& cpu = device_properties({});
  return fmt::format("{}, {}, {} threads", cpu.product, cpu.architecture, cpu.num_units);
}

void write(const Record& record, const Row& row, const fs::path& root) {
  Json json = {{"id", record.id},
               {"category", row.category},
               {"figure", row.figure},
               {"n", record.n},
               {"target", record.target},
               {"failures", record.failures},
               {"seed", record.seed},
               {"commit", record.commit},
               {"machine", record.machine},
               {"command", record.command},
               {"minutes", std::round(record.minutes * 100) / 100}};
  if (!record.figures.empty()) json["figures"] = record.figures;
  if (!record.notes.empty()) json["notes"] = record.notes;
  fs::create_directories(root / kFolder);
  std::ofstream(root / kFolder / (record.id + ".json")) << json.dump(2) << '\n';
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
    record.command = json.at("command");
    record.minutes = json.at("minutes");
    record.figures = json.value("figures", std::map<std::string, double>());
    record.notes = json.value("notes", std::vector<std::string>());
  } catch (const Json::exception&) {
    return false;
  }
  return true;
}

RowStatus status_of(const Row& row, const fs::path& root) {
  RowStatus status{.row = &row};
  if (!read(status.record, root / kFolder / (std::string(row.id) + ".json"))) return status;
  if (status.record.failures > 0)
    status.state = RowState::failed;
  else if (status.record.n < row.target)
    status.state = RowState::short_of_target;
  else
    status.state = has_changed_since(root, row, status.record.commit) ? RowState::stale : RowState::ok;
  return status;
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

Record produce_record(const Row& row, RowFunction produce, const RowRequest& request, const fs::path& root) {
  const auto begin = std::chrono::steady_clock::now();
  const RowResult result = produce(request);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const Record record{.id = std::string(row.id),
                      .n = result.n,
                      .target = row.target,
                      .failures = result.failures,
                      .seed = request.seed,
                      .commit = commit_of(root, row),
                      .machine = machine(),
                      .command = fmt::format("./dev table {} --n {} --seed {}", row.id, request.n, request.seed),
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

std::vector<RowStatus> table_status(const fs::path& root) {
  std::vector<RowStatus> all;
  for (const Row& row : table_rows()) all.push_back(status_of(row, root));
  return all;
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
