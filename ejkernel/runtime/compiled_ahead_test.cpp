// Kernels that come compiled serve machines that have another compiler, or none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/store.h"
#include "ejkernel/platform/cuda/cubin_store.h"
#include "ejkernel/platform/cuda/program.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/temporary_folder.h"

namespace ejk::testing {
namespace {

using cuda::ahead_key;
using cuda::ahead_key_of;
using cuda::cubin_key;

const cuda::ProgramSpec kSpec = {.file = "ejkernel/platform/cuda/device/empty.cu", .instance = "ejk::copy<1>"};

/// The driver is of CUDA 13.
class CompiledAhead : public ::testing::Test {
 protected:
  /// What the store holds compiled goes into the folder, for drivers of that CUDA version.
  void keep_for(int cuda_major) {
    const auto record = first_store.find(cubin_key(kSpec, "sm_90a", "13.0"));
    ASSERT_TRUE(record);
    ASSERT_TRUE(Store(folder.path()).put(ahead_key(kSpec, "sm_90a", cuda_major), *record));
  }
  /// As another process on another machine, to which the folder came.
  void go_elsewhere() {
    fake.restart();
    use_store(new_root(), {.read_only = {folder.path()}});
  }
  std::string new_root() const { return fake.store_root() + "/elsewhere"; }
  static std::shared_ptr<const cuda::Program> load() { return cuda::load_program(kSpec, cuda::device_properties(0)); }

  FakeCuda fake;
  const Store& first_store = store();
  TemporaryFolder folder;
};

TEST_F(CompiledAhead, asks_for_no_compiler_and_writes_nothing) {
  const auto compiled = load();
  EXPECT_EQ(fake.compilations(), 1);
  keep_for(13);
  go_elsewhere();
  const auto loaded = load();
  EXPECT_EQ(fake.compilations(), 1);
  EXPECT_EQ(fake.calls("cuModuleLoadData"), 2);
  EXPECT_EQ(loaded->report().registers, compiled->report().registers);
  EXPECT_EQ(loaded->compile_seconds(), 0);
  EXPECT_FALSE(std::filesystem::exists(new_root())) << "the compiler's version would be in the store";
}

TEST_F(CompiledAhead, is_for_drivers_that_take_its_code) {
  load();
  keep_for(14);
  go_elsewhere();
  load();
  EXPECT_EQ(fake.compilations(), 2) << "a driver of CUDA 13 takes no code of CUDA 14";
  keep_for(12);
  std::filesystem::remove_all(new_root());
  go_elsewhere();
  load();
  EXPECT_EQ(fake.compilations(), 2) << "and that of CUDA 12";
}

TEST_F(CompiledAhead, is_passed_over_where_a_compiler_is_named) {
  load();
  keep_for(13);
  go_elsewhere();
  setenv("EJKERNEL_NVRTC", "/any/libnvrtc.so.13", 1);
  environment::reload();
  load();
  unsetenv("EJKERNEL_NVRTC");
  environment::reload();
  EXPECT_EQ(fake.compilations(), 2);
}

TEST_F(CompiledAhead, keys_are_made_of_this_builds_cubins_alone) {
  const RecordKey cubin = cubin_key(kSpec, "sm_90a", "13.0"), ahead = ahead_key(kSpec, "sm_90a", 13);
  EXPECT_EQ(ahead_key_of(cubin), ahead);
  EXPECT_EQ(ahead_key_of(ahead), ahead);
  EXPECT_EQ(ahead_key_of(ahead_key(kSpec, "sm_80", 12)), ahead_key(kSpec, "sm_80", 12));
  EXPECT_EQ(ahead_key_of(cubin_key(kSpec, "sm_90a", "13.5")), std::nullopt) << "not of the compiler that is here";

  const auto with = [&](std::string_view old_text, std::string_view new_text) {
    RecordKey other = cubin;
    other.text.replace(other.text.find(old_text), old_text.size(), new_text);
    return other;
  };
  const std::string digest = cubin.text.substr(6, 32);
  for (const RecordKey& other : {with(digest, std::string(32, '0')), with("empty.cu", "none.cu"),
                                 with("cubin", "config"), with("-std=c++20", ""), with("NVRTC 13.0", "NVRTC"),
                                 with("\nNVRTC 13.0", ""), with("sm_90a", "sm_80"), RecordKey{}})
    EXPECT_EQ(ahead_key_of(other), std::nullopt) << other.text;
}

}  // namespace
}  // namespace ejk::testing
