// Runs a program and keeps what it says; no shell is involved.
#pragma once

#include <string>
#include <vector>

namespace ejk::testing {

struct ProcessResult {
  int exit_code = -1;  ///< 128 + signal when a signal ended it
  std::string out, err;
};

/// `arguments` begins with the program. `environment` holds "NAME=value" entries that come over this process's own.
ProcessResult run_process(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {},
                          const std::string& folder = "");

}  // namespace ejk::testing
