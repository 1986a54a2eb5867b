// The reliability table: what is measured and published, a row at a time (reliability A7).
//
// `./dev table T-nn` produces a row and writes its record, benchmarks/results/reliability/T-nn.json; `ejk check
// --table` reads the records. Rows stand in families, in rows_*.cpp, and together in the list of rows.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::testing {

struct RowRequest {
  int64_t n = 0;  ///< trials asked for
  uint64_t seed = 0;
};

/// What producing a row gave. `figures` are what the row publishes besides n and failures.
struct RowResult {
  int64_t n = 0;
  int64_t failures = 0;
  std::map<std::string, double> figures = {};
  std::vector<std::string> notes =
      {};  ///< the first failures with their replay commands; survivors; where a figure is from
};

using RowFunction = RowResult (*)(const RowRequest& request);

struct Row {
  std::string_view id;        ///< "T-02"
  std::string_view category;  ///< "Forward accuracy"
  std::string_view figure;    ///< what is reported, in words
  int64_t target = 0;         ///< n to reach with no failures
  /// Paths of the tree whose change makes a record stale.
  std::vector<std::string_view> depends_on;  ///< pathspecs of git: folders, files, ":(exclude)…"
  std::string_view preset = "release";  ///< the build that the row is about; a record of another one does not count
  bool needs_gpu = false;               ///< about kernels of a GPU, on one
};

/// All rows, by id.
std::span<const Row> table_rows();
/// InvalidArgument for an id that is none.
const Row& find_row(std::string_view id);

struct Record {
  std::string id;
  int64_t n = 0, target = 0, failures = 0;
  uint64_t seed = 0;
  std::string commit;   ///< of the tree that produced it
  std::string machine;  ///< processor, instruction set, threads; before them the GPU of a row that needs one
  std::string preset = "release";
  std::string command;
  double minutes = 0;
  std::map<std::string, double> figures = {};
  std::vector<std::string> notes = {};
};

/// The preset that this build is of: release, dev, asan or tsan.
std::string_view this_preset();

/// Produces the row and writes its record below `root`. InvalidArgument in another build than the row's preset.
/// `commit` is the tree's that this program was built from, where there is none to ask; empty: `root` is that tree.
Record produce_record(const Row& row, RowFunction produce, const RowRequest& request, const std::filesystem::path& root,
                      const std::string& commit = "");

/// failed: trials failed. short_of_target: too few trials. stale: what the row depends on has changed since, or it was
/// another build's. missing: no record, or a file that does not read as this row's.
enum class RowState : uint8_t { ok, stale, missing, failed, short_of_target };
std::string_view name(RowState state);

struct RowStatus {
  const Row* row = nullptr;
  RowState state = RowState::missing;
  Record record = {};
};
/// One row against its record below `root`. Without git, changes since the record cannot be seen: such a record counts
/// as stale.
RowStatus row_status(const Row& row, const std::filesystem::path& root);
/// All of them, by id.
std::vector<RowStatus> table_status(const std::filesystem::path& root);

/// What git says is checked out there, with "+changes" when files of it differ; "unknown" where git knows of none.
std::string commit_at(const std::filesystem::path& folder);

/// The tree that holds the records: `from` or the nearest folder above it. Throws InvalidArgument when there is none.
std::filesystem::path find_tree(const std::filesystem::path& from);

}  // namespace ejk::testing
