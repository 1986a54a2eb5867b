// What a profiler and a trace's reader get of a program's calls, from a process of its own: both are asked for when it
// starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/ejk_tool.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

using ::testing::MatchesRegex;
using Json = nlohmann::json;

class TraceTool : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return (scratch.path / name).string(); }
  static void run(const std::vector<std::string>& environment) {
    const ProcessResult result = ejk({"run", "flash_attention", "--q_len", "32", "--platform", "cpu"}, environment);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  const ScratchFolder scratch{"trace"};
};

const char* const kLabel = "ejkernel.flash_attention@[0-9]+:[0-9a-f]{32}";

TEST_F(TraceTool, every_run_is_an_event_of_a_chrome_trace) {
  run({"EJKERNEL_TRACE=" + file("trace.json")});
  run({"EJKERNEL_TRACE=" + file("trace.json")});  // a second process adds to it
  const std::string text = read_text(file("trace.json"));
  const size_t end = text.rfind(",\n");
  ASSERT_NE(end, std::string::npos) << text;
  const Json events = Json::parse(text.substr(0, end) + "]");
  ASSERT_GE(events.size(), 2u);
  std::set<int64_t> processes;
  for (const Json& event : events) {
    EXPECT_EQ(event["name"], "flash_attention");
    EXPECT_EQ(event["ph"], "X");
    EXPECT_GT(event["dur"], 0);
    EXPECT_EQ(event["args"]["kernel"], "cpu");
    EXPECT_THAT(event["args"]["config"].get<std::string>(), ::testing::HasSubstr("block_q="));
    EXPECT_EQ(event["args"]["device"], "cpu");
    EXPECT_THAT(event["args"]["label"].get<std::string>(), MatchesRegex(kLabel));
    processes.insert(event["pid"].get<int64_t>());
  }
  EXPECT_EQ(processes.size(), 2u);
}

TEST_F(TraceTool, without_stamps_events_have_no_label) {
  run({"EJKERNEL_TRACE=" + file("trace.json"), "EJKERNEL_OPS_STAMP=none"});
  EXPECT_EQ(read_text(file("trace.json")).find("ejkernel.flash_attention@"), std::string::npos);
}

TEST_F(TraceTool, a_trace_that_cannot_be_written_fails_no_call) { run({"EJKERNEL_TRACE=" + scratch.path.string()}); }

#if EJK_TEST_NVTX

TEST_F(TraceTool, a_profiler_gets_a_range_with_the_label_around_each_run) {
  const std::string listener = std::string(EJK_BINARY_DIR) + "/plugins/nvtx_listener.so";
  run({"NVTX_INJECTION64_PATH=" + listener, "EJK_TEST_NVTX_FILE=" + file("ranges")});
  const std::string told = read_text(file("ranges"));
  EXPECT_THAT(told, MatchesRegex("(" + std::string(kLabel) + "\nend\n)+"));
}

TEST_F(TraceTool, without_stamps_a_profiler_gets_no_ranges) {
  const std::string listener = std::string(EJK_BINARY_DIR) + "/plugins/nvtx_listener.so";
  run({"NVTX_INJECTION64_PATH=" + listener, "EJK_TEST_NVTX_FILE=" + file("ranges"), "EJKERNEL_OPS_STAMP=none"});
  EXPECT_FALSE(std::filesystem::exists(file("ranges")));
}

#endif

}  // namespace
}  // namespace ejk::testing
