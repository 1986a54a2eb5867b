// T-36: 32 threads on the caches, under ThreadSanitizer.
#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "ejkernel/core/store.h"
#include "ejkernel/testing/process.h"
#include "ejkernel/testing/shared_caches.h"
#include "ejkernel/testing/temporary_folder.h"
#include "tools/table/rows.h"

namespace {
std::atomic<int64_t> reports{0};
}

/// ThreadSanitizer calls it after each report.
extern "C" __attribute__((visibility("default"))) void __tsan_on_report(const void*) { ++reports; }

namespace ejk::testing {

int64_t reports_of_a_race() {
  int64_t shared = 0;
  const auto add = [&] {
    for (int n = 0; n < 1000; ++n) ++shared;
  };
  std::thread one(add), other(add);
  one.join();
  other.join();
  return reports;
}

/// Another process makes a race first: a sanitizer that does not see that one says nothing about the caches.
RowResult threads_on_caches(const RowRequest& request) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const ProcessResult race = run_process({program, "race"});
  const TemporaryFolder folder(Medium::memory);
  use_store(folder / "store");
  const int64_t before = reports;
  RowResult result = hammer_shared_caches(32, request);
  const int64_t found = reports - before;
  use_store("");
  result.figures["reports"] = static_cast<double>(found);
  result.failures += found;
  if (race.out == "reports 0\n" || !race.out.starts_with("reports ")) {
    ++result.failures;
    result.notes.push_back("ThreadSanitizer reports no race where there is one: " + race.out + race.err.substr(0, 300));
  }
  return result;
}

}  // namespace ejk::testing
