// `ejk tune --recorded` as its user meets it: calls that other processes made, recorded into a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/ejk_tool.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class RecordedTool : public ::testing::Test {
 protected:
  std::string file() const { return (scratch.path / "calls").string(); }
  ProcessResult run(const std::vector<std::string>& words) const {
    return ejk(words, {"EJKERNEL_CACHE_DIR=" + (scratch.path / "store").string()});
  }
  void record(const std::vector<std::string>& words) const {
    const ProcessResult result = ejk(words, {"EJKERNEL_OPS_RECORD=" + file()});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  ProcessResult tune_recorded(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"tune", "--recorded", file(), "--budget", "5"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  const ScratchFolder scratch{"recorded"};
};

TEST_F(RecordedTool, calls_of_several_processes_are_tuned_once_each) {
  record({"run", "flash_attention", "--q_len", "32"});
  record({"run", "flash_attention", "--q_len", "32", "--softmax_scale", "0.5"});
  record({"run", "mean_pooling", "--num_seqs", "2", "--num_tokens", "32"});
  EXPECT_THAT(read_text(file()), HasSubstr(R"("name":"cu_seqlens","dtype":"i32","shape":[3],"values":[0,)"));

  const ProcessResult listed = tune_recorded({"--dry-run", "--text"});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  const std::string name = "flash_attention f32[1, 32, 8, 128]";
  EXPECT_EQ(listed.out.find(name), listed.out.rfind(name)) << "a scale makes no other problem\n" << listed.out;
  EXPECT_THAT(listed.out, HasSubstr(name + "  kernel cpu, "));

  const auto lines = json_lines(tune_recorded({"--json"}));
  ASSERT_EQ(lines.size(), 2u);
  const Json& report = lines[lines[0].contains("left_out") ? 1 : 0];  // the heavier one stands first
  EXPECT_EQ(report["case"], name);
  EXPECT_EQ(report["published"], true);
  EXPECT_GT(report["calls"], 1);
  const std::string again = tune_recorded({"--resume", "--text"}).out;
  EXPECT_THAT(again, AllOf(HasSubstr(" calls  tuned already\n"), HasSubstr(" kernel cpu has one config\n")));
}

TEST_F(RecordedTool, what_cannot_be_tuned_here_is_told_and_the_rest_is_verified) {
  record({"run", "flash_attention", "--q_len", "32"});
  const std::string text = read_text(file());
  const size_t device = text.find("\"cpu\"");
  write_text(file(), text + text.substr(0, device) + "\"cuda:99\"" + text.substr(device + 5));
  const ProcessResult verified = tune_recorded({"--verify-only", "--text"});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_THAT(verified.out, HasSubstr(" not tried, 0 rejected"));
  EXPECT_THAT(verified.err, HasSubstr("cuda:99"));
}

TEST_F(RecordedTool, a_file_that_is_none_and_two_descriptions_are_refused) {
  write_text(file(), "nonsense\n");
  const ProcessResult nonsense = tune_recorded({});
  EXPECT_EQ(nonsense.exit_code, 2);
  EXPECT_THAT(nonsense.err, HasSubstr("calls:1: recorded call: it must be a JSON object"));
  EXPECT_EQ(run({"tune", "--recorded", "/no/such/file"}).exit_code, 2);
  const ProcessResult both = run({"tune", "flash_attention", "--recorded", file()});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("--recorded must be the only description of the problems"));
}

TEST_F(RecordedTool, nothing_is_recorded_unless_asked) {
  EXPECT_EQ(run({"run", "mean_pooling", "--num_tokens", "32"}).exit_code, 0);
  EXPECT_EQ(ejk({"run", "mean_pooling", "--num_tokens", "32"}, {"EJKERNEL_OPS_RECORD=1"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(file()));
}

}  // namespace
}  // namespace ejk::testing
