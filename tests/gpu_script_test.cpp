// The front door to a machine with a GPU, as far as it can be opened without one: the programs of a bundle are stood in
// for by scripts that say how they were called.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "ejkernel/testing/process.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class GpuScript : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder / "bin");
    fs::copy_file(kSourceFolder / "tools/gpu/run.sh", folder / "run.sh");
    write_text(folder / "commit", "0123456789ab\n");
    for (const char* program : {"ejk", "ejkernel_device_tests", "ejkernel_table"}) write(program, "echo \"$0 $*\"");
  }
  void write(const std::string& program, const std::string& body) const {
    const fs::path path = folder / "bin" / program;
    write_text(path, "#!/bin/sh\n" + body + "\n");
    fs::permissions(path, fs::perms::owner_all);
  }
  ProcessResult run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"bash", (folder / "run.sh").string()});
    return run_process(arguments);
  }

  const ScratchFolder scratch{"gpu script"};
  const fs::path& folder = scratch.path;
  const std::string out = (folder / "out").string();
};

TEST_F(GpuScript, runs_the_parts_in_order_and_keeps_their_logs) {
  const ProcessResult result = run({"--out", out, "tests", "bench"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("== tests: done"), HasSubstr("== bench: done")));
  EXPECT_THAT(read_text(out + "/tests.log"), HasSubstr("ejkernel_device_tests --gtest_brief=1"));
  EXPECT_THAT(read_text(out + "/bench.log"), HasSubstr("ejk bench flash_attention --device cuda"));
  EXPECT_THAT(read_text(out + "/cuda_overhead.json"), HasSubstr("ejk bench --overhead --device cuda --json"));
}

TEST_F(GpuScript, hands_arguments_to_the_only_part) {
  const ProcessResult result = run({"--out", out, "tests", "--", "--gtest_filter=A b"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(read_text(out + "/tests.log"), HasSubstr("--gtest_filter=A b"));
  EXPECT_EQ(run({"--out", out, "tests", "bench", "--", "x"}).exit_code, 2);
}

TEST_F(GpuScript, goes_on_after_a_failure_and_says_so_at_the_end) {
  write("ejkernel_table", "echo \"$0 $*\"; [ \"$1\" != T-20-cuda ]");
  const ProcessResult result = run({"--out", out, "table", "doctor"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("== table: FAILED"), HasSubstr("== doctor: done")));
  EXPECT_THAT(read_text(out + "/table.log"), HasSubstr("ejkernel_table T-27 --commit 0123456789ab"));
  EXPECT_TRUE(fs::is_directory(out + "/benchmarks/results/reliability"));
}

TEST_F(GpuScript, times_the_processor_in_each_arithmetic) {
  write("ejk", "echo \"$0 $*\"; echo '  \"percent_of_peak\": 50'");
  const ProcessResult result = run({"--out", out, "cpu", "--", "--threads=3"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("ejk check --seconds 60\n"), HasSubstr("ejkernel_device_tests --gtest_filter=Amx.*"),
                    HasSubstr("ejk check flash_attention_backward --kernel cpu --dtype bf16"),
                    HasSubstr("cpu_flash_attention_bf16_dot_1.json:\n  \"percent_of_peak\": 50")));
  EXPECT_THAT(read_text(out + "/cpu_flash_attention_backward_bf16_dot_0.json"),
              AllOf(HasSubstr("bench flash_attention_backward --dtype bf16"),
                    HasSubstr("--config bf16_dot=0 --json --threads=3")));
  const bool has_amx = read_text("/proc/cpuinfo").find(" amx_bf16") != std::string::npos;
  EXPECT_EQ(fs::exists(out + "/cpu_flash_attention_bf16_dot_2.json"), has_amx);
}

TEST_F(GpuScript, stops_where_there_is_no_gpu) {
  write("ejkernel_device_tests", "echo 'there is none here' >&2; exit 2");
  const ProcessResult result = run({"--out", out, "bench"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("there is none here"));
  EXPECT_THAT(result.out, Not(HasSubstr("== bench")));
}

TEST_F(GpuScript, explains_wrong_arguments) {
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{}, {"--out"}, {"--out", out, "frobnicate"}, {"bench"}}) {
    const ProcessResult result = run(wrong);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("usage: run.sh --out DIR"));
  }
  EXPECT_EQ(run({"--help"}).exit_code, 0);
}

TEST(DevGpu, says_plainly_that_there_is_no_gpu) {
  if (fs::exists("/dev/nvidia0")) GTEST_SKIP() << "there is one";
  const ProcessResult result = run_process({(kSourceFolder / "dev").string(), "gpu"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("there is no NVIDIA GPU here"));
}

}  // namespace
}  // namespace ejk::testing
