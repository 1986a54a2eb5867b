// Each target for a while, and that the fuzzer finds what only guidance can find.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <stdexcept>

#include "ejkernel/core/error.h"
#include "ejkernel/testing/random.h"
#include "tools/fuzz/mutate.h"
#include "tools/fuzz/targets.h"

namespace ejk::fuzz {
namespace {

using ::testing::SizeIs;

class Fuzz : public ::testing::TestWithParam<Target> {};

TEST_P(Fuzz, finds_no_fault) {
  const bool is_slow = GetParam().name == "command_line" || GetParam().name == "call";
  const int64_t executions = is_slow ? 2000 : 20000;
  const FuzzResult result = fuzz(GetParam(), {.executions = executions});
  EXPECT_EQ(result.fault, "") << "replay: ejkernel_fuzz replay " << GetParam().name << " " << to_hex(result.input);
  EXPECT_EQ(result.executions, executions);
  EXPECT_GT(result.corpus, static_cast<int64_t>(GetParam().seeds.size())) << "nothing new was found";
  EXPECT_GT(result.edges, 50) << "the sources are not instrumented";
}
INSTANTIATE_TEST_SUITE_P(Targets, Fuzz, ::testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& named) { return std::string(named.param.name); });

TEST(Fuzzer, finds_a_magic_value_by_what_runs_and_not_blindly) {
  constexpr int64_t kExecutions = 2000000;
  const FuzzResult guided = fuzz(magic_target(), {.executions = kExecutions});
  EXPECT_EQ(guided.fault, "the magic value was found");
  EXPECT_EQ(guided.input.substr(0, 6), "jX3\x80~\x1b");
  EXPECT_EQ(fault_of(magic_target(), guided.input), guided.fault) << "its input replays it";
  const FuzzResult blind = fuzz(magic_target(), {.executions = kExecutions, .guided = false});
  EXPECT_EQ(blind.fault, "");
  EXPECT_EQ(blind.executions, kExecutions);
  EXPECT_EQ(blind.corpus, 1);
}

TEST(Fuzzer, a_fault_is_what_is_thrown_besides_the_librarys_errors) {
  const auto fault = [](void (*run)(const std::string&)) {
    return fault_of({.name = "test", .seeds = {}, .words = {}, .run = run}, "");
  };
  EXPECT_EQ(fault([](const std::string&) {}), "");
  EXPECT_EQ(fault([](const std::string&) { throw InvalidArgument("refused"); }), "");
  EXPECT_EQ(fault([](const std::string&) { throw std::length_error("too long"); }), "too long");
}

TEST(FuzzerDeathTest, says_how_to_replay_what_ends_the_process) {
  const auto run = [](void (*ends)(const std::string&)) {
    fault_of({.name = "test", .seeds = {}, .words = {}, .run = ends}, "ab");
  };
  const char* const replay = "input 6162\nreplay: ejkernel_fuzz replay test 6162\n";
  EXPECT_DEATH(run([](const std::string&) { std::abort(); }), replay);
  EXPECT_DEATH(run([](const std::string& input) {
                 const std::vector<char> block(input.size());
                 [[maybe_unused]] const volatile char past_the_end = block.data()[2];
               }),
               replay);
  EXPECT_DEATH(run([](const std::string& input) {
                 volatile int number = INT32_MAX;
                 number = number + static_cast<int>(input.size());
               }),
               replay);
}

TEST(Fuzzer, runs_the_same_inputs_from_the_same_seed) {
  const FuzzResult first = fuzz(config_target(), {.executions = 3000, .seed = 5}),
                   again = fuzz(config_target(), {.executions = 3000, .seed = 5}),
                   other = fuzz(config_target(), {.executions = 3000, .seed = 6});
  EXPECT_EQ(first.input, again.input);
  EXPECT_EQ(first.edges, again.edges);
  EXPECT_NE(first.input, other.input);
}

TEST(Fuzzer, mutations_differ_and_stay_short) {
  testing::Random random(1);
  std::set<std::string> all;
  for (int n = 0; n < 1000; ++n) {
    all.insert(mutated("{\"block_q\": 64}", "[1, 2, 3]", {"null"}, random));
    EXPECT_LE(mutated(std::string(kLongestInput, 'x'), "y", {}, random).size(), kLongestInput);
    mutated("", "", {}, random);
  }
  EXPECT_THAT(all, SizeIs(::testing::Gt(800u)));
}

TEST(Fuzzer, inputs_travel_as_hexadecimal_text) {
  const std::string bytes("\x00\xff a", 4);
  EXPECT_EQ(to_hex(bytes), "00ff2061");
  EXPECT_EQ(from_hex(to_hex(bytes)), bytes);
  EXPECT_EQ(from_hex(to_hex("")), "");
  for (const char* wrong : {"0", "0g", "00 1", "x"}) EXPECT_THROW(from_hex(wrong), InvalidArgument) << wrong;
  EXPECT_THROW(find_target("nothing"), InvalidArgument);
}

}  // namespace
}  // namespace ejk::fuzz
