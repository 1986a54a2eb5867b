// What the host processor is, and how much of it this process may use.
#pragma once

#include <cstdint>
#include <string>

namespace ejk::cpu {

struct CpuInfo {
  std::string product;  ///< "AMD EPYC 9575F"
  /// "x86_64 avx3_zen4", the machine and Highway's name of what its kernels are compiled for; then "amx", with AMX
  std::string isa;
  int64_t cache_bytes = 0;  ///< of the last-level cache; 0 when the system does not say
};
/// Read once.
const CpuInfo& cpu_info();

/// Cores that affinity and cgroup quota leave to this process, at least 1. Read once, and again in a forked child.
int usable_cores();

/// Cores that the cgroup's CPU quota allows, rounded up; 0 without a quota. Version 2 and version 1; every group from
/// the process's own up to the root counts. `root` is where /proc and /sys are: tests give a tree of their own.
int cgroup_cores(const std::string& root = "");

}  // namespace ejk::cpu
