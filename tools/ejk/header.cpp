// ejk header: the typed C functions of operations, as the text of a header.
#include "ejkernel/runtime/c_header.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>
#include <string>

#include "ejkernel/runtime/registry.h"
#include "tools/ejk/verbs.h"

namespace ejk::tool {
namespace {

std::string header_of(const std::string& name) {
  if (name.empty()) return c_header(builtin_operations(), "EJKERNEL_EJKERNEL_OPS_H_");
  const auto registered = KernelRegistry::instance().find(name);
  const Operation* const one[] = {registered->declaration};
  std::string guard = "EJKERNEL_OPERATION_" + name + "_H_";
  std::transform(guard.begin(), guard.end(), guard.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return c_header(one, guard);
}

}  // namespace

Action declare_header(Options& options) {
  const auto name = std::make_shared<std::string>();
  options.positional("OP", *name, "one operation, a plug-in's for example (default: all of the library's own)");
  return [name]() -> int {
    std::fputs(header_of(*name).c_str(), stdout);
    return kOk;
  };
}

}  // namespace ejk::tool
