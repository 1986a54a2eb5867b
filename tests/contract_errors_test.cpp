// A contract that breaks the grammar does not compile, and the compiler's message names what is wrong with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support.h"

namespace ejk::testing {
namespace {

struct Literal {
  std::string contract, error;  ///< of ejk::contract_error; empty: there is none
};

const std::vector<Literal> kLiterals = {
    {"floats[batch]", "unknown_dtype_class"},
    {"[batch]", "unknown_dtype_class"},
    {"float ?[batch]", "expected_opening_bracket"},
    {"float?&[batch]", "expected_opening_bracket"},
    {"float", "expected_opening_bracket"},
    {"float[batch", "expected_closing_bracket"},
    {"float[batch,q_len]", "expected_closing_bracket"},
    {"float[batch, ]", "expected_dimension"},
    {"float[num_seqs+one]", "expected_dimension"},
    {"float[2*]", "expected_dimension"},
    {"float[a, b, c, d, e, f, g]", "too_many_dimensions"},
    {"@q[] | @q[] | @q[] | @q[] | @q[] | @q[] | @q[] | @q[] | @q[]", "too_many_alternatives"},
    {"float[batch]|float[]", "unexpected_text"},
    {"float[batch] ;", "unexpected_text"},
    {"float?[batch/1, 2*q_len, num_seqs+1, 4] | @query[] ; -", ""},  // well formed
};

/// One line each, which messages name.
std::string program_of(const std::vector<Literal>& literals) {
  std::string text = "#include \"ejkernel/core/contract.h\"\n#line 1 \"literals\"\n";
  for (size_t n = 0; n < literals.size(); ++n)
    text += "constexpr ejk::Contract contract_" + std::to_string(n) + "(\"" + literals[n].contract + "\");\n";
  return text;
}

/// What the compiler says of the n-th literal: from each mention of its line to that of another.
std::string said_of(size_t n, const std::string& messages) {
  const std::string any = "literals:", own = any + std::to_string(n + 1) + ":";
  std::string said;
  for (size_t at = messages.find(any); at != std::string::npos;) {
    const size_t next = messages.find(any, at + 1);
    if (messages.compare(at, own.size(), own) == 0) said += messages.substr(at, next - at);
    at = next;
  }
  return said;
}

TEST(Contracts, that_are_malformed_do_not_compile_and_the_message_says_why) {
  for (const std::string& compiler : cxx_compilers()) {
    const ProcessResult result = check_syntax(compiler, {"-std=c++20"}, program_of(kLiterals), "contracts.cpp");
    EXPECT_NE(result.exit_code, 0);
    for (size_t n = 0; n < kLiterals.size(); ++n) {
      const auto& [contract, error] = kLiterals[n];
      const std::string said = said_of(n, result.err);
      if (error.empty())
        EXPECT_EQ(said, "") << compiler << ": " << contract;
      else
        EXPECT_THAT(said, ::testing::HasSubstr(error)) << compiler << ": " << contract;
    }
  }
}

}  // namespace
}  // namespace ejk::testing
