// The command-line tool as its users meet it: a process, its output and its exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/version.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/testing/process.h"
#include "ejkernel/testing/table.h"
#include "tests/ejk_tool.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::StartsWith;
using Json = nlohmann::json;

TEST(EjkTool, tells_its_version) {
  const ProcessResult result = ejk({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "ejkernel " + std::string(kVersion) + "\n");
}

TEST(EjkTool, every_verb_has_help_with_examples_and_exit_codes) {
  const std::string help = ejk({"--help"}).out;
  const std::vector<std::string> verbs = {"bench",  "cache",   "check", "compile", "docs",
                                          "doctor", "explain", "list",  "run"};
  for (const std::string& verb : verbs) {
    EXPECT_THAT(help, HasSubstr("\n  " + verb)) << "ejk --help leaves it out";
    const ProcessResult result = ejk({verb, "--help"});
    EXPECT_EQ(result.exit_code, 0) << verb;
    EXPECT_THAT(result.err, IsEmpty()) << verb;
    EXPECT_THAT(result.out, HasSubstr("Examples:\n  ejk " + verb));
    EXPECT_THAT(result.out, HasSubstr("Exit codes: 0 done"));
  }
}

TEST(EjkTool, without_a_verb_shows_its_usage_and_fails) {
  const ProcessResult result = ejk({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, HasSubstr("Usage: ejk"));
}

TEST(EjkTool, unknown_words_suggest_the_nearest) {
  EXPECT_EQ(
      ejk({"lst"}).err,
      "ejk: the word must be one of bench, cache, check, compile, docs, doctor, explain, header, list, run, tune, "
      "got 'lst'; did you mean list? see ejk --help\n");
  EXPECT_THAT(
      ejk({"run", "nothing"}).err,
      MatchesRegex("ejk run: the word must be one of flash_attention, .*mean_pooling, .*, got 'nothing'; see ejk run "
                   "--help\n"));
  EXPECT_THAT(ejk({"explain", "flash_atention"}).err,
              HasSubstr(", got 'flash_atention'; did you mean flash_attention? see ejk explain --help\n"));
  EXPECT_EQ(ejk({"explain", "flash_attention", "--cusal"}).err,
            "ejk explain flash_attention: an option must be one of this command's, got '--cusal'; did you mean "
            "--causal? see ejk explain flash_attention --help\n");
  EXPECT_THAT(ejk({"explain", "flash_attention", "--q-len=3"}).err, HasSubstr("got '--q-len'; did you mean --q_len?"));
  EXPECT_THAT(ejk({"zzzzzzzzzz"}).err, HasSubstr(", got 'zzzzzzzzzz'; see ejk --help\n"));
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"lst"}, {"list", "--jsn"}, {"list", "nothing"}, {"explain"}})
    EXPECT_EQ(ejk(wrong).exit_code, 2);
}

TEST(EjkTool, list_names_every_operation_and_kernel) {
  const Json json = json_of(ejk({"list", "--json"}));
  std::vector<std::string> names;
  for (const Json& operation : json["operations"]) {
    names.push_back(operation["name"]);
    EXPECT_EQ(operation["kernels"].back()["name"], "reference");
  }
  EXPECT_EQ(names, KernelRegistry::instance().names());
  const std::string text = ejk({"list"}).out;
  for (const std::string& name : names) EXPECT_THAT(text, HasSubstr(name + "@"));
}

TEST(EjkTool, list_narrows_to_an_operation_and_a_platform) {
  const Json json = json_of(ejk({"list", "mean_pooling", "--platform", "reference", "--json"}));
  ASSERT_EQ(json["operations"].size(), 1u);
  ASSERT_EQ(json["operations"][0]["kernels"].size(), 1u);
  EXPECT_EQ(json["operations"][0]["kernels"][0]["platform"], "reference");
  EXPECT_THAT(ejk({"list", "mean_pooling"}).out, HasSubstr("chunk_size"));
  EXPECT_THAT(ejk({"list", "--platform", "abacus"}).err, HasSubstr("--platform must be one of cuda, cpu, reference"));
}

TEST(EjkTool, explain_builds_the_call_from_dimensions) {
  const Json json = json_of(ejk({"explain",
                                 "flash_attention",
                                 "--batch",
                                 "2",
                                 "--q_len",
                                 "48",
                                 "--num_q_heads",
                                 "8",
                                 "--num_kv_heads",
                                 "2",
                                 "--head_dim",
                                 "64",
                                 "--dtype",
                                 "bf16",
                                 "--causal",
                                 "--sliding_window",
                                 "128,0",
                                 "--logits_soft_cap",
                                 "30",
                                 "--input",
                                 "softmax_aux",
                                 "--json"}));
  EXPECT_EQ(json["problem"],
            "flash_attention@1 batched query:bf16 key:bf16 value:bf16 softmax_aux:bf16 batch=2 q_len<=48 num_q_heads=8 "
            "head_dim=64 kv_len<=48 num_kv_heads=2 value_dim=64 num_sinks=1 causal=true sliding_window=(128, 0) "
            "logits_soft_cap=given");
  EXPECT_EQ(json["tier"], "heuristics");
}

TEST(EjkTool, explain_takes_the_form_from_what_is_given) {
  EXPECT_THAT(ejk({"explain", "flash_attention", "--num_seqs", "3"}).out, HasSubstr("flash_attention@1 packed"));
  EXPECT_THAT(ejk({"explain", "mean_pooling", "--chunk_size", "64"}).out, HasSubstr("mean_pooling@1 chunked"));
  EXPECT_THAT(ejk({"explain", "mean_pooling", "--form", "packed"}).out, HasSubstr("mean_pooling@1 packed"));
  const ProcessResult both = ejk({"explain", "flash_attention", "--num_seqs", "3", "--input", "bias"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("must belong to one form of the operation"));
}

TEST(EjkTool, explain_makes_a_gradients_call_from_the_forwards) {
  const std::string by_flag = ejk({"explain", "flash_attention", "--q_len", "5", "--backward"}).out;
  EXPECT_THAT(by_flag,
              HasSubstr("flash_attention_backward@1 batched query:f32 key:f32 value:f32 out:f32 lse:f32 d_out:f32"));
  EXPECT_EQ(ejk({"explain", "flash_attention_backward", "--q_len", "5"}).out, by_flag);
}

TEST(EjkTool, explain_takes_a_tensors_own_shape) {
  EXPECT_THAT(ejk({"explain", "flash_attention", "--q_len", "8", "--input", "bias=f16[1, 1, 8, 8]"}).out,
              HasSubstr("bias:f16"));
  const std::vector<std::string> cache = {"explain", "page_attention", "--dtype", "bf16",
                                          "--input", "key_cache=i8",   "--input", "value_cache=i8"};
  EXPECT_THAT(ejk(cache).out, HasSubstr("query:bf16 key_cache:i8 value_cache:i8")) << "a dtype alone";
  EXPECT_THAT(ejk({"explain", "flash_attention", "--input", "bias=i8"}).err,
              HasSubstr("bias dtype must be f64, f32, f16 or bf16, got i8"));
  EXPECT_THAT(ejk({"explain", "flash_attention", "--input", "bias=f17"}).err,
              HasSubstr("bias must be a dtype, or a dtype and a shape such as f32[2, 8], got 'f17'"));
  EXPECT_EQ(ejk({"explain", "flash_attention", "--q_len", "8", "--input", "bias=f16[1, 1, 8, 9]"}).err,
            "ejk: flash_attention: bias kv_len must equal key kv_len 8, got 9 (key [1, 8, 8, 128], bias [1, 1, 8, 9]); "
            "give both the same kv_len\n");
}

TEST(EjkTool, a_call_that_nothing_serves_is_explained_and_fails) {
  const ProcessResult result = ejk({"explain", "flash_attention", "--platform", "cuda"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("declines: the call asks for platform cuda"));
}

TEST(EjkTool, without_heuristics_there_is_no_config) {
  const ProcessResult result = ejk({"explain", "flash_attention", "--policy", "cached"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("not allowed by policy"));
}

TEST(EjkTool, docs_writes_pages_and_knows_when_they_are_stale) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(::testing::TempDir()) / "ejk_tool_test_docs";
  fs::remove_all(folder);
  EXPECT_EQ(ejk({"docs", "--check", folder}).exit_code, 1);
  EXPECT_EQ(ejk({"docs", folder}).exit_code, 0);
  const ProcessResult fresh = ejk({"docs", "--check", folder});
  EXPECT_EQ(fresh.exit_code, 0);
  EXPECT_THAT(fresh.out, IsEmpty());
  for (const std::string& name : KernelRegistry::instance().names())
    EXPECT_TRUE(fs::exists(folder / "operations" / (name + ".md"))) << name;

  const fs::path page = folder / "operations" / "flash_attention.md";
  std::ofstream(page, std::ios::app) << "an edit by hand\n";
  fs::copy_file(folder / "operations" / "mean_pooling.md", folder / "operations" / "gone.md");
  std::ofstream(folder / "operations" / "own.md") << "written by a person\n";
  const ProcessResult stale = ejk({"docs", "--check", folder});
  EXPECT_EQ(stale.exit_code, 1);
  EXPECT_THAT(stale.out, HasSubstr(page.string() + ": stale\n"));
  EXPECT_THAT(stale.out, HasSubstr("gone.md: no operation of this name\n"));
  EXPECT_THAT(stale.out, HasSubstr("2 pages"));

  EXPECT_EQ(ejk({"docs", folder}).exit_code, 0);
  EXPECT_EQ(ejk({"docs", "--check", folder}).exit_code, 0);
  EXPECT_FALSE(fs::exists(folder / "operations" / "gone.md"));
  EXPECT_TRUE(fs::exists(folder / "operations" / "own.md"));
  fs::remove_all(folder);
}

TEST(EjkTool, run_shows_what_came_out_and_what_did_it) {
  const Json json = json_of(ejk({"run", "flash_attention", "--q_len", "8", "--dtype", "bf16", "--causal", "--kernel",
                                 "reference", "--seed", "3", "--json"}));
  EXPECT_EQ(json["operation"], "flash_attention");
  EXPECT_EQ(json["kernel"], "reference");
  ASSERT_EQ(json["outputs"].size(), 2u);
  EXPECT_EQ(json["outputs"][0]["name"], "out");
  EXPECT_EQ(json["outputs"][0]["dtype"], "bf16");
  EXPECT_EQ(json["outputs"][0]["shape"], Json({1, 8, 8, 128}));
  EXPECT_EQ(json["outputs"][0]["nan"], 0);
  EXPECT_LT(json["outputs"][0]["min"], json["outputs"][0]["mean"]);
  EXPECT_GT(json["seconds"], 0);
  const ProcessResult text = ejk({"run", "flash_attention", "--q_len", "8"});
  EXPECT_THAT(text.out, HasSubstr("f32[1, 8, 8, 128]"));
  EXPECT_THAT(text.out, HasSubstr("flash_attention by kernel "));
}

/// Finite differences take numbers of 64 bits, whatever the seed draws.
TEST(EjkTool, check_compares_gradients_with_finite_differences) {
  for (const char* seed : {"1", "2", "3", "4"}) {
    const ProcessResult result = ejk({"check", "mean_pooling", "--differentiable", "--seed", seed});
    EXPECT_EQ(result.exit_code, 0) << result.out;
    EXPECT_THAT(result.out, HasSubstr("mean_pooling_backward | reference"));
  }
}

TEST(EjkTool, run_draws_the_same_data_from_the_same_seed) {
  const std::vector<std::string> line = {"run", "mean_pooling", "--num_tokens", "7", "--json"};
  const auto mean = [&](const char* seed) {
    std::vector<std::string> with_seed = line;
    with_seed.insert(with_seed.end(), {"--seed", seed});
    return json_of(ejk(with_seed))["outputs"][0]["mean"].get<double>();
  };
  EXPECT_EQ(mean("5"), mean("5"));
  EXPECT_NE(mean("5"), mean("6"));
}

TEST(EjkTool, run_gives_index_inputs_a_meaning) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"flash_attention", "--num_seqs", "3", "--total_q", "24", "--input", "seqused_k"},
        {"flash_attention", "--q_len", "9", "--input", "q_segment_ids", "--input", "attention_mask"},
        {"flash_attention", "--q_len", "9", "--dtype", "i8", "--input", "q_scale"},
        {"mean_pooling", "--num_seqs", "3", "--chunk_size", "4", "--num_tokens", "24"},
        {"scaled_dot_product_attention", "--q_len", "9", "--input", "query_seq_lengths"}})
    for (const char* seed : {"0", "1", "2"}) {
      std::vector<std::string> line = {"run", "--json", "--seed", seed};
      line.insert(line.begin() + 1, flags.begin(), flags.end());
      EXPECT_EQ(json_of(ejk(line))["outputs"][0]["nan"], 0) << flags[0];
    }
}

TEST(EjkTool, run_differentiates) {
  const Json json = json_of(ejk({"run", "flash_attention", "--q_len", "8", "--backward", "--json"}));
  EXPECT_EQ(json["operation"], "flash_attention_backward");
  EXPECT_EQ(json["outputs"].size(), 3u);  // no bias and no sinks were given
  EXPECT_EQ(json["outputs"][0]["nan"], 0);
}

TEST(EjkTool, run_takes_named_problems) {
  EXPECT_EQ(json_of(ejk({"run", "flash_attention", "--case", "one_of_everything", "--json"}))["kernel"], "cpu");
  const ProcessResult wrong = ejk({"run", "flash_attention", "--case", "one_of_everithing"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean one_of_everything?"));
  EXPECT_THAT(ejk({"run", "flash_attention", "--case", "one_of_everything", "--q_len", "3"}).err,
              HasSubstr("--case must be the only description of the problem"));
}

TEST(EjkTool, check_meets_random_problems_until_the_time_is_over) {
  const Json json = json_of(ejk({"check", "--seconds", "1", "--json"}));
  EXPECT_THAT(json["failures"], IsEmpty());
  EXPECT_GE(json["seconds"], 1);
  int64_t problems = 0;
  for (const Json& row : json["kernels"]) {
    problems += row["problems"].get<int64_t>();
    EXPECT_EQ(row["failures"], 0);
    EXPECT_LE(row["r_p50"], row["r_p99"]);
    EXPECT_LE(row["r_max"], 1);
  }
  EXPECT_GT(problems, 4);
}

TEST(EjkTool, check_replays_one_problem) {
  const Json by_seed = json_of(ejk({"check", "flash_attention", "--kernel=cpu", "--seed=3", "--json"}));
  ASSERT_EQ(by_seed["kernels"].size(), 1u);
  EXPECT_EQ(by_seed["kernels"][0]["kernel"], "cpu");
  EXPECT_EQ(by_seed["kernels"][0]["problems"], 1);
  EXPECT_EQ(by_seed["kernels"][0]["r_max"],
            json_of(ejk({"check", "flash_attention", "--kernel=cpu", "--seed=3", "--json"}))["kernels"][0]["r_max"]);
  const Json by_case = json_of(ejk({"check", "flash_attention", "--case=odd_lengths", "--json"}));
  EXPECT_EQ(by_case["kernels"].size(), 2u);
  const Json differences = json_of(
      ejk({"check", "flash_attention", "--seed=4", "--size=tiny", "--differentiable", "--dtype=f64", "--json"}));
  EXPECT_THAT(differences["failures"], IsEmpty());
  const Json exact = json_of(ejk({"check", "flash_attention", "--kernel=cpu", "--exact", "--seed=5", "--json"}));
  EXPECT_EQ(exact["kernels"][0]["problems"], 1);
  const Json relation = json_of(ejk({"check", "flash_attention", "--kernel=cpu",
                                     "--relation=causal_is_an_explicit_mask", "--seed=5", "--size=small", "--json"}));
  EXPECT_EQ(relation["kernels"][0]["problems"], 1);
  const ProcessResult declined =
      ejk({"check", "flash_attention", "--seed=4", "--size=tiny", "--dtype=f64", "--kernel=cpu"});
  EXPECT_THAT(declined.out, HasSubstr("cpu declines: "));
}

TEST(EjkTool, check_refuses_what_would_pass_by_not_running) {
  EXPECT_THAT(ejk({"check", "--kernel", "cqu"}).err, HasSubstr("--kernel must be one that runs here, got 'cqu'"));
  EXPECT_THAT(ejk({"check", "flush_attention"}).err, HasSubstr("the operation must be one that the harness knows"));
  EXPECT_THAT(ejk({"check", "flash_attention", "--case", "odd_length"}).err, HasSubstr("did you mean odd_lengths?"));
  EXPECT_THAT(ejk({"check", "--seed", "1"}).err, HasSubstr("the operation must be named with --case and --seed"));
  EXPECT_THAT(ejk({"check", "flash_attention", "--seed", "one"}).err, HasSubstr("--seed must be a number, got 'one'"));
  EXPECT_THAT(ejk({"check", "flash_attention", "--exact"}).err, HasSubstr("--exact and --relation need one"));
  EXPECT_THAT(ejk({"check", "flash_attention", "--relation", "none", "--seed", "1"}).err,
              HasSubstr("--relation must be one of"));
  EXPECT_THAT(ejk({"check", "flash_attention", "--size", "vast"}).err,
              HasSubstr("--size must be tiny, small or normal"));
  EXPECT_THAT(ejk({"check", "flash_attention", "--dtype", "f33"}).err,
              HasSubstr("--dtype must be the name of a dtype"));
}

TEST(EjkTool, check_prints_the_reliability_table) {
  const ProcessResult result =
      run_process({EJK_BINARY_DIR "/bin/ejk", "check", "--table", "--json"}, {}, EJK_SOURCE_DIR);
  EXPECT_THAT(result.err, IsEmpty());
  bool bad = false;
  for (const Json& row : Json::parse(result.out)) {
    EXPECT_THAT(row["id"].get<std::string>(), StartsWith("T-"));
    EXPECT_GT(row["target"], 0);
    const std::string state = row["state"];
    if (state == "ok") {
      EXPECT_EQ(row["failures"], 0);
      EXPECT_GE(row["n"], row["target"]);
    }
    bad = bad || state == "FAILED" || state == "short";
  }
  EXPECT_EQ(result.exit_code, bad ? 1 : 0);
  const ProcessResult text = run_process({EJK_BINARY_DIR "/bin/ejk", "check", "--table"}, {}, EJK_SOURCE_DIR);
  EXPECT_THAT(text.out, HasSubstr("T-02      | Forward accuracy "));
}

TEST(EjkTool, check_without_time_still_checks) {
  const Json json = json_of(ejk({"check", "--seconds", "0", "--size", "tiny", "--json"}));
  EXPECT_GE(json["kernels"].size(), 2 * KernelRegistry::instance().names().size()) << "every operation's every kernel";
}

TEST(EjkTool, check_takes_a_config_of_one_kernel) {
  const std::vector<std::string> tiny = {"check", "flash_attention", "--kernel", "cpu", "--seconds",
                                         "0",     "--size",          "tiny"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), tiny.begin(), tiny.end());
    return ejk(more);
  };
  const Json json = json_of(with({"--config", "block_q=32", "--config=block_k=64", "--json"}));
  EXPECT_GT(json["kernels"][0]["problems"], 0);
  const auto refused = with({"--config", "block_q=31"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("block_q"));
  EXPECT_THAT(with({"--config", "block_q"}).err, HasSubstr("--config must be FIELD=VALUE"));
  EXPECT_THAT(ejk({"check", "flash_attention", "--config", "block_q=32"}).err,
              HasSubstr("--config must come with an operation and --kernel"));
}

TEST(EjkTool, check_lists_the_named_problems) {
  const Json json = json_of(ejk({"check", "flash_attention", "--cases", "--json"}));
  EXPECT_GT(json.size(), 10u);
  EXPECT_TRUE(std::any_of(json.begin(), json.end(), [](const Json& row) { return row["case"] == "odd_lengths"; }));
  EXPECT_THAT(ejk({"check", "--cases"}).out, HasSubstr("mean_pooling"));
  EXPECT_THAT(ejk({"run", "mean_pooling", "--case", "zzzzzzzzzzzzzzzzz"}).err,
              HasSubstr("ejk check mean_pooling --cases lists them"));
}

TEST(EjkTool, check_refuses_options_that_would_have_no_effect) {
  const std::vector<std::vector<std::string>> contradictions = {
      {"--table", "flash_attention"},
      {"--table", "--seed", "3"},
      {"--table", "--cases"},
      {"--cases", "--kernel", "cpu"},
      {"--kernel", "cpu", "--config", "block_q=32", "--seed", "1", "--relation", "x"},
      {"--case", "odd_lengths", "--exact"},
      {"--case", "odd_lengths", "--dtype", "bf16"},
      {"--exact", "--seed", "1", "--dtype", "bf16"},
      {"--exact", "--seed", "1", "--size", "tiny"},
      {"--relation", "causal_is_an_explicit_mask", "--seed", "1", "--hostile"}};
  for (std::vector<std::string> line : contradictions) {
    line.insert(line.begin(), "check");
    if (line[1] != "--table" && line[1] != "--cases") line.insert(line.begin() + 1, "flash_attention");
    const ProcessResult result = ejk(line);
    EXPECT_EQ(result.exit_code, 2) << ::testing::PrintToString(line);
    EXPECT_THAT(result.err, HasSubstr("; leave one of them out\n")) << ::testing::PrintToString(line);
  }
  // A named problem may be run with the configs and layouts of another seed: that is how a table row replays it.
  EXPECT_EQ(ejk({"check", "flash_attention", "--case", "odd_lengths", "--seed", "3"}).exit_code, 0);
}

/// States stand in ejkernel/testing/table_test.cpp; here, what a script sees of them.
TEST(EjkTool, check_fails_on_a_failed_or_short_row_of_the_table) {
  namespace fs = std::filesystem;
  const fs::path tree = fs::path(::testing::TempDir()) / "ejk_tool_test_table";
  const fs::path records = tree / "benchmarks/results/reliability";
  fs::remove_all(tree);
  fs::create_directories(records);
  const auto table = [&](std::vector<std::string> more = {}) {
    more.insert(more.begin(), {EJK_BINARY_DIR "/bin/ejk", "check", "--table"});
    return run_process(more, {"GIT_CEILING_DIRECTORIES=" + tree.parent_path().string()}, tree);
  };
  const auto record = [&](int64_t n, int64_t failures) {
    std::ofstream(records / "T-02.json") << Json{{"id", "T-02"},         {"n", n},         {"target", 10000},
                                                 {"failures", failures}, {"seed", 1},      {"commit", "0123456789ab"},
                                                 {"machine", "m"},       {"command", "c"}, {"minutes", 1}};
  };
  const auto state = [&]() -> std::string {  // the exit code says that a row failed
    for (const Json& row : Json::parse(table({"--json"}).out))
      if (row["id"] == "T-02") return row["state"];
    return "";
  };

  EXPECT_EQ(table().exit_code, 0) << "nothing has failed where nothing was measured";
  EXPECT_EQ(state(), "missing");
  record(10000, 0);
  EXPECT_EQ(table().exit_code, 0);
  EXPECT_EQ(state(), "stale") << "without git nobody knows";
  record(10000, 1);
  EXPECT_EQ(table().exit_code, 1);
  EXPECT_THAT(table().out, HasSubstr("FAILED"));
  record(9999, 0);
  EXPECT_EQ(table().exit_code, 1);
  EXPECT_THAT(table().out, HasSubstr("1 failed or short of their target, " + std::to_string(table_rows().size() - 1) +
                                     " stale or missing"));
  EXPECT_EQ(state(), "short");

  const ProcessResult elsewhere = run_process({EJK_BINARY_DIR "/bin/ejk", "check", "--table"}, {}, "/");
  EXPECT_EQ(elsewhere.exit_code, 2);
  EXPECT_THAT(elsewhere.err, HasSubstr("the working folder must be inside a source tree"));
  fs::remove_all(tree);
}

TEST(EjkTool, doctor_examines_the_machine) {
  namespace fs = std::filesystem;
  const fs::path cache = fs::temp_directory_path() / ("ejk_doctor_" + std::to_string(getpid()));
  const Json json = json_of(ejk({"doctor", "--json", "--seconds", "0.2"}, {"EJKERNEL_CACHE_DIR=" + cache.string()}));
  EXPECT_FALSE(fs::exists(cache)) << "the store was tried, and nothing left there";
  EXPECT_NE(json["verdict"], "fail");
  std::vector<std::string> examined;
  for (const Json& line : json["lines"]) {
    examined.push_back(line["what"]);
    EXPECT_FALSE(line["found"].get<std::string>().empty());
    EXPECT_EQ(line["verdict"] != "ok", line.contains("fix")) << line;
  }
  EXPECT_THAT(examined, ::testing::IsSupersetOf({"ejkernel", "library", "environment", "processor", "threads", "memory",
                                                 "CUDA driver", "compiler", "store", "config path", "programs",
                                                 "plug-ins", "registry", "self-test"}));
  EXPECT_EQ(json["environment"].size(), environment::variables().size());
  EXPECT_THAT(ejk({"doctor", "--env", "--seconds", "0"}).out, HasSubstr("\nEJKERNEL_NUM_THREADS "));
}

/// Without the variable, which this program sets for what it starts.
ProcessResult ejk_without_policy(std::vector<std::string> arguments, const std::vector<std::string>& environment) {
  arguments.insert(arguments.begin(), {"env", "-u", "EJKERNEL_AUTOTUNE_POLICY", EJK_BINARY_DIR "/bin/ejk"});
  return run_process(arguments, environment);
}

TEST(EjkTool, doctor_shows_the_environment_as_its_user_left_it) {
  const auto policy_in = [](const ProcessResult& doctor) {
    const Json examined = json_of(doctor);
    for (const Json& variable : examined["environment"])
      if (variable["name"] == "EJKERNEL_AUTOTUNE_POLICY") return variable["value"];
    return Json("no such variable");
  };
  const std::vector<std::string> arguments = {"doctor", "--env", "--json", "--seconds", "0"};
  EXPECT_EQ(policy_in(ejk_without_policy(arguments, {})), Json());
  EXPECT_EQ(policy_in(ejk(arguments, {"EJKERNEL_AUTOTUNE_POLICY=autotune"})), Json("autotune"));
}

TEST(EjkTool, tuning_is_left_to_tune_and_explain_says_what_a_program_would_do) {
  const ScratchFolder scratch("tuning_is_left");
  const std::vector<std::string> environment = {"EJKERNEL_CACHE_DIR=" + (scratch.path / "store").string()};
  const auto tier_5 = [](const ProcessResult& explained) {
    const Json told = json_of(explained);
    for (const Json& tier : told["tiers"])
      if (tier["tier"] == "autotune") return tier["answer"].get<std::string>();
    return std::string("not asked");
  };
  const std::vector<std::string> explain = {"explain", "flash_attention", "--q_len", "16", "--json"};
  EXPECT_THAT(tier_5(ejk_without_policy(explain, environment)), StartsWith("would tune at the first call: "));
  EXPECT_EQ(tier_5(ejk(explain, {environment[0], "EJKERNEL_AUTOTUNE_POLICY=heuristics"})), "not allowed by policy");

  std::vector<std::string> run = {"run", "flash_attention", "--q_len", "16", "--json"};
  EXPECT_EQ(json_of(ejk_without_policy(run, environment))["tier"], "heuristics");
  EXPECT_FALSE(std::filesystem::exists(scratch.path / "store"));
  run.insert(run.end(), {"--policy", "autotune"});
  json_of(ejk_without_policy(run, environment));
  EXPECT_TRUE(std::filesystem::exists(scratch.path / "store")) << "it was asked to tune, and keeps what it found";
}

TEST(EjkTool, doctor_fails_on_what_does_not_work_and_warns_of_what_has_no_effect) {
  const ProcessResult malformed = ejk({"doctor", "--seconds", "0"}, {"EJKERNEL_LOG=loud"});
  EXPECT_EQ(malformed.exit_code, 1);
  EXPECT_THAT(malformed.out, HasSubstr("fail  environment  environment: EJKERNEL_LOG must be "));
  const ProcessResult plugin = ejk({"doctor", "--seconds", "0"}, {"EJKERNEL_PLUGINS=/nowhere/plugin.so"});
  EXPECT_EQ(plugin.exit_code, 1);
  EXPECT_THAT(plugin.out, HasSubstr("fail  plug-in"));
  const ProcessResult misspelt = ejk({"doctor", "--seconds", "0"}, {"EJKERNEL_THREADS=2"});
  EXPECT_EQ(misspelt.exit_code, 0);
  EXPECT_THAT(misspelt.out, HasSubstr("warn  environment"));
  EXPECT_THAT(misspelt.out, HasSubstr("not known: EJKERNEL_THREADS"));
}

}  // namespace
}  // namespace ejk::testing
