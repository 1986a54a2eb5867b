#include "tools/ejk/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "ejkernel/core/validate.h"
#include "ejkernel/testing/operations.h"
#include "tools/ejk/options.h"

namespace ejk::tool {
namespace {

const testing::TestOperation* find(std::string_view operation) {
  for (const testing::TestOperation* known : testing::test_operations())
    if (known->name() == operation) return known;
  return nullptr;
}

}  // namespace

std::vector<NamedCase> cases_of(std::string_view operation) {
  std::vector<NamedCase> cases;
  if (const testing::TestOperation* known = find(operation))
    for (const testing::Case& c : known->cases) cases.push_back({c.name, (c.tags & testing::kPrimary) != 0});
  return cases;
}

void require_case(std::string_view operation, const std::string& name) {
  std::vector<std::string> names;
  for (NamedCase& known : cases_of(operation)) {
    if (known.name == name) return;
    names.push_back(std::move(known.name));
  }
  const std::string near = nearest(name, names);
  throw_invalid(
      operation, "--case", "name one of its problems", fmt::format("'{}'", name),
      near.empty() ? fmt::format("ejk check {} --cases lists them", operation) : fmt::format("did you mean {}?", near));
}

ToolCall make_case(std::string_view operation, const std::string& name) {
  require_case(operation, name);
  const auto& cases = find(operation)->cases;
  const auto found =
      std::find_if(cases.begin(), cases.end(), [&](const testing::Case& known) { return known.name == name; });
  const auto problem = std::make_shared<testing::Problem>(found->make());
  return {std::string(operation), problem->views(), problem->params, {problem}};
}

}  // namespace ejk::tool
