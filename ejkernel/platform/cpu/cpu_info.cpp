#include "ejkernel/platform/cpu/cpu_info.h"

#include <pthread.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cmath>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "ejkernel/platform/cpu/amx.h"
#include "ejkernel/platform/cpu/simd_target.h"

namespace ejk::cpu {
namespace {

std::string machine() {
  utsname name;
  return uname(&name) == 0 ? name.machine : "unknown";
}

/// Value of the first "key : value" line of /proc/cpuinfo with this key.
std::string cpuinfo_value(std::string_view key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1) != key) continue;
    const size_t begin = line.find_first_not_of(' ', colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

std::string product() {
  if (std::string name = cpuinfo_value("model name"); !name.empty()) return name;
  // Arm: Linux gives numbers, not names.
  const std::string implementer = cpuinfo_value("CPU implementer"), part = cpuinfo_value("CPU part");
  return implementer.empty() ? machine() : machine() + " implementer " + implementer + " part " + part;
}

/// "32768K" in bytes.
int64_t parse_size(const std::string& text) {
  int64_t bytes = 0;
  size_t at = 0;
  for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])); ++at)
    bytes = bytes * 10 + (text[at] - '0');
  if (at == text.size()) return bytes;
  return text[at] == 'K' ? bytes << 10 : text[at] == 'M' ? bytes << 20 : text[at] == 'G' ? bytes << 30 : bytes;
}

int64_t last_level_cache_bytes() {
  int64_t bytes = 0;
  for (int index = 0, deepest = 0;; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
    int level = 0;
    std::string size;
    if (!(std::ifstream(folder + "/level") >> level) || !(std::ifstream(folder + "/size") >> size)) break;
    if (level > deepest) deepest = level, bytes = parse_size(size);
  }
  if (bytes > 0) return bytes;
  for (int name : {_SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE})
    if (const long size = sysconf(name); size > 0) return size;
  return 0;
}

int affinity_cores() {
  // The kernel refuses masks smaller than its own; 1024 CPUs are only the C library's default.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(static_cast<size_t>(cpus)),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    if (sched_getaffinity(0, bytes, set.get()) == 0) return std::max(1, CPU_COUNT_S(bytes, set.get()));
  }
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

/// Smallest of two limits where 0 is "none".
double stricter(double a, double b) { return a == 0 ? b : b == 0 ? a : std::min(a, b); }

/// Quota over period of one group; 0 for none. Version 2 keeps both in cpu.max ("max 100000" without a limit).
double quota_v2(const std::string& folder) {
  std::string quota;
  double period = 0;
  std::ifstream file(folder + "/cpu.max");
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::max(0.0, std::strtod(quota.c_str(), nullptr) / period);
}

double quota_v1(const std::string& folder) {
  double quota = 0, period = 0;
  if (!(std::ifstream(folder + "/cpu.cfs_quota_us") >> quota) ||
      !(std::ifstream(folder + "/cpu.cfs_period_us") >> period))
    return 0;
  return quota > 0 && period > 0 ? quota / period : 0;
}

template <class Quota>
double quota_up_to_root(const std::string& mount, std::string group, Quota quota) {
  double limit = quota(mount);  // a container sees its own group here, whatever the path says
  for (; group.size() > 1; group.resize(group.find_last_of('/'))) limit = stricter(limit, quota(mount + group));
  return limit;
}

/// One line of /proc/self/cgroup: "hierarchy:controllers:path", "0::path" in version 2.
double quota_of_line(const std::string& root, const std::string& line) {
  const size_t first = line.find(':'), second = line.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return 0;
  const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
  if (controllers.empty()) return quota_up_to_root(root + "/sys/fs/cgroup", group, quota_v2);
  if (("," + controllers + ",").find(",cpu,") == std::string::npos) return 0;
  return stricter(quota_up_to_root(root + "/sys/fs/cgroup/" + controllers, group, quota_v1),
                  quota_up_to_root(root + "/sys/fs/cgroup/cpu", group, quota_v1));
}

std::atomic<int> known_cores{0};

}  // namespace

const CpuInfo& cpu_info() {
  static const CpuInfo info = [] {
    CpuInfo cpu{.product = product(), .isa = machine() + " ", .cache_bytes = last_level_cache_bytes()};
    for (const char c : simd_target()) cpu.isa += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (has_amx()) cpu.isa += " amx";
    return cpu;
  }();
  return info;
}

int cgroup_cores(const std::string& root) {
  double limit = 0;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) limit = stricter(limit, quota_of_line(root, line));
  return static_cast<int>(std::ceil(std::min(limit, 1e6)));
}

int usable_cores() {
  if (const int cores = known_cores.load(std::memory_order_relaxed); cores > 0) return cores;
  static const bool forgets_in_child = pthread_atfork(nullptr, nullptr, [] { known_cores.store(0); }) == 0;
  const int quota = cgroup_cores();
  const int cores = quota > 0 ? std::min(affinity_cores(), quota) : affinity_cores();
  if (forgets_in_child) known_cores.store(cores, std::memory_order_relaxed);
  return cores;
}

}  // namespace ejk::cpu
