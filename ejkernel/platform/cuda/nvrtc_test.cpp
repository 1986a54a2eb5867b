// Where the compiler is looked for. Files that are named like it are enough: nothing is loaded.
#include "ejkernel/platform/cuda/nvrtc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/testing/fake_cuda.h"

namespace ejk::cuda {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A folder for environments, and variables that are given back.
class NvrtcSearched : public ::testing::Test {
 protected:
  NvrtcSearched() {
    std::string pattern = fs::temp_directory_path() / "ejkernel_nvrtc_XXXXXX";
    folder = mkdtemp(pattern.data());
  }
  ~NvrtcSearched() override {
    for (const auto& [name, value] : former) value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
    environment::reload();
    use_nvrtc(nullptr);
    fs::remove_all(folder);
  }
  void set(const std::string& name, const std::string& value) {
    const char* before = std::getenv(name.c_str());
    former.emplace_back(name, before != nullptr ? std::optional<std::string>(before) : std::nullopt);
    setenv(name.c_str(), value.c_str(), 1);
    environment::reload();
  }
  std::string make(const std::string& path) const {
    fs::create_directories((folder / path).parent_path());
    std::ofstream(folder / path) << "not a library";
    return folder / path;
  }

  testing::FakeCuda fake;  // its driver is of CUDA 13
  fs::path folder;
  std::vector<std::pair<std::string, std::optional<std::string>>> former;
};

TEST_F(NvrtcSearched, a_named_file_is_the_only_place) {
  const std::string path = make("elsewhere/libnvrtc.so.13");
  set("EJKERNEL_NVRTC", path);
  const NvrtcSearch search = search_nvrtc();
  ASSERT_TRUE(search.found);
  EXPECT_EQ(search.found->path, path);
  EXPECT_EQ(search.found->place, "EJKERNEL_NVRTC");
  EXPECT_THAT([&] { load_nvrtc(path); }, ThrowsMessage<Unsupported>(HasSubstr("does not load")));
}

TEST_F(NvrtcSearched, a_named_file_that_is_missing_is_not_replaced_by_another) {
  set("EJKERNEL_NVRTC", folder / "nowhere.so");
  use_nvrtc(nullptr);
  EXPECT_EQ(nvrtc_file(), nullptr);
  EXPECT_THAT([] { nvrtc(); }, ThrowsMessage<Unsupported>(AllOf(HasSubstr("nowhere.so, where there is no such file"),
                                                                HasSubstr("pip install nvidia-cuda-nvrtc"))));
}

TEST_F(NvrtcSearched, the_wheels_of_the_active_environment_come_before_a_toolkit) {
  const std::string wheel = make("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
  make("toolkit/lib64/libnvrtc.so.13");
  set("VIRTUAL_ENV", folder / "venv");
  set("CUDA_HOME", folder / "toolkit");
  const NvrtcSearch search = search_nvrtc();
  ASSERT_TRUE(search.found);
  EXPECT_EQ(search.found->path, wheel);
  EXPECT_EQ(search.found->place, "Python's nvidia wheels");
}

TEST_F(NvrtcSearched, the_drivers_own_major_version_comes_before_an_older_one_of_a_better_place) {
  make("venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
  const std::string toolkit = make("toolkit/lib64/libnvrtc.so.13");
  set("VIRTUAL_ENV", folder / "venv");
  set("CUDA_HOME", folder / "toolkit");
  const NvrtcSearch search = search_nvrtc();
  ASSERT_TRUE(search.found);
  EXPECT_THAT(search.found->path, HasSubstr("libnvrtc.so.13"));
  // A machine may have the wheel of 13 as well: then that one.
  EXPECT_TRUE(search.found->place != "CUDA toolkit" || search.found->path == toolkit);
}

TEST_F(NvrtcSearched, a_files_identity_changes_with_it) {
  const std::string path = make("libnvrtc.so.13");
  set("EJKERNEL_NVRTC", path);
  const std::string before = search_nvrtc().found->identity;
  EXPECT_EQ(search_nvrtc().found->identity, before);
  std::ofstream(path) << "another, longer file";
  EXPECT_NE(search_nvrtc().found->identity, before);
}

}  // namespace
}  // namespace ejk::cuda
