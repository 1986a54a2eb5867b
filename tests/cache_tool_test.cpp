// ejk cache as its users meet it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "ejkernel/core/store.h"
#include "ejkernel/core/store_archive.h"
#include "ejkernel/runtime/kernel_sources.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/testing/temporary_folder.h"
#include "tests/ejk_tool.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

class CacheTool : public ::testing::Test {
 protected:
  CacheTool() {
    put(root, "a", "{\"block_q\": 64}");
    put(root, "b", std::string("binary\0value", 12));
  }

  static RecordKey key(const std::string& text) {
    return {.environment = "NVIDIA H200|sm_90", .group = "flash_attention", .text = text};
  }
  static void put(const std::string& into, const std::string& name, const std::string& value) {
    ASSERT_TRUE(Store(into).put(key(name), {.value = value, .provenance = "tuned by a test"}));
  }
  static std::string value_in(const std::string& of, const std::string& name) {
    const auto found = Store(of).find(key(name));
    return found ? found->value : "none";
  }
  std::string digest_of_a() const { return fs::path(Store(root).path_of(key("a"))).filename(); }
  void damage_b() const { fs::resize_file(Store(root).path_of(key("b")), 70); }

  /// ejk cache ... on this test's store.
  ProcessResult cache(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "cache");
    return ejk(std::move(arguments), {"EJKERNEL_CACHE_DIR=" + root});
  }

  TemporaryFolder scratch;
  const std::string root = scratch / "store", other = scratch / "other", archive = scratch / "records.ejk";
};

TEST_F(CacheTool, lists_every_record) {
  const Json json = json_of(cache({"list", "--json"}));
  EXPECT_EQ(json["root"], root);
  ASSERT_EQ(json["records"].size(), 2u);
  for (const Json& record : json["records"]) {
    EXPECT_EQ(record["state"], "good");
    EXPECT_EQ(record["environment"], "NVIDIA H200|sm_90");
    EXPECT_EQ(record["group"], "flash_attention");
    EXPECT_EQ(record["provenance"], "tuned by a test");
    EXPECT_TRUE(fs::exists(record["path"].get<std::string>()));
    EXPECT_EQ(record["bytes"], fs::file_size(record["path"].get<std::string>()));
    EXPECT_GT(record["used"], 0);
  }
  const std::string text = cache({"list"}).out;
  EXPECT_THAT(text, HasSubstr(digest_of_a().substr(0, 12)));
  EXPECT_THAT(text, HasSubstr(root + ": 2 records, "));
}

TEST_F(CacheTool, a_store_that_nobody_has_written_to_is_empty) {
  const Json json = json_of(ejk({"cache", "list", "--json"}, {"EJKERNEL_CACHE_DIR=" + other}));
  EXPECT_EQ(json["totals"]["good"], 0);
  EXPECT_EQ(ejk({"cache", "verify"}, {"EJKERNEL_CACHE_DIR=" + other}).exit_code, 0);
  EXPECT_FALSE(fs::exists(other));
  const ProcessResult named = cache({"list", "--root", other});
  EXPECT_EQ(named.exit_code, 2);
  EXPECT_THAT(named.err, HasSubstr("got one that is not there"));
}

TEST_F(CacheTool, shows_one_record) {
  const Json json = json_of(cache({"show", digest_of_a().substr(0, 8), "--json"}));
  EXPECT_EQ(json["key"], "a");
  EXPECT_EQ(json["value"], "{\"block_q\": 64}");
  EXPECT_THAT(cache({"show", digest_of_a()}).out, HasSubstr("{\"block_q\": 64}"));
  const std::string b = fs::path(Store(root).path_of(key("b"))).filename();
  EXPECT_THAT(cache({"show", b}).out, HasSubstr("12 bytes"));
  EXPECT_EQ(cache({"show", "zz"}).exit_code, 2);
  EXPECT_THAT(cache({"show"}).err, HasSubstr("must be followed by the beginning of a record's digest"));
}

TEST_F(CacheTool, verify_fails_when_a_record_is_damaged) {
  EXPECT_EQ(cache({"verify"}).exit_code, 0);
  damage_b();
  const ProcessResult result = cache({"verify", "--json"});
  EXPECT_EQ(result.exit_code, 1);
  const Json json = Json::parse(result.out);
  ASSERT_EQ(json["damaged"].size(), 1u);
  EXPECT_EQ(json["damaged"][0]["reason"], "its length is not what its header says");
  EXPECT_EQ(json["totals"]["good"], 1);
  EXPECT_THAT(cache({"verify"}).out, HasSubstr("its length is not what its header says"));
  EXPECT_TRUE(fs::exists(Store(root).path_of(key("b")))) << "it only looks";
}

TEST_F(CacheTool, goes_from_one_machine_to_another_in_an_archive) {
  EXPECT_EQ(json_of(cache({"export", archive, "--json"}))["records"], 2);
  EXPECT_THAT(cache({"export", archive}).err, HasSubstr("must be a new file, got one that exists"));
  EXPECT_EQ(json_of(cache({"list", "--root", archive, "--json"}))["records"].size(), 2u);
  EXPECT_EQ(cache({"diff", archive}).exit_code, 0);

  const Json imported = json_of(cache({"import", archive, "--root", other, "--json"}));
  EXPECT_EQ(imported["added"], 2);
  EXPECT_EQ(value_in(other, "a"), "{\"block_q\": 64}");
  EXPECT_THAT(Store(other).find(key("a"))->provenance, StartsWith("tuned by a test; imported 2"));
  EXPECT_EQ(json_of(cache({"import", archive, "--root", other, "--json"}))["same"], 2);

  std::ofstream(archive, std::ios::app) << "x";
  const ProcessResult damaged = cache({"import", archive, "--root", other});
  EXPECT_EQ(damaged.exit_code, 2);
  EXPECT_THAT(damaged.err, HasSubstr("got one that is a damaged archive"));
}

TEST_F(CacheTool, merge_keeps_what_is_there_unless_told_otherwise) {
  put(other, "a", "theirs");
  put(other, "c", "more");
  Json json = json_of(cache({"merge", other, "--json"}));
  EXPECT_EQ(json["added"], 1);
  EXPECT_EQ(json["kept"], 1);
  EXPECT_EQ(value_in(root, "a"), "{\"block_q\": 64}");
  EXPECT_EQ(value_in(root, "c"), "more");
  json = json_of(cache({"merge", other, "--replace", "--json"}));
  EXPECT_EQ(json["replaced"], 1);
  EXPECT_EQ(json["same"], 1);
  EXPECT_EQ(value_in(root, "a"), "theirs");
  damage_b();
  const ProcessResult partly = ejk({"cache", "merge", root, "--root", other, "--json"});
  EXPECT_EQ(partly.exit_code, 1) << "a record could not be taken";
  EXPECT_EQ(Json::parse(partly.out)["not_good"], 1);
}

TEST_F(CacheTool, merging_replaces_what_a_search_left_that_was_cut_short) {
  const Record unfinished = {.value = "{}", .provenance = R"({"how": "unfinished", "search_seconds": 2})"};
  ASSERT_TRUE(Store(root).put(key("a"), unfinished));
  put(other, "a", "{\"block_q\": 128}");
  const Json json = json_of(cache({"merge", other, "--json"}));
  EXPECT_EQ(json["replaced"], 1);
  EXPECT_EQ(json["kept"], 0);
  EXPECT_EQ(value_in(root, "a"), "{\"block_q\": 128}");
}

TEST_F(CacheTool, diff_says_where_two_stores_differ) {
  put(other, "a", "theirs");
  put(other, "c", "more");
  const ProcessResult result = cache({"diff", other, "--json"});
  EXPECT_EQ(result.exit_code, 1);
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["different"].size(), 1u);
  EXPECT_EQ(json["only_here"].size(), 1u);
  EXPECT_EQ(json["only_there"].size(), 1u);
  EXPECT_THAT(cache({"diff", other}).out, HasSubstr("1 only here, 1 only there, 1 different\n"));
}

TEST_F(CacheTool, gc_removes_what_it_says) {
  fs::last_write_time(Store(root).path_of(key("b")), fs::file_time_type::clock::now() - std::chrono::hours(49));
  const Json dry = json_of(cache({"gc", "--unused-days", "2", "--dry-run", "--json"}));
  EXPECT_EQ(dry["removed"], 1);
  EXPECT_NE(value_in(root, "b"), "none");
  fs::last_write_time(Store(root).path_of(key("b")), fs::file_time_type::clock::now() - std::chrono::hours(49));
  EXPECT_EQ(json_of(cache({"gc", "--json"}))["removed"], 0) << "far below the quota";
  EXPECT_THAT(cache({"gc", "--unused-days", "2"}).out, HasSubstr("removed 1 records"));
  EXPECT_EQ(value_in(root, "b"), "none");
  EXPECT_NE(value_in(root, "a"), "none");
  EXPECT_EQ(cache({"gc", "--unused-days", "-1"}).exit_code, 2);
  EXPECT_EQ(cache({"gc", "--quota-mb", "much"}).exit_code, 2);
}

TEST_F(CacheTool, what_others_can_write_is_refused) {
  fs::permissions(root, fs::perms::others_write, fs::perm_options::add);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"list"}, {"verify"}, {"gc"}, {"export", archive}, {"merge", root, "--root", other}}) {
    const ProcessResult result = cache(command);
    EXPECT_EQ(result.exit_code, 2) << command[0];
    EXPECT_THAT(result.err, HasSubstr("can be written by others than its owner")) << command[0];
  }
  EXPECT_FALSE(fs::exists(archive));
}

TEST_F(CacheTool, without_a_command_says_which_there_are) {
  const ProcessResult result = cache({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("cache must be followed by a command"));
  const std::string help = cache({"--help"}).out;
  for (const char* command : {"list", "show", "verify", "diff", "merge", "export", "import", "gc"}) {
    EXPECT_THAT(help, HasSubstr(std::string("\n  ") + command));
    EXPECT_EQ(cache({command, "--help"}).exit_code, 0);
  }
  EXPECT_THAT(cache({"lst"}).err, HasSubstr("did you mean list?"));
}

TEST_F(CacheTool, what_nobody_has_written_to_can_be_exported_and_compared) {
  const std::vector<std::string> nowhere = {"EJKERNEL_CACHE_DIR=" + root + "/not/yet"};
  const std::string none = archive + ".none";
  EXPECT_EQ(json_of(ejk({"cache", "export", none, "--json"}, nowhere))["records"], 0);
  EXPECT_EQ(json_of(ejk({"cache", "diff", none, "--json"}, nowhere))["only_here"].size(), 0u);
}

TEST_F(CacheTool, exports_configs_alone_where_asked) {
  Store(root).put(key("config of cpu@1 for a problem"), {.value = "{}", .provenance = ""});
  EXPECT_EQ(json_of(cache({"export", archive, "--configs", "--json"}))["records"], 1);
  EXPECT_EQ(json_of(cache({"list", "--root", archive, "--json"}))["records"][0]["key"],
            "config of cpu@1 for a problem");
}

TEST_F(CacheTool, a_configs_import_is_a_field_of_its_provenance) {
  const RecordKey config = key("config of cpu@1 for a problem");
  const std::string tuned = R"({"how":"tuned","when":"2026-11-22T10:00:00Z"})";
  ASSERT_TRUE(Store(other).put(config, {.value = "{}", .provenance = tuned}));
  EXPECT_EQ(cache({"merge", other}).exit_code, 0);
  Json provenance = Json::parse(Store(root).find(config)->provenance);
  EXPECT_THAT(provenance["imported"].get<std::string>(), StartsWith("2"));
  provenance.erase("imported");
  EXPECT_EQ(provenance, Json::parse(tuned));
}

/// What a table holds for kernels that have changed since is passed over: list and verify say how much is left.
TEST_F(CacheTool, counts_the_configs_that_this_build_may_use) {
  const auto operation = KernelRegistry::instance().find("flash_attention");
  const auto on_gpu = [](const auto& kernel) { return kernel->backend == Backend::gpu; };
  const auto kernel = *std::find_if(operation->kernels.begin(), operation->kernels.end(), on_gpu);
  const std::string of_kernel = "config of " + kernel->name + "@" + revision_of(*kernel);
  const std::string for_problem = " for flash_attention@" + std::to_string(operation->declaration->revision) + " q (1)";
  for (const std::string& text : {of_kernel + for_problem, of_kernel + "0" + for_problem,
                                  "config of none@1" + for_problem, of_kernel + " for flash_attention@0 q (1)"})
    put(root, text, "{}");
  const Json totals = json_of(cache({"list", "--json"}))["totals"];
  EXPECT_EQ(totals["configs"], 4);
  EXPECT_EQ(totals["configs_of_this_build"], 1);
  EXPECT_THAT(cache({"verify"}).out, HasSubstr("; 1 of 4 configs are of this build's kernels\n"));
}

TEST_F(CacheTool, tables_that_the_library_ships_are_whole_and_found) {
  int64_t shipped = 0;
  for (const auto& table : fs::directory_iterator(kSourceFolder / "tables")) {
    if (table.path().extension() != ".ejk") continue;
    ++shipped;
    const fs::path copy = kBinaryFolder / "share/ejkernel/tables" / table.path().filename();
    EXPECT_TRUE(read_text(copy) == read_text(table.path())) << "configure again: " << copy;
    const Json records = json_of(cache({"list", "--root", copy, "--json"}))["records"];
    EXPECT_GT(records.size(), 0u);
    for (const Json& record : records) {
      EXPECT_EQ(record["state"], "good");
      EXPECT_THAT(record["key"].get<std::string>(), StartsWith("config of "));
    }
  }
  EXPECT_GT(shipped, 0);
  const ProcessResult doctor =
      run_process({"env", "-u", "EJKERNEL_CONFIG_PATH", EJK_BINARY_DIR "/bin/ejk", "doctor", "--seconds", "0"},
                  {"EJKERNEL_CACHE_DIR=" + other});
  EXPECT_THAT(doctor.out, HasSubstr("ok    config path  " + std::to_string(shipped) + " shipped with the library\n"));
}

/// As under sudo: what root made there, its owner could not use.
TEST_F(CacheTool, a_home_of_somebody_elses_has_no_store) {
  const fs::path home = ::geteuid() == 0 ? fs::path(root) / "home" : fs::path("/");
  if (::geteuid() == 0) {
    fs::create_directories(home);
    ASSERT_EQ(::chown(home.c_str(), 65534, 65534), 0);
  }
  const auto in_home = [&](const std::vector<std::string>& words) {
    std::vector<std::string> line = {
        "env", "-u", "EJKERNEL_CACHE_DIR", "-u", "XDG_CACHE_HOME", EJK_BINARY_DIR "/bin/ejk"};
    line.insert(line.end(), words.begin(), words.end());
    return run_process(line, {"HOME=" + home.string()});
  };
  const ProcessResult list = in_home({"cache", "list"});
  EXPECT_EQ(list.exit_code, 2);
  EXPECT_THAT(list.err,
              HasSubstr("the store must have a folder, got no EJKERNEL_CACHE_DIR, and no HOME of this user's"));
  EXPECT_THAT(in_home({"doctor", "--seconds", "0"}).out, HasSubstr("HOME is no folder of this user's"));
  EXPECT_FALSE(fs::exists(home / ".cache"));
}

/// What a process finds through EJKERNEL_CONFIG_PATH: `ejk doctor` looks at the places.
TEST_F(CacheTool, doctor_names_places_that_are_not_used) {
  const auto doctor = [&](const std::string& path) {
    return ejk({"doctor", "--seconds", "0"}, {"EJKERNEL_CACHE_DIR=" + root, "EJKERNEL_CONFIG_PATH=" + path}).out;
  };
  EXPECT_THAT(doctor(root), HasSubstr("ok    config path  1 named\n"));
  EXPECT_THAT(doctor(root + ":" + archive), HasSubstr("warn  config path  2 named; " + archive + " is not there"));
}

}  // namespace
}  // namespace ejk::testing
