// `ejk tune --hlo` as its user meets it: the text of a lowered program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ejkernel/ejkernel.h"
#include "ejkernel/runtime/planned_call.h"
#include "tests/ejk_tool.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// As jax.jit(f).lower(…).as_text() has it.
std::string in_program(const Plan& plan) {
  std::string literal;
  for (const char letter : planned_call_json(plan)) literal += letter == '"' ? "\\22" : std::string(1, letter);
  return "%0 = stablehlo.custom_call @ejkernel_cpu(%arg0) {mhlo.backend_config = {call = \"" + literal + "\"}}\n";
}

class ProgramTool : public ::testing::Test {
 protected:
  static Plan attention(int64_t q_len) {
    const Tensor query(nullptr, DType::f32, {1, q_len, 2, 16});
    return plan<FlashAttention>({.query = query, .key = query, .value = query}, {}, {.platform = Platform::cpu});
  }
  std::string file() const { return (scratch.path / "lowered").string(); }
  ProcessResult tune_program(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"tune", "--hlo", file(), "--budget", "5"};
    words.insert(words.end(), more.begin(), more.end());
    return ejk(words, {"EJKERNEL_CACHE_DIR=" + (scratch.path / "store").string()});
  }
  const ScratchFolder scratch{"program"};
};

TEST_F(ProgramTool, its_calls_are_tuned_once_each) {
  const Plan pooling = plan<MeanPooling>({.x = Tensor(nullptr, DType::f32, {2, 3, 4})});
  write_text(file(),
             "module {\n" + in_program(attention(32)) + in_program(pooling) + in_program(attention(32)) + "}\n");
  const std::string name = "flash_attention f32[1, 32, 2, 16]";
  const ProcessResult listed = tune_program({"--dry-run", "--text"});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_EQ(listed.out.find(name), listed.out.rfind(name)) << listed.out;
  EXPECT_THAT(listed.out, HasSubstr(name + "  kernel cpu, "));

  const auto lines = json_lines(tune_program({"--json"}));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1]["left_out"], "kernel cpu has one config");
  const auto& report = lines[0];
  EXPECT_EQ(report["case"], name);
  EXPECT_EQ(report["calls"], 2);
  EXPECT_EQ(report["published"], true);
  EXPECT_THAT(tune_program({"--resume", "--text"}).out,
              AllOf(HasSubstr(", 2 calls  tuned already\n"), HasSubstr(" kernel cpu has one config\n")));
  EXPECT_THAT(tune_program({"--verify-only", "--text"}).out, HasSubstr(" 0 rejected"));
}

TEST_F(ProgramTool, a_file_that_is_none_and_two_descriptions_are_refused) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& why) {
    const ProcessResult result = tune_program(more);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(why));
  };
  refused({}, "must be a file that can be read");
  write_text(file(), "HloModule jit_f\n");
  refused({}, "where no such call is");
  const std::string program = in_program(attention(32));
  write_text(file(), program.substr(0, program.size() / 2));
  refused({}, "lowered: byte ");
  write_text(file(), program);
  refused({"--recorded", file()}, "--recorded must be the only description of the problems");
  refused({"flash_attention"}, "--hlo must be the only description of the problems");
}

}  // namespace
}  // namespace ejk::testing
