#include "tools/ejk/docs_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/registry.h"
#include "tools/ejk/call_flags.h"
#include "tools/ejk/docs_probe.h"

namespace ejk::tool {
namespace {

/// Text inside a cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? std::string("\\|") : std::string(1, c);
  return escaped;
}
std::string code(std::string_view text) { return fmt::format("`{}`", cell(text)); }

std::string row(const std::vector<std::string>& cells) { return fmt::format("| {} |\n", fmt::join(cells, " | ")); }
std::string header(const std::vector<std::string>& names) {
  return row(names) + row(std::vector<std::string>(names.size(), "---"));
}

/// "FlashAttention"
std::string struct_name(std::string_view operation) {
  std::string name;
  bool capital = true;
  for (const char c : operation) {
    if (c != '_') name += capital ? static_cast<char>(c - 'a' + 'A') : c;
    capital = c == '_';
  }
  return name;
}

/// The contract's part that belongs to a form.
std::string contract_of(const TensorField& field, int form) {
  std::string_view text = field.contract.text();
  if (field.contract.num_forms() == 1) return std::string(text);
  for (; form > 0; --form) text.remove_prefix(text.find(" ; ") + 3);
  return std::string(text.substr(0, text.find(" ; ")));
}

/// `without`: what stands for a field in the forms that do not have it.
std::string tensors_table(const Operation& op, std::span<const TensorField> fields, std::string_view without) {
  std::vector<std::string> names = {"name"};
  if (op.forms.empty()) names.emplace_back("dtype and shape");
  for (const std::string_view form : op.forms) names.push_back(fmt::format("{} form", form));
  names.emplace_back("meaning");
  std::string table = header(names);
  for (const TensorField& field : fields) {
    std::vector<std::string> cells = {code(field.name)};
    for (int form = 0; form < std::max(1, static_cast<int>(op.forms.size())); ++form) {
      const std::string contract = contract_of(field, form);
      cells.push_back(contract == "-" ? std::string(without) : code(contract));
    }
    const std::string python = field.python_name.empty() ? "" : fmt::format(" (Python: `{}`)", field.python_name);
    const std::string place =
        is_aliased(field) ? fmt::format("; the input {} itself, written in place", code(field.name)) : "";
    cells.push_back(cell(field.doc) + python + place);
    table += row(cells);
  }
  return table;
}

std::string range_text(const ParamField& field) {
  if (!field.choices.empty()) return fmt::format("{}", fmt::join(field.choices, ", "));
  const Range& r = field.range;
  std::string text;
  if (std::isfinite(r.low)) text = fmt::format("{} {}", r.low_open ? ">" : "≥", r.low);
  if (std::isfinite(r.high)) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", r.high_open ? "<" : "≤", r.high);
  if (!text.empty()) return text;
  if (field.type == ParamType::real) return "finite";
  if (field.type == ParamType::integers) return "each ≥ -1";
  return field.type == ParamType::text ? "a dtype" : "any";
}

std::string params_table(const Operation& op) {
  static constexpr std::string_view kKeys[] = {"no", "whether it is given", "its value", "its bucket"};
  std::string table = header({"name", "type", "default", "range", "enters the tuning key", "meaning"});
  for (const ParamField& field : op.params) {
    const ParamValue value = field.get(op.default_params.data());
    const bool absent = std::holds_alternative<std::monostate>(value);
    table += row({code(field.name), std::string(name(field.type)), absent ? "absent" : code(to_string(value)),
                  cell(range_text(field)), std::string(kKeys[static_cast<size_t>(field.key)]), cell(field.doc)});
  }
  return table;
}

std::string kernel_section(const RegisteredOperation& registered) {
  std::string text =
      "In this order; the first that supports the call answers. `ejk explain` shows every kernel's answer for a "
      "call.\n\n";
  int rank = 0;
  for (const auto& kernel : registered.kernels) {
    text += fmt::format("{}. `{}` (platform {})", ++rank, kernel->name, name(kernel->platform));
    if (kernel->backend == Backend::gpu || kernel->backend == Backend::tpu) {
      text += fmt::format(": for {}s; ask `ejk explain` there.\n", name(kernel->backend));
    } else {
      const std::vector<Decline> all = declines(std::string(registered.declaration->name), *kernel);
      text += all.empty() ? ": takes every call.\n" : ". It declines\n";
      for (const Decline& decline : all)
        text += fmt::format("   - {}: {}\n", fmt::join(decline.calls, ", "), decline.reason);
    }
    if (kernel->config_fields.empty()) continue;
    text += "\n   " + header({"config", "legal values", "meaning"});
    text.replace(text.rfind("\n| --- "), 1, "\n   ");
    for (const ConfigField& field : kernel->config_fields)
      text += "   " + row({code(field.name), fmt::format("{}", fmt::join(field.legal, ", ")), cell(field.doc)});
    text += "\n";
  }
  return text;
}

/// ".query = query, .key = key": the inputs that the first form requires.
std::vector<std::string> required_inputs(const Operation& op) {
  std::vector<std::string> names;
  for (const TensorField& field : op.inputs)
    for (const Alternative& alternative : field.contract) {
      if (!field.contract.applies(alternative, 0)) continue;
      if (!alternative.optional) names.emplace_back(field.name);
      break;
    }
  return names;
}

std::string designators(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += fmt::format("{}.{} = {}", text.empty() ? "" : ", ", name, name);
  return text;
}

std::string field_names(std::span<const TensorField> fields, std::string_view prefix = "") {
  std::string text;
  for (const TensorField& field : fields) text += fmt::format("{}{}{}", text.empty() ? "" : ", ", prefix, field.name);
  return text;
}

/// What results are called in an example: those that are inputs have a name already.
std::string result_names(const Operation& op) {
  std::string text;
  for (const TensorField& field : op.outputs)
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", is_aliased(field) ? "updated_" : "", field.name);
  return text;
}

std::string cpp_example(const Operation& op, const Operation* forward) {
  const Operation& called = forward == nullptr ? op : *forward;
  const std::string inputs = designators(required_inputs(called));
  std::string text = "```cpp\n#include <ejkernel/ejkernel.h>\n\n";
  if (forward == nullptr) {
    text += fmt::format("auto [{}] = ejk::execute<ejk::{}>({{{}}});\n", result_names(op), struct_name(op.name), inputs);
  } else {
    const std::string_view first = forward->outputs[0].name;
    text += fmt::format("auto [results, pullback] = ejk::vjp<ejk::{}>({{{}}});\n", struct_name(forward->name), inputs);
    text += fmt::format("auto gradients = pullback({{.{} = d_{}}});  // {}\n", first, first,
                        field_names(op.outputs, "gradients."));
  }
  return text + "```\n";
}

std::string c_example(const Operation& op) {
  std::string text = fmt::format(
      "```c\n#include <ejkernel/ejkernel_ops.h>\n\n"
      "ejk_{0}_args args;\nejk_{0}_init(&args);\n",
      op.name);
  for (const std::string& name : required_inputs(op)) text += fmt::format("args.inputs.{0} = &{0};\n", name);
  return text + fmt::format(
                    "args.outputs.{} = &result;  /* DLTensors all; outputs that are left out are not computed */\n"
                    "if (ejk_{}(&args) != EJK_OK) {{\n  const char* text;\n  ejk_last_error(&text);\n}}\n```\n",
                    op.outputs[0].name, op.name);
}

std::string cli_example(const Operation& op) {
  return fmt::format(
      "```sh\nejk explain {0} --dtype bf16   # which kernel and config, and why\n"
      "ejk run {0} --dtype bf16       # random data; results, time, kernel\n"
      "ejk check {0} --seconds 10     # random problems against float64\n"
      "ejk bench {0}                  # the named cases\n```\n",
      op.name);
}

std::string operation_page(const RegisteredOperation& registered) {
  const Operation& op = *registered.declaration;
  const std::string forward_name = forward_of(op.name);
  const auto forward = forward_name.empty() ? nullptr : KernelRegistry::instance().find(forward_name);
  std::string page = fmt::format("{}\n# {}\n\n{}\n\n- revision {}\n- source: {}\n", kGeneratedMark, op.name, op.summary,
                                 op.revision, op.source);
  if (!op.forms.empty()) page += fmt::format("- forms: {}\n", fmt::join(op.forms, ", "));
  if (!op.gradient.empty()) page += fmt::format("- gradient: [{0}]({0}.md)\n", op.gradient);
  if (forward != nullptr) page += fmt::format("- gradient of: [{0}]({0}.md)\n", forward_name);
  page += "\n## Use\n\n" + cpp_example(op, forward == nullptr ? nullptr : forward->declaration) + "\n" + c_example(op) +
          "\n" + cli_example(op);
  page += "\n## Inputs\n\n" + tensors_table(op, op.inputs, "not accepted");
  page +=
      "\n`?` may be left out; `name/1` is that dimension or 1, which broadcasts; `@x` is the dtype of x. Any strides "
      "but "
      "the last axis's, which is 1.\n";
  if (!op.params.empty()) page += "\n## Parameters\n\n" + params_table(op);
  page += "\n## Outputs\n\n" + tensors_table(op, op.outputs, "none");
  page += "\n## Kernels\n\n" + kernel_section(registered);
  page +=
      "\n## Errors\n\nEvery wrong call is one sentence ([errors](../errors.md)); some of this operation's:\n\n```\n";
  for (const std::string& sentence : example_errors(std::string(op.name))) page += sentence + "\n";
  return page + "```\n";
}

/// "f64 f32 f16 bf16": what the first input may be.
std::string dtypes_of(const Operation& op) {
  DTypeSet set = 0;
  for (const Alternative& alternative : op.inputs[0].contract) set |= alternative.dtypes;
  std::string text;
  for (int i = 0; i < kNumDTypes; ++i)
    if ((set & (DTypeSet{1} << i)) != 0)
      text += fmt::format("{}{}", text.empty() ? "" : " ", name(static_cast<DType>(i)));
  return text;
}

std::string index_page() {
  std::string page = fmt::format(
      "{}\n# Operations\n\nKernels stand in the order in which they are tried; the reference takes every call.\n\n",
      kGeneratedMark);
  page += header({"operation", "what it is", "dtypes", "forms", "gradient", "kernels"});
  const KernelRegistry& registry = KernelRegistry::instance();
  for (const std::string& name : registry.names()) {
    const auto registered = registry.find(name);
    const Operation& op = *registered->declaration;
    std::vector<std::string> kernels;
    for (const auto& kernel : registered->kernels) kernels.push_back(code(kernel->name));
    page += row({fmt::format("[{0}]({0}.md)", name), cell(op.summary), dtypes_of(op),
                 op.forms.empty() ? "one" : fmt::format("{}", fmt::join(op.forms, ", ")),
                 !op.gradient.empty()          ? fmt::format("[yes]({}.md)", op.gradient)
                 : forward_of(op.name).empty() ? "no"
                                               : "is one",
                 fmt::format("{}", fmt::join(kernels, ", "))});
  }
  return page;
}

std::string environment_page() {
  std::string page = fmt::format(
      "{}\n# Environment variables\n\nRead once, at the library's first use; a malformed value is an error that names "
      "the variable. An `EJKERNEL_*` name that is not in this table is warned about once in the log "
      "(`EJKERNEL_LOG=warning`). `ejk doctor --env` shows the "
      "values in use.\n\n",
      kGeneratedMark);
  page += header({"variable", "value", "default", "meaning"});
  for (const environment::Variable& v : environment::variables())
    page += row({code(v.name), cell(v.type), cell(v.default_value), cell(v.doc)});
  return page;
}

}  // namespace

std::map<std::string, std::string> documentation_pages() {
  std::map<std::string, std::string> pages;
  const KernelRegistry& registry = KernelRegistry::instance();
  for (const std::string& name : registry.names())
    pages[fmt::format("operations/{}.md", name)] = operation_page(*registry.find(name));
  pages["operations/index.md"] = index_page();
  pages["environment.md"] = environment_page();
  return pages;
}

}  // namespace ejk::tool
