// Every CUDA kernel of the library through the oldest and the newest compiler that it works with, on a machine without
// a GPU: each named problem's instance compiles for each architecture, in registers and without a warning.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "ejkernel/core/store.h"
#include "ejkernel/platform/cuda/program.h"
#include "tests/ejk_tool.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
using ::testing::ThrowsMessage;

/// Where `./dev setup nvrtc` puts the compilers.
std::string compiler(int major) {
  const std::string folder = major == 12 ? "cuda_nvrtc" : "cu" + std::to_string(major);
  return kSourceFolder / ".deps/nvrtc" / std::to_string(major) / "nvidia" / folder / "lib" /
         ("libnvrtc.so." + std::to_string(major));
}

class CompileKernels : public ::testing::TestWithParam<int> {
 protected:
  CompileKernels() : cache(fs::temp_directory_path() / ("ejk_compile_" + std::to_string(getpid()))) {}
  ~CompileKernels() override { fs::remove_all(cache); }
  void SetUp() override {
    if (fs::exists(compiler(GetParam()))) return;
#ifdef __x86_64__
    FAIL() << "no " << compiler(GetParam()) << ": ./dev setup nvrtc";
#else
    GTEST_SKIP() << "the compilers are pinned for x86_64, see ./dev";
#endif
  }
  void compiles(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "compile");
    const ProcessResult result =
        ejk(arguments, {"EJKERNEL_NVRTC=" + compiler(GetParam()), "EJKERNEL_CACHE_DIR=" + cache.string()});
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr(" threads, 0 refused"));
  }
  void compiles_all(const std::string& architecture) { compiles({"--arch", architecture}); }
  void compiles_sm90(const std::string& operation, const std::string& case_name,
                     const std::vector<std::string>& configs = {}) {
    std::vector<std::string> arguments = {operation, "--kernel", "cuda_sm90", "--case", case_name};
    arguments.insert(arguments.end(), configs.begin(), configs.end());
    compiles(std::move(arguments));
  }
  fs::path cache;
};

TEST_P(CompileKernels, an_error_is_told_with_the_compilers_words) {
  const cuda::Nvrtc nvrtc = cuda::load_nvrtc(compiler(GetParam()));
  EXPECT_EQ(nvrtc.major, GetParam());
  constexpr std::string_view kFile = "ejkernel/platform/cuda/device/empty.cu";
  const cuda::Compiled compiled = cuda::compile({.file = kFile, .instance = "ejk::empty"}, "sm_90a", nvrtc);
  EXPECT_FALSE(compiled.cubin.empty());
  EXPECT_THAT(compiled.lowered_name, HasSubstr("empty"));
  EXPECT_GT(compiled.report.registers, 0);
  EXPECT_TRUE(compiled.report.warnings.empty());
  EXPECT_THAT([&] { cuda::compile({.file = kFile, .instance = "ejk::nothing<3>"}, "sm_90a", nvrtc); },
              ThrowsMessage<cuda::CompileError>(HasSubstr("nothing")));
}

/// Where the archive is, nothing is compiled and no compiler is asked for: not even its version is put into the store.
TEST_P(CompileKernels, programs_of_an_archive_serve_without_their_compiler) {
  fs::create_directories(cache);
  const fs::path calls = cache / "calls.jsonl", archive = cache / "programs.ejk", elsewhere = cache / "elsewhere";
  write_text(calls, R"({"operation": "mean_pooling", "device": "cuda:0", "inputs": [)"
                    R"({"name": "x", "dtype": "bf16", "shape": [4, 256, 384]}]})"
                    "\n");
  const std::vector<std::string> here = {"EJKERNEL_NVRTC=" + compiler(GetParam()),
                                         "EJKERNEL_CACHE_DIR=" + cache.string()};
  EXPECT_EQ(ejk({"compile", "--recorded", calls, "--kernel", "cuda"}, here).exit_code, 0);
  EXPECT_EQ(ejk({"cache", "export", archive, "--programs"}, here).exit_code, 0);
  // A command that compiles does so beside an archive as well: what it made is in its store.
  const ProcessResult again =
      ejk({"compile", "--recorded", calls, "--kernel", "cuda"},
          {here[0], "EJKERNEL_CACHE_DIR=" + (cache / "again").string(), "EJKERNEL_CONFIG_PATH=" + archive.string()});
  EXPECT_THAT(again.out, Not(HasSubstr("  stored  ")));

  EXPECT_THAT(ejk({"doctor", "--seconds", "0"}, {"EJKERNEL_CONFIG_PATH=" + archive.string()}).out,
              HasSubstr("programs     compiled ahead: 2 for sm_90a\n"));
  use_store(elsewhere, {.read_only = {archive}});
  const Json records = Json::parse(ejk({"cache", "list", "--root", archive, "--json"}).out)["records"];
  ASSERT_EQ(records.size(), 2u);
  for (const Json& record : records) {
    std::istringstream key(record["key"].get<std::string>());
    std::string kind, digest, file, instance;
    std::getline(key, kind), std::getline(key, digest), std::getline(key, file), std::getline(key, instance);
    const auto program = cuda::load_program({.file = file, .instance = instance}, cuda::made_up_device("sm_90a"));
    EXPECT_EQ(program->compile_seconds(), 0);
    EXPECT_GT(program->report().registers, 0);
  }
  use_store("");
  EXPECT_FALSE(fs::exists(elsewhere));
}

class CompileKernelsOnNewest : public CompileKernels {};
/// Tiles of 192 rows pay in long full calls, unless 132 multiprocessors need a round more for them: with one sequence
/// of 2048 rows and 64 heads there are 704 such tiles (6 rounds; of 128 rows 8), with eight and 16 heads 1408 (11; 16).
TEST_P(CompileKernelsOnNewest, of_three_consumers_where_their_tiles_fill_the_last_round) {
  const auto program = [&](int batch, int q_len, int heads) {
    const std::string shape = fmt::format(R"("dtype": "bf16", "shape": [{}, {}, {}, 128])", batch, q_len, heads);
    fs::create_directories(cache);
    write_text(
        cache / "call.jsonl",
        fmt::format(R"({{"operation": "flash_attention", "device": "cuda:0", "inputs": [{{"name": "query", {0}}},)"
                    R"( {{"name": "key", {0}}}, {{"name": "value", {0}}}]}})"
                    "\n",
                    shape));
    return ejk({"compile", "--recorded", cache / "call.jsonl", "--kernel", "cuda_sm90", "--arch", "sm_90a"},
               {"EJKERNEL_NVRTC=" + compiler(GetParam()), "EJKERNEL_CACHE_DIR=" + cache.string()})
        .out;
  };
  EXPECT_THAT(program(8, 2048, 16), HasSubstr("FlashForwardCode{3, 80, "));
  EXPECT_THAT(program(1, 2048, 64), HasSubstr("FlashForwardCode{2, 128, "));
  EXPECT_THAT(program(8, 1024, 16), HasSubstr("FlashForwardCode{2, 128, "));
}
TEST_P(CompileKernelsOnNewest, of_every_named_problem) { compiles_all("sm_90a"); }
/// What long problems get and what the tuner tries, which named problems are too short for: in bf16, for every head
/// size with and without a mask.
TEST_P(CompileKernelsOnNewest, of_every_candidate_on_hopper) {
  for (const char* name : {"dense_d64_full", "dense_d64_causal", "dense_d128_full_in_order", "dense_d128_causal",
                           "dense_d256_full", "dense_d256_causal_in_order"})
    for (const char* operation : {"flash_attention", "flash_attention_backward"})
      compiles_sm90(operation, name, {"--candidates"});
}
TEST_P(CompileKernelsOnNewest, of_every_candidate_on_ampere) {
  for (const char* name : {"dense_d64_full", "llama3_8b_packed_prefill", "gemma2_9b_soft_cap"})
    compiles({"flash_attention", "--arch", "sm_80", "--kernel", "cuda_sm80", "--case", name, "--candidates"});
}
INSTANTIATE_TEST_SUITE_P(Nvrtc, CompileKernelsOnNewest, ::testing::Values(13));

class CompileKernelsOnOldest : public CompileKernels {};
/// What the heuristics choose at any length: where that varies, it is among the candidates.
TEST_P(CompileKernelsOnOldest, of_every_choice_of_the_heuristics_on_hopper) {
  for (const char* name : {"dense_d64_full", "dense_d128_full_in_order"})
    compiles_sm90("flash_attention", name, {"--candidates"});
  for (const char* name : {"dense_d64_causal", "dense_d128_causal", "dense_d256_full", "dense_d256_causal_in_order"})
    compiles_sm90("flash_attention", name);
  for (const char* name : {"dense_d64_full", "dense_d64_causal", "dense_d128_causal", "dense_d256_full"})
    compiles_sm90("flash_attention_backward", name);
}
TEST_P(CompileKernelsOnOldest, of_the_choice_of_the_heuristics_on_ampere) {
  for (const char* name : {"llama3_8b_packed_prefill", "gemma2_9b_soft_cap"})
    compiles({"flash_attention", "--arch", "sm_80", "--kernel", "cuda_sm80", "--case", name});
}
INSTANTIATE_TEST_SUITE_P(Nvrtc, CompileKernelsOnOldest, ::testing::Values(12));

/// The oldest and the newest architecture that the two know between them, and on the oldest compiler what the newest
/// does in every run.
class CompileKernelsLong : public CompileKernels {};
TEST_P(CompileKernelsLong, for_other_architectures) { compiles_all(GetParam() == 12 ? "sm_80,sm_90a" : "sm_100"); }
/// Configs that differ in their stages are one program, and none that is compiled spills.
TEST_P(CompileKernelsLong, of_every_config_whose_registers_suffice) {
  const ProcessResult result =
      ejk({"compile", "flash_attention", "--kernel", "cuda_sm90", "--case", "dense_d128_causal", "--every-config"},
          {"EJKERNEL_NVRTC=" + compiler(GetParam()), "EJKERNEL_CACHE_DIR=" + cache.string()});
  EXPECT_EQ(result.exit_code, 1) << "some are refused";
  EXPECT_THAT(result.out, HasSubstr("172 configs, 32 programs in "));
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("FAIL")) {
      EXPECT_THAT(line, HasSubstr("registers for a thread of"));
    }
  compiles({"mean_pooling", "--kernel", "cuda", "--case", "e5_mistral_packed", "--every-config"});
}
INSTANTIATE_TEST_SUITE_P(Nvrtc, CompileKernelsLong, ::testing::Values(12, 13),
                         [](const auto& info) { return std::to_string(info.param); });

INSTANTIATE_TEST_SUITE_P(Nvrtc, CompileKernels, ::testing::Values(12, 13),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace ejk::testing
