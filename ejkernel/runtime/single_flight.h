// At most one tuning of a problem at a time, among the threads of this process and all processes that share the store.
#pragma once

#include <optional>
#include <string>

#include "ejkernel/core/store_claim.h"

namespace ejk {

/// Holds the right to tune a key while it lives, if nobody else does. Nobody waits. Without a store other processes are
/// not told, and the worst is that both measure.
class SingleFlight {
 public:
  explicit SingleFlight(const std::string& key);
  ~SingleFlight();
  SingleFlight(const SingleFlight&) = delete;
  SingleFlight& operator=(const SingleFlight&) = delete;
  bool is_ours() const { return claim_ && claim_->is_ours(); }

 private:
  void land();

  std::string key_;
  std::optional<StoreClaim> claim_;  ///< towards other processes; none: another thread has the key
};

}  // namespace ejk
