#include "ejkernel/runtime/single_flight.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <set>
#include <string>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/store.h"

namespace ejk {
namespace {

std::mutex in_flight_mutex;
std::set<std::string>& in_flight() {
  static auto* keys = new std::set<std::string>;  // calls may come while the process exits
  return *keys;
}

}  // namespace

// With the process's number: a forked child must not take its parent's flights for its own.
SingleFlight::SingleFlight(const std::string& key) : key_(std::to_string(getpid()) + " " + key) {
  {
    const std::lock_guard lock(in_flight_mutex);
    if (!in_flight().insert(key_).second) return;
  }
  ours_ = true;
  const std::string& root = store().root();
  const std::string folder = root + "/tuning";
  if (root.empty()) return;
  mkdir(root.c_str(), 0700);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return;
  path_ = folder + "/" + to_string(digest_of(key));
  file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file_ < 0 || flock(file_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  // Another process has it.
  close(file_);
  file_ = -1;
  ours_ = false;
  const std::lock_guard lock(in_flight_mutex);
  in_flight().erase(key_);
}

SingleFlight::~SingleFlight() {
  if (!ours_) return;
  if (file_ >= 0) {
    unlink(path_.c_str());  // while it is locked: whoever opened it before finds the record in the store first
    close(file_);
  }
  const std::lock_guard lock(in_flight_mutex);
  in_flight().erase(key_);
}

}  // namespace ejk
