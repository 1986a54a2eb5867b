// The two C headers: they compile wherever they should, and the generated one is what the declarations say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ejkernel/runtime/c_header.h"
#include "ejkernel/runtime/registry.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

/// Uses something of each header, so that no inline function goes unnoticed.
const std::string kProgram =
    "#include <ejkernel/c_api.h>\n"
    "#include <ejkernel/ejkernel_ops.h>\n"
    "int main(void) {\n"
    "  ejk_flash_attention_args args;\n"
    "  ejk_flash_attention_init(&args);\n"
    "  return ejk_flash_attention(&args) == EJK_OK;\n"
    "}\n";

TEST(CHeader, the_committed_one_is_up_to_date) {
  expect_up_to_date(kSourceFolder / "ejkernel/ejkernel_ops.h",
                    c_header(builtin_operations(), "EJKERNEL_EJKERNEL_OPS_H_"));
}

TEST(CHeader, compiles_as_strict_c99) {
  for (const std::string& compiler : c_compilers()) {
    const auto result = check_syntax(compiler, {"-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-pedantic"},
                                     kProgram, "program.c");
    EXPECT_EQ(result.exit_code, 0) << compiler << "\n" << result.err;
  }
}

TEST(CHeader, compiles_as_cxx11_without_exceptions_and_rtti) {
  for (const std::string& compiler : cxx_compilers()) {
    const auto result = check_syntax(
        compiler, {"-std=c++11", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror", "-pedantic"}, kProgram,
        "program.cpp");
    EXPECT_EQ(result.exit_code, 0) << compiler << "\n" << result.err;
  }
}

TEST(CHeader, has_a_function_and_defaults_for_every_operation) {
  const std::string text = read_text(kSourceFolder / "ejkernel/ejkernel_ops.h");
  for (const Operation* operation : builtin_operations()) {
    const std::string name = "ejk_" + std::string(operation->name);
    EXPECT_THAT(text, ::testing::HasSubstr("static inline ejk_status " + name + "(const " + name + "_args* args) {"));
    EXPECT_THAT(text, ::testing::HasSubstr("static inline void " + name + "_init(" + name + "_args* args) {"));
  }
  EXPECT_THAT(text, ::testing::HasSubstr("args->params.normalize_output = true;"));
}

}  // namespace
}  // namespace ejk::testing
