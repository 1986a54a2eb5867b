#include <gmock/gmock.h>

#include "ejkernel/core/error.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/planned_call.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

std::string attention_call() {
  const Tensor query(nullptr, DType::f32, {2, 8, 4, 16});
  return planned_call_json(
      plan<FlashAttention>({.query = query, .key = query, .value = query}, {}, {.platform = Platform::cpu}));
}
std::string pooling_call() {
  return planned_call_json(plan<MeanPooling>({.x = Tensor(nullptr, DType::f32, {2, 3, 4})}));
}

/// The content of a literal, with each quote spelled so.
std::string escaped(const std::string& text, const std::string& quote) {
  std::string literal;
  for (const char letter : text) literal += letter == '"' ? quote : letter == '\\' ? "\\\\" : std::string(1, letter);
  return literal;
}
std::string in_mlir(const std::string& call) {
  return R"(%0 = stablehlo.custom_call @ejkernel_cpu(%arg0) {mhlo.backend_config = {call = ")" +
         escaped(call, R"(\22)") + "\"}}\n";
}
std::string in_hlo(const std::string& call) {
  return R"(%c = custom-call(%a), metadata={op_name="f"}, backend_config={call = ")" + escaped(call, "\\\"") + "\"}\n";
}
/// As XLA writes a GPU's calls: an attribute's text inside a text.
std::string in_gpu_hlo(const std::string& call) {
  const std::string attributes = R"({call = ")" + escaped(call, R"(\22)") + "\"}";
  return R"(backend_config={"custom_call_backend_config":{"attributes":")" + escaped(attributes, "\\\"") + "\"}}\n";
}

TEST(PlannedCallsIn, are_found_however_their_quotes_are_escaped) {
  const std::string attention = attention_call(), pooling = pooling_call();
  for (const auto in : {in_mlir, in_hlo, in_gpu_hlo}) {
    const std::string program = "module {\n" + in(attention) + in(pooling) + in(attention) + "}";
    const std::vector<PlannedCall> calls = planned_calls_in(program);
    ASSERT_EQ(calls.size(), 3u) << program;
    EXPECT_EQ(planned_call_json(plan_of(calls[0])), attention);
    EXPECT_EQ(planned_call_json(plan_of(calls[1])), pooling);
    EXPECT_EQ(calls[2].label, calls[0].label);
  }
}

TEST(PlannedCallsIn, leave_alone_what_is_not_ours) {
  EXPECT_THAT(planned_calls_in(""), IsEmpty());
  EXPECT_THAT(planned_calls_in("version"), IsEmpty());
  EXPECT_THAT(planned_calls_in(R"("{\22version\22:1}" {version "{\"version\":1,\"other\":2}" \22version\22:)"),
              IsEmpty());
  EXPECT_THAT(planned_calls_in(R"(mesh = "{\22version\22:)"), IsEmpty());
}

TEST(PlannedCallsIn, say_where_one_stands_that_cannot_be_read) {
  const std::string program = "module {\n" + in_mlir(attention_call());
  const size_t begin = program.find('{', program.find("call = "));
  const auto refused = [&](const std::string& text, const std::string& why) {
    EXPECT_THAT([&] { planned_calls_in(text); },
                ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("byte " + std::to_string(begin) + " of the program: "), HasSubstr(why))));
  };
  refused(program.substr(0, program.size() - 20), "its text must end with a quote");
  std::string changed = program;
  changed.replace(program.find("version") + 11, 1, "2");
  refused(changed, "its version must be 1, got 2");
  changed = program;
  changed[program.rfind('}', program.rfind('"'))] = ' ';
  refused(changed, "its version must be 1, got none");
  changed = program;
  changed.replace(program.find("flash_attention\\22,"), 15, "flash_attentiom");
  refused(changed, "flash_attentiom");
}

TEST(PlannedCallsIn, any_end_and_any_changed_letter_is_an_error_or_a_call) {
  const std::string program = in_gpu_hlo(pooling_call()) + in_mlir(pooling_call());
  const auto read = [](const std::string& text) {
    try {
      EXPECT_LE(planned_calls_in(text).size(), 2u);
    } catch (const Error&) {  // with a sentence
    }
  };
  for (size_t n = 0; n < program.size(); ++n) {
    read(program.substr(0, n));
    for (const char letter : {'"', '\\', '{', '[', '9', '\0'}) {
      std::string changed = program;
      changed[n] = letter;
      read(changed);
    }
  }
}

}  // namespace
}  // namespace ejk::testing
