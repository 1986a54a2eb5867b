// `ejk tune` as its user meets it: what it prints, what it leaves in the store, what it leaves alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ejkernel/runtime/registry.h"
#include "tests/ejk_tool.h"
#include "tests/support.h"
#include "tools/ejk/pace.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
namespace fs = std::filesystem;

class TuneTool : public ::testing::Test {
 protected:
  ProcessResult run(std::vector<std::string> words) const {
    return ejk(words, {"EJKERNEL_CACHE_DIR=" + (scratch.path / "store").string()});
  }
  /// `ejk tune` on a small problem, with more words.
  ProcessResult tune(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"tune", "flash_attention", "--q_len", "32", "--budget", "5"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  std::string tier_4() const {
    const Json told = Json::parse(run({"explain", "flash_attention", "--q_len", "32", "--json"}).out);
    for (const Json& tier : told["tiers"])
      if (tier["tier"] == "store") return tier["answer"];
    return "not asked";
  }
  const ScratchFolder scratch{"tune"};
};

TEST_F(TuneTool, keeps_what_it_found_and_the_next_process_uses_it) {
  EXPECT_EQ(tier_4(), "miss");
  const ProcessResult tuned = tune({});
  EXPECT_EQ(tuned.exit_code, 0) << tuned.err;
  const Json report = Json::parse(tuned.out);  // the output is no terminal
  EXPECT_EQ(report["kernel"], "cpu");
  EXPECT_EQ(report["published"], true);
  ASSERT_GT(report["candidates"].size(), 8u);
  EXPECT_EQ(report["candidates"][0]["config"], report["heuristic"]) << "it stands first";
  EXPECT_GT(report["candidates"][0]["seconds"], 0);
  EXPECT_THAT(tier_4(), report["faster"] == true ? HasSubstr("hit: ") : HasSubstr("measured: nothing beats"));
  EXPECT_EQ(tune({"--resume", "--text"}).out, "flash_attention  tuned already\n");
  EXPECT_EQ(Json::parse(tune({"--resume", "--json"}).out)["left_out"], "tuned already");
  EXPECT_EQ(run({"explain", "flash_attention", "--q_len", "32", "--policy", "cached"}).exit_code, 0)
      << "whether or not something was faster";
}

TEST_F(TuneTool, says_that_it_found_what_it_cannot_keep) {
  const fs::path file = scratch.path / "file";
  std::ofstream(file) << "no folder";
  const ProcessResult tuned =
      run_process({EJK_BINARY_DIR "/bin/ejk", "tune", "flash_attention", "--q_len", "32", "--budget", "0.1"},
                  {"EJKERNEL_CACHE_DIR=" + file.string()});
  EXPECT_EQ(tuned.exit_code, 1);
  EXPECT_THAT(tuned.err, HasSubstr("ejk: flash_attention: the store must be writable for this to be kept, got '" +
                                   file.string() + "'; see ejk doctor\n"));
}

TEST_F(TuneTool, a_dry_run_lists_candidates_and_measures_nothing) {
  const ProcessResult listed = tune({"--dry-run", "--text"});
  EXPECT_EQ(listed.exit_code, 0);
  EXPECT_THAT(listed.out, HasSubstr("flash_attention  kernel cpu, "));
  EXPECT_THAT(listed.out, HasSubstr("\n  block_q=16 block_k=32 bf16_dot=0\n"));
  EXPECT_FALSE(fs::exists(scratch.path / "store"));
}

/// Named problems are the forward's, and some have dtypes that no gradient takes.
TEST_F(TuneTool, leaves_out_named_problems_that_have_no_gradient_and_goes_on) {
  const KernelRegistry& registry = KernelRegistry::instance();
  std::string all;
  for (const std::string& name : registry.names()) {
    const std::string gradient(registry.find(name)->declaration->gradient);
    if (gradient.empty()) continue;
    const ProcessResult listed = run({"tune", gradient, "--dry-run", "--text"});
    EXPECT_EQ(listed.exit_code, 0) << listed.err;
    EXPECT_THAT(listed.out, HasSubstr("  kernel ")) << gradient;
    all += listed.out;
  }
  EXPECT_THAT(all, HasSubstr("square_2048_int8               left out: grouped_matmul_backward: lhs dtype must be"));
  EXPECT_THAT(all, HasSubstr("\nexpert_capacity_batched  kernel cpu, ")) << "the last of them";
  const ProcessResult by_name = run({"tune", "grouped_matmul", "--backward", "--dry-run", "--case=square_2048_int8"});
  EXPECT_EQ(by_name.exit_code, 2);
  EXPECT_THAT(by_name.err, HasSubstr("grouped_matmul_backward: lhs dtype must be"));
}

TEST_F(TuneTool, takes_dimensions_in_one_word) {
  const auto listed = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> line = {"tune", "flash_attention", "--dry-run", "--text"};
    line.insert(line.end(), flags.begin(), flags.end());
    return run(line);
  };
  const ProcessResult one = listed({"--shape", "batch=1,q_len=4096", "--shape", "head_dim=64"});
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.out, listed({"--batch", "1", "--q_len", "4096", "--head_dim", "64"}).out);
  EXPECT_NE(one.out, listed({"--q_len", "16"}).out);
  for (const auto& [words, what] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--shape", "q_len"}, "--shape must be NAME=N[,NAME=N], got 'q_len'"},
           {{"--shape", "q_len=1,"}, "--shape must be NAME=N[,NAME=N]"},
           {{"--shape", "q_long=1"}, "flash_attention has batch, q_len"},
           {{"--shape", "q_len=-1"}, "--shape's q_len must be an extent of at least 0, got '-1'"},
           {{"--shape", "q_len=1", "--q_len", "2"}, "--shape's q_len must be given once"}}) {
    const ProcessResult wrong = listed(words);
    EXPECT_EQ(wrong.exit_code, 2);
    EXPECT_THAT(wrong.err, HasSubstr(what));
  }
}

TEST(TunePace, says_what_is_left_from_what_was_spent) {
  tool::Pace pace(4, 10);
  EXPECT_EQ(pace.left(0), "at most 40 s left");
  EXPECT_EQ(pace.left(12), "at most 30 s left") << "a candidate in flight is finished";
  pace.finish(2);
  EXPECT_EQ(pace.left(0.5), "about 6 s left");
  pace.finish(6);
  EXPECT_EQ(pace.left(1), "about 7 s left") << "4 s a problem";
}

TEST_F(TuneTool, verifying_checks_every_candidate_and_keeps_nothing) {
  const ProcessResult verified = tune({"--verify-only", "--text"});
  EXPECT_EQ(verified.exit_code, 0);
  EXPECT_THAT(verified.out, HasSubstr(" not tried, 0 rejected"));
  EXPECT_EQ(tier_4(), "miss");
}

TEST_F(TuneTool, tries_candidates_in_a_process_of_their_own_where_asked) {
  const ProcessResult tuned = tune({"--own-process", "--json"});
  EXPECT_EQ(tuned.exit_code, 0) << tuned.err;
  const Json report = Json::parse(tuned.out);
  EXPECT_EQ(report["kernel"], "cpu");
  EXPECT_GT(report["candidates"][0]["seconds"], 0);
  for (const Json& candidate : report["candidates"])
    EXPECT_THAT(candidate.value("rejected", "not tried: "), ::testing::StartsWith("not tried: ")) << candidate;
}

/// As in a daemon: the numbers that the worker gets for its socket and memory are free there.
TEST_F(TuneTool, tries_them_so_without_a_standard_input) {
  const std::string command =
      EJK_BINARY_DIR "/bin/ejk tune flash_attention --q_len 32 --budget 5 --own-process --json <&-";
  const ProcessResult tuned =
      run_process({"/bin/sh", "-c", command}, {"EJKERNEL_CACHE_DIR=" + (scratch.path / "store").string()});
  EXPECT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_GT(Json::parse(tuned.out)["candidates"][0]["seconds"], 0);
}

TEST_F(TuneTool, that_process_is_no_command) {
  const ProcessResult alone = run({"tune", "--worker"});
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.err, HasSubstr("is what the library starts"));
}

TEST_F(TuneTool, begins_where_a_near_problem_ended) {
  const auto tuned_at = [&](const std::string& q_len) {
    const ProcessResult tuned = run({"tune", "flash_attention", "--q_len", q_len, "--budget", "2", "--json"});
    EXPECT_EQ(tuned.exit_code, 0) << tuned.err;
    return Json::parse(tuned.out);
  };
  const Json first = tuned_at("64"), second = tuned_at("128");
  EXPECT_FALSE(first.contains("transferred_from"));
  // The first's winner, if there was one, where it is among those that the second tries besides its heuristic's.
  bool is_tried = false;
  for (size_t n = 1; n < second["candidates"].size(); ++n) {
    const Json& candidate = second["candidates"][n];
    is_tried = is_tried ||
               (candidate["config"] == first["config"] && !candidate.value("rejected", "").starts_with("not tried"));
  }
  EXPECT_EQ(second.contains("transferred_from"), first["faster"] == true && is_tried);
  EXPECT_THAT(second.value("transferred_from", "q_len<=64"), HasSubstr("q_len<=64"));
}

TEST_F(TuneTool, looks_for_a_config_and_takes_none) {
  EXPECT_THAT(tune({"--config", "block_q=16"}).err, HasSubstr("--config must be left out of tune"));
  const ProcessResult policy = tune({"--policy", "heuristics"});
  EXPECT_THAT(policy.err, HasSubstr("--policy must be left out of tune"));
  EXPECT_EQ(policy.exit_code, 2);
  EXPECT_THAT(tune({"--json", "--text"}).err, HasSubstr("--text must be given without --json"));
}

TEST_F(TuneTool, a_kernel_with_one_config_is_said_so) {
  EXPECT_EQ(run({"tune", "mean_pooling", "--num_tokens", "32", "--text"}).out,
            "mean_pooling  kernel cpu has one config\n");
}

}  // namespace
}  // namespace ejk::testing
