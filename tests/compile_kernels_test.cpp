// Every CUDA kernel of the library through the oldest and the newest compiler that it works with, on a machine without
// a GPU: each named problem's instance compiles for each architecture, in registers and without a warning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "ejkernel/platform/cuda/program.h"
#include "tests/ejk_tool.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
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
    if (!fs::exists(compiler(GetParam()))) GTEST_SKIP() << "no " << compiler(GetParam()) << ": ./dev setup nvrtc";
  }
  void compiles_all(const std::string& architecture) {
    const ProcessResult result = ejk({"compile", "--arch", architecture}, {"EJKERNEL_NVRTC=" + compiler(GetParam()),
                                                                           "EJKERNEL_CACHE_DIR=" + cache.string()});
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr(" threads, 0 refused"));
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

class CompileKernelsOnNewest : public CompileKernels {};
TEST_P(CompileKernelsOnNewest, of_every_named_problem) { compiles_all("sm_90a"); }
INSTANTIATE_TEST_SUITE_P(Nvrtc, CompileKernelsOnNewest, ::testing::Values(13));

/// The oldest and the newest architecture that the two know between them, and on the oldest compiler what the newest
/// does in every run.
class CompileKernelsLong : public CompileKernels {};
TEST_P(CompileKernelsLong, for_other_architectures) { compiles_all(GetParam() == 12 ? "sm_80,sm_90a" : "sm_100"); }
INSTANTIATE_TEST_SUITE_P(Nvrtc, CompileKernelsLong, ::testing::Values(12, 13),
                         [](const auto& info) { return std::to_string(info.param); });

INSTANTIATE_TEST_SUITE_P(Nvrtc, CompileKernels, ::testing::Values(12, 13),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace ejk::testing
