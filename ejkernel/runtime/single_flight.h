// At most one tuning of a problem at a time, among the threads of this process and all processes that share the store.
#pragma once

#include <string>

namespace ejk {

/// Holds the right to tune a key while it lives, if nobody else does. Nobody waits. Other processes are told by a
/// locked file in the store's folder, which the system unlocks when its owner ends, however it ends; without a store
/// they are not told, and the worst is that both measure.
class SingleFlight {
 public:
  explicit SingleFlight(const std::string& key);
  ~SingleFlight();
  SingleFlight(const SingleFlight&) = delete;
  SingleFlight& operator=(const SingleFlight&) = delete;
  bool is_ours() const { return ours_; }

 private:
  std::string key_, path_;
  int file_ = -1;
  bool ours_ = false;
};

}  // namespace ejk
