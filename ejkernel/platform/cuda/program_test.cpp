#include "ejkernel/platform/cuda/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ejkernel/platform/cuda/cubin_store.h"
#include "ejkernel/platform/cuda/sources.h"

namespace ejk::cuda {
namespace {

using ::testing::HasSubstr;

TEST(CompilerLog, of_a_clean_kernel) {
  const Report report = parse_log(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function '_ZN3ejk1fEv' for 'sm_90a'\n"
      "ptxas info    : Function properties for _ZN3ejk1fEv\n"
      "ptxas         .     16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem, 360 bytes cmem[0]\n"
      "ptxas info    : Compile time = 2.720 ms\n");
  EXPECT_EQ(report.registers, 168);
  EXPECT_EQ(report.stack_bytes, 16);
  EXPECT_EQ(report.spill_store_bytes, 0);
  EXPECT_EQ(report.spill_load_bytes, 0);
  EXPECT_EQ(report.shared_bytes, 1024);
  EXPECT_TRUE(report.warnings.empty());
}

TEST(CompilerLog, of_a_kernel_that_spills_and_serialises) {
  const Report report = parse_log(
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ...\n"
      "    40 bytes stack frame, 24 bytes spill stores, 36 bytes spill loads\n"
      "    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
      "ptxas info    : Used 255 registers\n"
      "a.cu(3): warning #177-D: variable \"x\" was declared but never referenced\n");
  EXPECT_EQ(report.registers, 255);
  EXPECT_EQ(report.stack_bytes, 40);
  EXPECT_EQ(report.spill_store_bytes, 32);
  EXPECT_EQ(report.spill_load_bytes, 40);
  EXPECT_EQ(report.shared_bytes, 0);
  EXPECT_EQ(report.warnings.size(), 2u);
}

TEST(CompilerLog, may_be_empty_or_cut_short) {
  EXPECT_EQ(parse_log("").registers, 0);
  EXPECT_EQ(parse_log("registers").registers, 0);
  EXPECT_EQ(parse_log(" bytes smem\n").shared_bytes, 0);
}

TEST(CudaArchitecture, is_specific_on_hopper_only) {
  EXPECT_EQ(architecture_of({.compute_capability = 80}), "sm_80");
  EXPECT_EQ(architecture_of({.compute_capability = 90}), "sm_90a");
  EXPECT_EQ(architecture_of({.compute_capability = 100}), "sm_100");
}

TEST(DeviceSources, include_nothing_that_the_library_does_not_carry) {
  ASSERT_FALSE(sources().empty());
  for (const Source& source : sources()) EXPECT_NO_THROW(reachable_sources(source.path)) << source.path;
}

TEST(DeviceSources, are_named_by_their_path) {
  const auto found = reachable_sources("ejkernel/platform/cuda/device/empty.cu");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(std::string(found[0].text), HasSubstr("__global__ void empty()"));
  EXPECT_THROW(reachable_sources("ejkernel/no_such_file.cu"), Internal);
}

TEST(DeviceSources, digest_depends_on_paths_and_texts) {
  const std::vector<Source> one = {{"a", "text"}}, other_path = {{"b", "text"}}, other_text = {{"a", "texts"}};
  EXPECT_EQ(digest_of(one), digest_of(one));
  EXPECT_FALSE(digest_of(one) == digest_of(other_path));
  EXPECT_FALSE(digest_of(one) == digest_of(other_text));
}

TEST(CubinKey, tells_instances_files_architectures_and_compilers_apart) {
  const ProgramSpec spec = {.file = "ejkernel/platform/cuda/device/empty.cu", .instance = "ejk::cuda::empty"};
  const RecordKey key = cubin_key(spec, "sm_90a", "13.0");
  EXPECT_EQ(key, cubin_key(spec, "sm_90a", "13.0"));

  ProgramSpec other_instance = spec, other_file = spec;
  other_instance.instance = "ejk::cuda::full";
  other_file.file = "ejkernel/platform/cuda/device/peak_multiply_add.cu";
  EXPECT_NE(key, cubin_key(other_instance, "sm_90a", "13.0"));
  EXPECT_NE(key, cubin_key(other_file, "sm_90a", "13.0"));
  EXPECT_NE(key, cubin_key(spec, "sm_80", "13.0"));
  EXPECT_NE(key, cubin_key(spec, "sm_90a", "13.1"));
  EXPECT_NE(key, cubin_key(spec, "sm_90a", "12.0"));
}

}  // namespace
}  // namespace ejk::cuda
