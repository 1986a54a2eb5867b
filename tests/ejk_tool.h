// What tests of the command-line tool run: the tool that this build made.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "ejkernel/testing/process.h"

namespace ejk::testing {

inline ProcessResult ejk(std::vector<std::string> arguments, const std::vector<std::string>& environment = {}) {
  arguments.insert(arguments.begin(), EJK_BINARY_DIR "/bin/ejk");
  return run_process(arguments, environment);
}

inline nlohmann::json json_of(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, ::testing::IsEmpty());
  return nlohmann::json::parse(result.out);
}

/// Of `ejk tune --json`: a line for each problem.
inline nlohmann::json json_lines(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  nlohmann::json lines = nlohmann::json::array();
  std::istringstream stream(result.out);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace ejk::testing
