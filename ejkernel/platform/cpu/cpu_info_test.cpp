#include "ejkernel/platform/cpu/cpu_info.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "ejkernel/core/error.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cpu/simd_target.h"
#include "ejkernel/runtime/devices.h"

namespace ejk::cpu {
namespace {

/// A folder that stands for "/", with files as the kernel shows them.
class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ejk_cgroup_XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~FakeRoot() { std::filesystem::remove_all(root_); }
  FakeRoot& write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ + path).substr(0, (root_ + path).find_last_of('/')));
    std::ofstream(root_ + path) << text << "\n";
    return *this;
  }
  int cores() const { return cgroup_cores(root_); }

 private:
  std::string root_;
};

TEST(CgroupCores, version_2_takes_the_strictest_group_up_to_the_root) {
  FakeRoot root;
  root.write("/proc/self/cgroup", "0::/user/job");
  EXPECT_EQ(root.cores(), 0) << "no file, no quota";
  root.write("/sys/fs/cgroup/user/job/cpu.max", "max 100000");
  EXPECT_EQ(root.cores(), 0);
  root.write("/sys/fs/cgroup/user/job/cpu.max", "400000 100000");
  EXPECT_EQ(root.cores(), 4);
  root.write("/sys/fs/cgroup/user/cpu.max", "150000 100000");
  EXPECT_EQ(root.cores(), 2) << "one and a half cores need two threads";
  root.write("/sys/fs/cgroup/cpu.max", "50000 100000");
  EXPECT_EQ(root.cores(), 1);
}

TEST(CgroupCores, version_1_reads_the_cpu_controller) {
  FakeRoot root;
  root.write("/proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/job\n2:cpuset:/other");
  EXPECT_EQ(root.cores(), 0);
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000");
  EXPECT_EQ(root.cores(), 0) << "-1 is no limit";
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "300000");
  EXPECT_EQ(root.cores(), 3);
}

TEST(CgroupCores, damaged_files_count_as_no_quota) {
  FakeRoot root;
  EXPECT_EQ(root.cores(), 0);
  root.write("/proc/self/cgroup", "nonsense\n0:\n0::/a").write("/sys/fs/cgroup/a/cpu.max", "lots of it");
  EXPECT_EQ(root.cores(), 0);
}

TEST(CpuInfo, usable_cores_respect_affinity) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), CPU_COUNT(&set));
}

TEST(CpuInfo, names_the_machine_and_the_instruction_set_in_use) {
  const CpuInfo& info = cpu_info();
  EXPECT_FALSE(info.product.empty());
  EXPECT_NE(info.isa.find(' '), std::string::npos) << info.isa;
  EXPECT_GE(info.cache_bytes, 0);
  ASSERT_FALSE(simd_targets().empty());
  EXPECT_EQ(simd_target(), simd_targets().front());
}

TEST(CpuInfo, tests_can_choose_the_instruction_set) {
  for (const std::string_view name : simd_targets()) {
    const ScopedSimdTarget scoped(name);
    EXPECT_EQ(simd_target(), name);
  }
  EXPECT_EQ(simd_target(), simd_targets().front());
}

TEST(Devices, the_cpu_is_described_once) {
  const DeviceProperties& cpu = device_properties({});
  EXPECT_EQ(&cpu, &device_properties({}));
  EXPECT_EQ(cpu.product, cpu_info().product);
  EXPECT_EQ(cpu.architecture, cpu_info().isa);
  EXPECT_GE(cpu.num_units, 1);
  EXPECT_EQ(device_fingerprint({}),
            "cpu|" + cpu.product + "|" + cpu.architecture + "|" + std::to_string(cpu.num_units));
  EXPECT_EQ(device_kind({}), "cpu");
}

TEST(Devices, a_gpu_that_is_not_here_is_refused_with_a_sentence) {
  try {
    device_properties({.kind = DeviceKind::cuda, .ordinal = 1000});
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("cuda:1000 was asked for"), std::string::npos) << error.what();
  }
  EXPECT_THROW(device_fingerprint({.kind = DeviceKind::cuda, .ordinal = 1000}), Unsupported);
}

}  // namespace
}  // namespace ejk::cpu
