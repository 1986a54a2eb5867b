// `ejk bench` as its user meets it: what it measures, what it prints, and what it says of a baseline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/ejk_tool.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

TEST(EjkTool, bench_times_a_problem_against_the_peak_of_the_same_run) {
  const Json json = json_of(ejk({"bench", "flash_attention", "--q_len", "32", "--seconds", "0.05", "--json"}));
  EXPECT_GT(json["peak_flops"], 1e8);
  EXPECT_GT(json["peak_read_bytes"], 1e8);
  ASSERT_EQ(json["cases"].size(), 1u);
  const Json& measured = json["cases"][0];
  EXPECT_EQ(measured["kernel"], "cpu");
  EXPECT_EQ(measured["flops"], 32 * 32 * 8 * 4 * 128);
  EXPECT_GT(measured["seconds"], 0);
  EXPECT_LE(measured["low"], measured["seconds"]);
  EXPECT_GE(measured["high"], measured["seconds"]);
  // What takes longer at the peaks, over what it took.
  const double by_flops = measured["flops"].get<double>() / json["peak_flops"].get<double>(),
               by_bytes = measured["bytes"].get<double>() / json["peak_read_bytes"].get<double>();
  EXPECT_NEAR(measured["percent_of_peak"].get<double>(),
              100 * std::max(by_flops, by_bytes) / measured["seconds"].get<double>(), 1e-6);
  EXPECT_EQ(measured["peak_of"], by_flops > by_bytes ? "float32" : "memory");
  EXPECT_EQ(measured["command"], "ejk bench flash_attention --q_len=32");
}

TEST(EjkTool, bench_of_a_gradient_shows_forward_backward_and_both) {
  const std::vector<std::string> line = {"bench", "flash_attention", "--backward", "--q_len", "16", "--seconds",
                                         "0.02",  "--config",        "key_parts=1"};
  const ProcessResult result = ejk(line);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* pass : {"forward", "backward", "both"})
    EXPECT_THAT(result.out, HasSubstr(std::string("flash_attention ") + pass));
  std::vector<std::string> as_json = line;
  as_json.emplace_back("--json");
  const Json cases = json_of(ejk(as_json))["cases"];
  ASSERT_EQ(cases.size(), 3u);
  EXPECT_EQ(cases[0]["pass"], "forward");
  EXPECT_EQ(cases[0]["command"], "ejk bench flash_attention --q_len=16");
  EXPECT_EQ(cases[1]["pass"], "backward");
  EXPECT_EQ(cases[2]["pass"], "both");
  EXPECT_EQ(cases[1]["flops"].get<double>(), 2.5 * cases[0]["flops"].get<double>());
  EXPECT_EQ(cases[2]["flops"].get<double>(), 3.5 * cases[0]["flops"].get<double>());
  EXPECT_GT(cases[2]["seconds"].get<double>(), 0);
}

TEST(EjkTool, bench_measures_the_peaks_alone) {
  const Json json = json_of(ejk({"bench", "--peaks", "--threads", "1", "--json"}));
  EXPECT_EQ(json["device"]["threads"], 1);
  EXPECT_GT(json["peak_flops"], 1e8);
  for (const char* rate : {"peak_f64_flops", "peak_bf16_flops", "peak_f8_flops", "peak_i8_flops"})
    EXPECT_GE(json[rate], 0) << rate;
  EXPECT_FALSE(json.contains("cases"));
  EXPECT_THAT(ejk({"bench", "--peaks"}).out, HasSubstr("peaks measured now: "));
}

TEST(EjkTool, bench_prints_one_line_per_case_and_their_mean) {
  const ProcessResult result =
      ejk({"bench", "mean_pooling", "--num_tokens", "64", "--seconds", "0.01", "--threads", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(", 1 threads; peaks measured now: "));
  EXPECT_THAT(result.out, HasSubstr("% of peak | of\nmean_pooling "));
  EXPECT_THAT(result.out, ::testing::ContainsRegex(" [0-9.]+ . (memory|float32)\n"));
}

// Fifty times slower, over enough samples that no other work on the machine can hide it.
TEST(EjkTool, bench_tells_kernels_apart_and_equal_ones_not) {
  const Json slower = Json::parse(ejk({"bench", "flash_attention", "--q_len", "64", "--num_q_heads", "2", "--kernel",
                                       "reference", "--baseline-kernel", "cpu", "--seconds", "0.3", "--json"})
                                      .out);
  EXPECT_EQ(slower["cases"][0]["baseline_kernel"], "cpu");
  EXPECT_GT(slower["cases"][0]["ratio_low"], 1.5);
  EXPECT_EQ(slower["regressions"], 0) << "no margin was given";
  const ProcessResult failed = ejk({"bench", "flash_attention", "--q_len", "64", "--num_q_heads", "2", "--kernel",
                                    "reference", "--baseline-kernel", "cpu", "--seconds", "0.3", "--fail-over", "5%"});
  EXPECT_EQ(failed.exit_code, 3);
  EXPECT_THAT(failed.out, HasSubstr("% slower"));
  EXPECT_THAT(failed.err, HasSubstr("1 of 1 cases are slower than the baseline by more than 5%"));
  const ProcessResult equal = ejk({"bench", "flash_attention", "--q_len", "16", "--baseline-kernel", "cpu", "--seconds",
                                   "0.05", "--fail-over", "50%"});
  EXPECT_EQ(equal.exit_code, 0) << equal.out;
}

TEST(EjkTool, bench_runs_a_saved_baselines_own_program) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(::testing::TempDir()) / "bench_tool_test_baseline";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const std::string file = folder / "before.json";
  const std::vector<std::string> call = {"mean_pooling", "--num_tokens", "64", "--seconds", "0.05"};
  const auto bench = [&](const std::vector<std::string>& more) {
    std::vector<std::string> line = {"bench"};
    line.insert(line.end(), call.begin(), call.end());
    line.insert(line.end(), more.begin(), more.end());
    return ejk(line);
  };
  EXPECT_EQ(bench({"--save", file}).exit_code, 0);
  EXPECT_TRUE(fs::exists(file + ".program/ejk"));
  const Json json = json_of(bench({"--baseline", file, "--fail-over", "60", "--json"}));
  EXPECT_EQ(json["cases"].size(), 1u);
  EXPECT_GT(json["cases"][0]["baseline_seconds"], 0);

  // Another program in its place is not what was saved.
  fs::permissions(file + ".program/ejk", fs::perms::group_write, fs::perm_options::add);
  const ProcessResult unsafe = bench({"--baseline", file});
  EXPECT_EQ(unsafe.exit_code, 2);
  EXPECT_THAT(unsafe.err, HasSubstr("writable by nobody else"));
  fs::permissions(file + ".program/ejk", fs::perms::group_write, fs::perm_options::remove);
  std::ofstream(file + ".program/ejk", std::ios::app) << "x";
  EXPECT_THAT(bench({"--baseline", file}).err, HasSubstr("must run the program and library it was saved with"));
  fs::remove_all(file + ".program");
  EXPECT_THAT(bench({"--baseline", file}).err, HasSubstr("must have the program that made it beside it"));

  Json other = Json::parse(std::ifstream(file));
  other["device"]["product"] = "Abacus";
  std::ofstream(file) << other.dump();
  EXPECT_THAT(bench({"--baseline", file}).err, HasSubstr("must be of this machine"));
  std::ofstream(file) << "[1]";
  EXPECT_THAT(bench({"--baseline", file}).err, HasSubstr("must be a file that ejk bench --save made"));
  EXPECT_THAT(bench({"--baseline", file + ".gone"}).err, HasSubstr("must be a file that ejk bench --save made"));
  EXPECT_THAT(bench({"--fail-over", "5%"}).err, HasSubstr("--fail-over must come with a baseline"));
  EXPECT_THAT(bench({"--baseline-kernel", "cpu", "--fail-over", "five"}).err,
              HasSubstr("--fail-over must be a percentage, got 'five'"));
  EXPECT_EQ(bench({"--threads", "-1"}).exit_code, 2);
  fs::remove_all(folder);
}

TEST(EjkTool, bench_shows_the_hosts_overhead) {
  const ProcessResult result = ejk({"bench", "--overhead", "--json"});
  EXPECT_TRUE(result.exit_code == 0 || result.exit_code == 1)
      << result.err;  // 1: this build or machine misses a target
  const Json json = Json::parse(result.out);
  std::vector<std::string> timed;
  for (const Json& figure : json["overhead"]) {
    timed.push_back(figure["what"]);
    EXPECT_GT(figure["seconds"], 0);
    EXPECT_EQ(figure["met"], figure["seconds"] <= figure["target"]);
  }
  EXPECT_THAT(timed, ::testing::IsSupersetOf({"plan.run", "ejk_plan_run", "execute", "hit", "find", "put"}));
  EXPECT_FALSE(json["device"]["product"].get<std::string>().empty());
  EXPECT_THAT(json["date"].get<std::string>(), ::testing::MatchesRegex("20..-..-.."));
  EXPECT_NE(json["commit"], "") << "or unknown, outside of a tree";
}

TEST(EjkTool, bench_times_the_first_plan_of_a_process) {
  const ProcessResult result = ejk({"bench", "mean_pooling", "--dim", "64", "--planning", "--json"});
  EXPECT_TRUE(result.exit_code == 0 || result.exit_code == 1) << result.err;  // 1: this machine misses a target
  const Json planning = Json::parse(result.out)["planning"];
  ASSERT_EQ(planning.size(), 2u);
  EXPECT_EQ(planning[0]["what"], "compiled");
  EXPECT_EQ(planning[1]["what"], "from the store");
  for (const Json& figure : planning) {
    EXPECT_EQ(figure["kernel"], "cpu");
    EXPECT_GT(figure["least"], 0);
    EXPECT_LE(figure["least"], figure["seconds"]);
    EXPECT_LE(figure["seconds"], figure["most"]);
    EXPECT_EQ(figure["met"], figure["seconds"] <= figure["target"]);
  }
}

}  // namespace
}  // namespace ejk::testing
