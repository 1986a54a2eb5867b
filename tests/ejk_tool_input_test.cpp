// The command-line tool given what is wrong or hostile: one line that says so, and nothing runs.
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
#include "tests/ejk_tool.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

TEST(EjkTool, wrong_arguments_are_explained_in_one_line) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--q_len", "x"}, "ejk: --q_len must be an extent of at least 0, got 'x'; write it in digits\n"},
      {{"--q_len", "-1"}, "ejk: --q_len must be an extent of at least 0, got '-1'; write it in digits\n"},
      {{"--num_seqs", "9223372036854775807"},
       "ejk: flash_attention: --num_seqs must leave cu_seqlens_q an extent of 64 bits, got 9223372036854775807; pass a "
       "smaller one\n"},
      {{"--dtype", "f33"}, "ejk: flash_attention: --dtype must be the name of a dtype, got 'f33'; for example bf16\n"},
      {{"--dtype", "i32"},
       "ejk: flash_attention: query dtype must be f64, f32, f16, bf16, e4m3, e5m2 or i8, got i32; convert it first\n"},
      {{"--logits_soft_cap", "-1"},
       "ejk: flash_attention: logits_soft_cap must be > 0, got -1; choose a value in that range, or leave it at its "
       "default\n"},
      {{"--causal_align", "left"},
       "ejk: flash_attention: causal_align must be bottom_right or top_left, got left; see the operation's page for "
       "its "
       "parameters\n"},
      {{"--out_dtype", "f33"},
       "ejk: flash_attention: out_dtype must be the name of a dtype, got f33; see the operation's page for its "
       "parameters\n"},
      {{"--sliding_window", "1,2,3"},
       "ejk: flash_attention: sliding_window must be one integer or two, got (1, 2, 3); see the operation's page for "
       "its "
       "parameters\n"},
      {{"--config", "block_q"},
       "ejk: --config must be FIELD=VALUE with an integer value, got 'block_q'; for example block_q=64\n"},
      {{"--device", "cuda:x"}, "ejk: --device must be cpu, cuda or cuda:N, got 'cuda:x'; for example cuda:0\n"},
      {{"--policy", "hope"}, "ejk: --policy must be autotune, heuristics or cached, got 'hope'; see --help\n"},
      {{"--form", "round"}, "ejk: flash_attention: --form must be one of batched, packed, got 'round'; see --help\n"},
      {{"--input", "quary"},
       "ejk: flash_attention: --input must name one of its inputs, got 'quary'; it has query, key, value, bias, "
       "attention_mask, q_segment_ids, kv_segment_ids, softmax_aux, dropout_seed, q_scale, k_scale, v_scale, "
       "cu_seqlens_q, cu_seqlens_k, seqused_k\n"},
  };
  for (const auto& [arguments, message] : wrong) {
    std::vector<std::string> line = {"explain", "flash_attention"};
    line.insert(line.end(), arguments.begin(), arguments.end());
    const ProcessResult result = ejk(line);
    EXPECT_EQ(result.exit_code, 2) << arguments[0];
    EXPECT_EQ(result.err, message);
    EXPECT_THAT(result.out, IsEmpty());
  }
}

TEST(EjkTool, numbers_are_checked_before_anything_runs) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"check", "--seconds", "-1"}, "--seconds must be a number of seconds, got '-1'"},
      {{"check", "--seconds", "nan"}, "--seconds must be a number of seconds, got 'nan'"},
      {{"bench", "--seconds", "inf"}, "--seconds must be a number of seconds, got 'inf'"},
      {{"doctor", "--seconds", "x"}, "--seconds must be a number of seconds, got 'x'"},
      {{"check", "--from", "-5"}, "--from must be a whole number of at least 0, got '-5'"},
      {{"run", "mean_pooling", "--seed", "1.5"}, "--seed must be a whole number of at least 0, got '1.5'"},
      {{"bench", "mean_pooling", "--threads", "-2"}, "--threads must be from 1 to 4096, got -2"},
      {{"bench", "mean_pooling", "--threads", "5000"}, "--threads must be from 1 to 4096, got 5000"},
      {{"check", "--dense", "--case", "odd_lengths"}, "be for random problems, got --case"},
      {{"check", "--table", "--device", "cuda"}, "--table must stand alone or with --json"},
      {{"bench", "mean_pooling", "--case", "nope"}, "--case must name one of its problems, got 'nope'"},
      {{"bench", "flash_attention", "--q_len", "16", "--baseline-config", "block_q=3"},
       "config field block_q of kernel cpu must be one of 16, 32, 64, 128, 256, 512, got 3"},
      {{"explain", "flash_attention", "--config", "block_q=99999999999999999999"},
       "--config must be FIELD=VALUE with an integer value, got 'block_q=99999999999999999999'"}};
  for (const auto& [line, message] : wrong) {
    const ProcessResult result = ejk(line);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_THAT(result.out, IsEmpty()) << message;
  }
}

TEST(EjkTool, values_are_asked_for_in_one_form) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"explain", "mean_pooling", "--platform"},
       "ejk explain mean_pooling: --platform must have a value, got none; see ejk explain mean_pooling --help\n"},
      {{"explain", "mean_pooling", "--kernel", ""},
       "ejk explain mean_pooling: --kernel must have a value, got ''; see ejk explain mean_pooling --help\n"},
      {{"cache", "list", "--root", ""},
       "ejk cache list: --root must have a value, got ''; see ejk cache list --help\n"},
      {{"explain", "flash_attention", "--q_len", "1", "--q_len", "2"},
       "ejk explain flash_attention: --q_len must be given once, got it twice; see ejk explain flash_attention "
       "--help\n"},
      {{"explain", "flash_attention", "--kernel", "cpu", "--kernel", "cpu"},
       "ejk explain flash_attention: --kernel must be given once, got it twice; see ejk explain flash_attention "
       "--help\n"},
      {{"explain", "flash_attention", "--causal=maybe"},
       "ejk explain flash_attention: --causal must be true or false, got 'maybe'; see ejk explain flash_attention "
       "--help\n"},
      {{"list", "--json=x"}, "ejk list: --json must be true or false, got 'x'; see ejk list --help\n"},
      {{"list", ""}, "ejk list: OP must have a value, got ''; see ejk list --help\n"},
      {{"--", "list"}, "ejk: the first word must be a verb, got '--'; see ejk --help\n"},
  };
  for (const auto& [arguments, error] : wrong) {
    const ProcessResult result = ejk(arguments);
    EXPECT_EQ(result.exit_code, 2) << error;
    EXPECT_EQ(result.err, error);
    EXPECT_THAT(result.out, IsEmpty());
  }
  EXPECT_THAT(ejk({"list", "explain"}).err, HasSubstr("the operation must be a registered one, got 'explain'"))
      << "a verb's name is a word like any other behind a verb";
  EXPECT_THAT(ejk({"explain", "flash_attention", "--causal=false", "--q_len", "8"}).out, Not(HasSubstr("causal=true")));
}

TEST(EjkTool, what_would_be_ignored_is_refused) {
  const std::string folder = ::testing::TempDir();
  const std::string empty = folder + "ejk_no_calls_" + std::to_string(::getpid());
  std::ofstream(empty).close();
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"bench", "--peaks", "--save", "x.json"},
       "ejk: --save must come with cases that are measured, got --peaks; leave one of them out\n"},
      {{"bench", "--overhead", "--baseline-kernel", "cpu"},
       "ejk: a baseline must come with cases that are measured, got --overhead; leave one of them out\n"},
      {{"bench", "--planning", "--fail-over", "5%"},
       "ejk: --fail-over must come with a baseline, got none; name one with --baseline FILE\n"},
      {{"bench", "--peaks", "--fail-over", "x"}, "ejk: --fail-over must be a percentage, got 'x'; for example 5%\n"},
      {{"bench", "--baseline", folder},
       "ejk: --baseline must be a file that ejk bench --save made, got no " + folder + "; check the path\n"},
      {{"explain", "mean_pooling", "--form", "chunked"},
       "ejk: mean_pooling: --form must be the one that the parameters make, got 'chunked', which they make 'batched'; "
       "set the parameter that decides it\n"},
      {{"bench", "--peaks", "mean_pooling"},
       "ejk: mean_pooling must come with cases that are measured, got --peaks; leave one of them out\n"},
      {{"bench", "--overhead", "mean_pooling", "--kernel", "cpu"},
       "ejk: what describes a call must come with cases that are measured, got --overhead; leave one of them out\n"},
      {{"bench", "mean_pooling", "--save", "/proc/x"},
       "ejk: --save must be a file that can be written, got /proc/x; check the folder and the disk\n"},
      {{"run", "mean_pooling", "--case", "minilm_sentences", "--seed", "7"},
       "ejk: --seed must be left out beside --case, whose data are its own, got 7; leave one of them out\n"},
      {{"check", "mean_pooling", "--seed", "7", "--from", "3"},
       "ejk: --from and --seconds must be for random problems, got one problem, --table or --cases as well; leave one "
       "of them out\n"},
      {{"compile", "--case", "odd_lengths"},
       "ejk: --case must come with its operation, got none; name it: ejk compile OP --case odd_lengths\n"},
      {{"compile", "mean_pooling", "--recorded", "calls.jsonl", "--case", "minilm_sentences"},
       "ejk: --case must be left out where recorded calls are compiled, got minilm_sentences; leave it out\n"},
      {{"cache", "export", "new.ejk", "--configs", "--programs"},
       "ejk: --programs must be given without --configs, got both; leave both out to export every record\n"},
      {{"tune", "--recorded", empty},
       "ejk: --recorded must name a file with calls, got " + empty +
           ", where there is none; record some with EJKERNEL_OPS_RECORD=" + empty + "\n"},
  };
  for (const auto& [arguments, error] : wrong) {
    const ProcessResult result = ejk(arguments);
    EXPECT_EQ(result.exit_code, 2) << error;
    EXPECT_EQ(result.err, error);
    EXPECT_THAT(result.out, IsEmpty());
  }
  std::filesystem::remove(empty);
}

TEST(EjkTool, what_cannot_be_written_is_no_success) {
  for (const std::string words : {"header", "list", "explain flash_attention --q_len 64 --json"}) {
    const std::string command = EJK_BINARY_DIR "/bin/ejk " + words + " >/dev/full";
    const ProcessResult result = run_process({"/bin/sh", "-c", command}, {});
    EXPECT_EQ(result.exit_code, 1) << words;
    EXPECT_THAT(result.err, StartsWith("ejk: ")) << words;
  }
}

TEST(EjkTool, a_second_operation_is_refused) {
  const ProcessResult result = ejk({"explain", "flash_attention", "mean_pooling"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err,
            "ejk explain flash_attention: a further word must be left out, got 'mean_pooling'; see ejk explain "
            "flash_attention --help\n");
}

TEST(EjkTool, what_a_shell_would_run_is_only_text) {
  const std::string marker = ::testing::TempDir() + "ejk_tool_test_injected";
  std::remove(marker.c_str());
  const std::vector<std::string> hostile = {
      "$(touch " + marker + ")", "`touch " + marker + "`", "; touch " + marker,          "| touch " + marker,
      "&& touch " + marker,      "\n touch " + marker,     "' ; touch " + marker + " #", "%n%n%s{}{0}",
      "../../etc/passwd",
  };
  for (const std::string& text : hostile) {
    for (const std::vector<std::string>& line :
         {std::vector<std::string>{text},
          {"list", text},
          {"list", "--platform", text},
          {"explain", text},
          {"check", text},
          {"check", "--kernel", text},
          {"check", "flash_attention", "--seed", text},
          {"check", "flash_attention", "--case", text},
          {"check", "flash_attention", "--dtype", text},
          {"run", "mean_pooling", "--case", text},
          {"bench", text},
          {"bench", "mean_pooling", "--case", text},
          {"bench", "mean_pooling", "--num_tokens", "1", "--baseline", text},
          {"bench", "mean_pooling", "--baseline-kernel", "cpu", "--fail-over", text}})
      EXPECT_EQ(ejk(line).exit_code, 2) << text;
    for (const char* option : {"--kernel", "--baseline-kernel", "--baseline-program"})
      EXPECT_NE(ejk({"bench", "mean_pooling", "--num_tokens", "1", option, text}).exit_code, 0) << option << text;
    for (const char* option : {"--dtype", "--form", "--input", "--kernel", "--platform", "--config", "--policy",
                               "--q_len", "--sliding_window", "--out_dtype", "--logits_soft_cap"}) {
      const ProcessResult result = ejk({"explain", "flash_attention", option, text});
      EXPECT_TRUE(result.exit_code == 2 || result.exit_code == 1) << option << " " << text << "\n" << result.out;
    }
  }
  EXPECT_FALSE(std::ifstream(marker).good()) << "an argument was run as a command";
}

TEST(EjkTool, control_characters_do_not_reach_the_terminal) {
  const ProcessResult result = ejk({"list", "\x1b[31mred\x07"});
  EXPECT_THAT(result.err, HasSubstr("'\\x1b[31mred\\x07'"));
  EXPECT_THAT(result.err, Not(HasSubstr("\x1b")));
}

TEST(EjkTool, a_malformed_environment_is_named) {
  const ProcessResult result = ejk({"explain", "flash_attention"}, {"EJKERNEL_PLATFORM=abacus"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err,
            "ejk: environment: EJKERNEL_PLATFORM must be auto, cuda, cpu, reference, xla, triton, pallas or hip, got "
            "'abacus'; correct the variable or unset it\n");
}

/// docs/errors.md: what must be so, what was given, what to do.
TEST(EjkTool, whatever_is_wrong_is_said_in_one_form) {
  const std::vector<std::vector<std::string>> wrong = {{"nothing"},
                                                       {"run", "nothing"},
                                                       {"list", "nothing"},
                                                       {"run", "--nothing"},
                                                       {"run", "mean_pooling", "--seed"},
                                                       {"run", "mean_pooling", "--seed", "x"},
                                                       {"run", "mean_pooling", "--json=x"},
                                                       {"run", "mean_pooling", "flash_attention"},
                                                       {"bench", "nothing"},
                                                       {"bench", "mean_pooling", "--fail-over", "5"},
                                                       {"check", "nothing"},
                                                       {"check", "--table", "--seed", "1"},
                                                       {"cache", "nothing"},
                                                       {"compile", "nothing"},
                                                       {"compile", "--arch", "sm_1"},
                                                       {"doctor", "nothing"},
                                                       {"explain"},
                                                       {"explain", "mean_pooling", "--platform", "abacus"},
                                                       {"run"},
                                                       {"tune", "nothing"}};
  for (const std::vector<std::string>& line : wrong) {
    const ProcessResult result = ejk(line);
    EXPECT_EQ(result.exit_code, 2) << line[0];
    EXPECT_THAT(result.err, ::testing::MatchesRegex("ejk[a-z_ ]*: .+ must .+, got .+; .+\n"));
  }
}

}  // namespace
}  // namespace ejk::testing
