#include "ejkernel/runtime/single_flight.h"

#include <unistd.h>

#include <mutex>
#include <set>

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
  try {
    claim_.emplace(store(), "tuning " + key);
  } catch (...) {
    land();
    throw;
  }
}

void SingleFlight::land() {
  const std::lock_guard lock(in_flight_mutex);
  in_flight().erase(key_);
}

SingleFlight::~SingleFlight() {
  if (!claim_) return;
  claim_.reset();
  land();
}

}  // namespace ejk
