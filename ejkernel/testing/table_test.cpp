// The states of a row of the reliability table, in a git tree of the test's own.
#include "ejkernel/testing/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "ejkernel/core/error.h"
#include "ejkernel/testing/process.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

/// A tree with one source that the row depends on and one that it does not.
class ReliabilityTable : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(root);
    fs::create_directories(root / "benchmarks/results/reliability");
    fs::create_directories(root / "kernels");
    write("kernels/one.cpp", "1");
    write("README.md", "read me");
    git({"init", "-q"});
    commit();
  }
  void TearDown() override { fs::remove_all(root); }

  void write(const std::string& path, const std::string& text) const { std::ofstream(root / path) << text; }

  void git(std::vector<std::string> words) const {
    words.insert(words.begin(), {"git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-C", root});
    const ProcessResult result = run_process(words);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  void commit() const {
    git({"add", "-A"});
    git({"commit", "-q", "-m", "a change"});
  }

  /// Produces the row with these trials, and commits the record.
  Record produce(int64_t n, int64_t failures) const {
    static RowResult result;
    result = {.n = n, .failures = failures, .figures = {{"half", 0.5}}, .notes = {"not UTF-8: \xff"}};
    const Record record = produce_record(
        row, [](const RowRequest&) { return result; }, {.n = n, .seed = 7}, root);
    commit();
    return record;
  }

  RowState state() const { return row_status(row, root).state; }

  Json read() const { return Json::parse(std::ifstream(record)); }
  void rewrite(const std::string& key, const Json& value) const {
    Json json = read();
    json[key] = value;
    std::ofstream(record) << json;
  }

  const fs::path root = fs::path(::testing::TempDir()) / ("ejkernel table ' test " + std::to_string(::getpid()));
  const fs::path record = root / "benchmarks/results/reliability/T-99.json";
  Row row{.id = "T-99", .category = "", .figure = "", .target = 10, .depends_on = {"kernels"}, .preset = this_preset()};
};

TEST_F(ReliabilityTable, names_the_commit_of_a_folder_and_whether_it_is_that) {
  EXPECT_THAT(commit_at(root / "kernels"), ::testing::MatchesRegex("[0-9a-f]{12}"));
  write("README.md", "changed");
  EXPECT_THAT(commit_at(root), ::testing::MatchesRegex("[0-9a-f]{12}[+]changes"));
  EXPECT_EQ(commit_at(root / ".."), "unknown");
}

TEST_F(ReliabilityTable, a_row_without_a_record_is_missing) {
  EXPECT_EQ(state(), RowState::missing);
  for (const char* text : {"", "no JSON", "[]", "{}", R"({"id": "T-99"})"}) {
    std::ofstream(record) << text;
    EXPECT_EQ(state(), RowState::missing) << text;
    EXPECT_EQ(row_status(row, root).record.n, 0) << "half of a record is none";
  }
}

TEST_F(ReliabilityTable, a_record_says_what_made_it) {
  const Record made = produce(10, 0);
  const Json json = read();
  for (const char* key : {"id", "n", "target", "failures", "seed", "commit", "machine", "preset", "command", "minutes"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["seed"], 7);
  EXPECT_EQ(json["figures"]["half"], 0.5);
  EXPECT_EQ(json["commit"].get<std::string>().size(), 12u);
  EXPECT_THAT(json["command"].get<std::string>(), HasSubstr(" T-99 --n 10 --seed 7"));
  EXPECT_EQ(row_status(row, root).record.command, made.command);
}

TEST_F(ReliabilityTable, enough_trials_without_failure_are_ok) {
  produce(10, 0);
  EXPECT_EQ(state(), RowState::ok);
}

TEST_F(ReliabilityTable, failures_and_too_few_trials_show_even_in_a_stale_record) {
  produce(10, 1);
  EXPECT_EQ(state(), RowState::failed);
  produce(9, 0);
  EXPECT_EQ(state(), RowState::short_of_target);
  write("kernels/one.cpp", "2");
  EXPECT_EQ(state(), RowState::short_of_target);
}

TEST_F(ReliabilityTable, a_change_of_what_the_row_depends_on_makes_it_stale) {
  produce(10, 0);
  write("README.md", "something else");
  EXPECT_EQ(state(), RowState::ok) << "the row does not depend on it";
  write("kernels/one.cpp", "2");
  EXPECT_EQ(state(), RowState::stale) << "a change that is not committed";
  commit();
  EXPECT_EQ(state(), RowState::stale) << "a committed one";
  write("kernels/one.cpp", "1");
  commit();
  EXPECT_EQ(state(), RowState::ok) << "what was measured is back";
  write("kernels/two.cpp", "2");
  EXPECT_EQ(state(), RowState::stale) << "a file that git does not know yet";
}

TEST_F(ReliabilityTable, a_row_may_leave_files_out) {
  row.depends_on.push_back(":(exclude)kernels/*_test.cpp");
  produce(10, 0);
  write("kernels/one_test.cpp", "2");
  EXPECT_EQ(state(), RowState::ok);
  commit();
  EXPECT_EQ(state(), RowState::ok);
  write("kernels/one.cpp", "2");
  EXPECT_EQ(state(), RowState::stale);
}

TEST_F(ReliabilityTable, a_record_of_a_changed_tree_is_stale) {
  write("kernels/one.cpp", "2");
  EXPECT_THAT(produce(10, 0).commit, HasSubstr("+changes"));
  EXPECT_EQ(state(), RowState::stale);
}

TEST_F(ReliabilityTable, a_record_of_another_row_build_or_history_does_not_count) {
  produce(10, 0);
  rewrite("id", "T-98");
  EXPECT_EQ(state(), RowState::missing);
  rewrite("id", "T-99");
  rewrite("preset", "another");
  EXPECT_EQ(state(), RowState::stale);
  rewrite("preset", this_preset());
  EXPECT_EQ(state(), RowState::ok);
  for (const char* commit : {"", "0123456789ab", "HEAD", "--output=/dev/null", "'; touch x; '"}) {
    rewrite("commit", commit);
    EXPECT_EQ(state(), RowState::stale) << commit;
  }
}

TEST_F(ReliabilityTable, without_git_a_record_is_stale) {
  produce(10, 0);
  fs::remove_all(root / ".git");
  // Nor may a repository that happens to lie above be taken for the tree's own.
  ::setenv("GIT_CEILING_DIRECTORIES", root.parent_path().c_str(), 1);
  EXPECT_EQ(state(), RowState::stale);
  ::unsetenv("GIT_CEILING_DIRECTORIES");
}

TEST_F(ReliabilityTable, a_record_made_elsewhere_says_what_its_program_was_built_from) {
  const Record made = produce_record(
      row, [](const RowRequest&) { return RowResult{.n = 10}; }, {.n = 10}, root, "0123456789ab");
  EXPECT_EQ(made.commit, "0123456789ab");
  EXPECT_EQ(read()["commit"], "0123456789ab");
}

TEST_F(ReliabilityTable, a_row_is_produced_by_its_own_preset_only) {
  row.preset = "another";
  try {
    produce(10, 0);
    FAIL() << "a record of another build was written";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("T-99 must be produced by the another preset, got " + std::string(this_preset())));
  }
  EXPECT_FALSE(fs::exists(record));
}

TEST_F(ReliabilityTable, a_tree_is_found_from_below_and_missed_from_elsewhere) {
  EXPECT_EQ(find_tree(root / "kernels"), root);
  EXPECT_THROW(find_tree("/"), InvalidArgument);
}

TEST(ReliabilityRows, are_those_of_the_plan_each_once_and_by_id) {
  std::set<std::string_view> ids;
  for (const Row& row : table_rows()) {
    EXPECT_TRUE(ids.empty() || *ids.rbegin() < row.id) << row.id;
    ids.insert(row.id);
    EXPECT_GT(row.target, 0) << row.id;
    EXPECT_FALSE(row.depends_on.empty()) << row.id << " would never be stale";
    EXPECT_TRUE(std::any_of(row.depends_on.begin(), row.depends_on.end(),
                            [](std::string_view path) { return path.starts_with("tools/table/rows_"); }))
        << row.id << " depends on what produces it";
    EXPECT_EQ(&find_row(row.id), &row);
  }
  for (const char* id :
       {"T-01", "T-02", "T-03", "T-04", "T-05", "T-06", "T-07", "T-11", "T-12", "T-13", "T-14", "T-15", "T-16", "T-17",
        "T-18", "T-19", "T-20", "T-21", "T-23", "T-24", "T-25", "T-27", "T-30", "T-31", "T-32", "T-33", "T-34", "T-35",
        "T-36", "T-37", "T-38", "T-39", "T-40", "T-41", "T-43", "T-44", "T-45", "T-46", "T-47", "T-48", "T-49", "T-50"})
    EXPECT_TRUE(ids.contains(id)) << id;
  EXPECT_THROW(find_row("T-1"), InvalidArgument);
}

}  // namespace
}  // namespace ejk::testing
