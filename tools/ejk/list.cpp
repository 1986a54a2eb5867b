// ejk list: the operations, their kernels in order, and what each kernel lets one choose.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/json.h"
#include "ejkernel/runtime/registry.h"
#include "tools/ejk/print.h"
#include "tools/ejk/verbs.h"

namespace ejk::tool {
namespace {

struct Flags {
  std::string operation, platform;
  bool json = false;
};

std::string config_space(const KernelInfo& kernel) {
  std::string text;
  for (const ConfigField& field : kernel.config_fields)
    text += fmt::format("{}{} {{{}}}", text.empty() ? "" : "  ", field.name, fmt::join(field.legal, ", "));
  return text.empty() ? "nothing to choose" : text;
}

void add_fields(Table& table, std::string_view kind, std::span<const TensorField> fields) {
  for (const TensorField& field : fields)
    table.add({std::string(kind), std::string(field.name), std::string(field.contract.text()), std::string(field.doc)});
}

/// Everything about one operation, for `ejk list OP`.
std::string details(const Operation& op) {
  Table table("llll");
  add_fields(table, "input", op.inputs);
  for (const ParamField& field : op.params)
    table.add({"param", std::string(field.name),
               fmt::format("{} = {}", name(field.type), to_string(field.get(op.default_params.data()))),
               std::string(field.doc)});
  add_fields(table, "output", op.outputs);
  return table.text("  ");
}

void print_text(const Flags& flags) {
  const KernelRegistry& registry = KernelRegistry::instance();
  for (const std::string& name : registry.names()) {
    if (!flags.operation.empty() && name != flags.operation) continue;
    const auto registered = registry.find(name);
    const Operation& op = *registered->declaration;
    Table kernels("llll");
    int rank = 0;
    for (const auto& kernel : registered->kernels) {
      ++rank;
      if (flags.platform.empty() || flags.platform == ejk::name(kernel->platform))
        kernels.add({fmt::format("{}.", rank), kernel->name, fmt::format("({})", ejk::name(kernel->platform)),
                     config_space(*kernel)});
    }
    fmt::print("{}  {}\n", coloured(fmt::format("{}@{}", op.name, op.revision), Colour::bold), op.summary);
    if (!op.forms.empty()) fmt::print("  forms: {}\n", fmt::join(op.forms, ", "));
    if (!op.gradient.empty()) fmt::print("  gradient: {}\n", op.gradient);
    fmt::print("  kernels, the first that supports the call answers:\n{}", kernels.text("    "));
    if (!flags.operation.empty()) fmt::print("{}", details(op));
  }
}

void print_json(const Flags& flags) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(operations_json());
  nlohmann::ordered_json chosen = nlohmann::ordered_json::array();
  for (auto& operation : json["operations"]) {
    if (!flags.operation.empty() && operation["name"] != flags.operation) continue;
    nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
    for (auto& kernel : operation["kernels"])
      if (flags.platform.empty() || kernel["platform"] == flags.platform) kernels.push_back(kernel);
    operation["kernels"] = kernels;
    chosen.push_back(operation);
  }
  json["operations"] = chosen;
  fmt::print("{}\n", json.dump(2));
}

void check_platform(const std::string& platform) {
  std::string known;
  for (int i = 0; i < kNumPlatforms; ++i) {
    if (platform.empty() || platform == name(static_cast<Platform>(i))) return;
    known += fmt::format("{}{}", i == 0 ? "" : ", ", name(static_cast<Platform>(i)));
  }
  throw_invalid("ejk", "--platform", "be one of " + known, fmt::format("'{}'", platform), "see --help");
}

}  // namespace

Action declare_list(Options& options) {
  const auto flags = std::make_shared<Flags>();
  options.positional("OP", flags->operation, "only this operation, with its inputs, parameters and outputs")
      .value("platform", flags->platform, "NAME", "only kernels of this platform")
      .flag("json", flags->json, "print the declarations as JSON");
  return [flags] {
    check_platform(flags->platform);
    if (!flags->operation.empty()) KernelRegistry::instance().find(flags->operation);  // known, or says which are
    flags->json ? print_json(*flags) : print_text(*flags);
    return int{kOk};
  };
}

}  // namespace ejk::tool
