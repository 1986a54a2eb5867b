#include "ejkernel/runtime/c_header.h"

#include <fmt/format.h>

#include <string_view>

namespace ejk {
namespace {

constexpr size_t kWidth = 116;

/// Text that cannot end the comment it stands in, nor seem to begin another.
std::string commentable(std::string text) {
  for (size_t i = 0; i + 1 < text.size(); ++i)
    if ((text[i] == '*' && text[i + 1] == '/') || (text[i] == '/' && text[i + 1] == '*')) text.insert(i + 1, " ");
  return text;
}

/// A comment of as many lines as it takes, each after `indent`.
std::string comment(std::string_view indent, const std::string& plain) {
  const std::string text = commentable(plain);
  std::string result = fmt::format("{}/*", indent);
  size_t column = result.size();
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find(' ', begin);
    if (end == std::string::npos) end = text.size();
    if (column + (end - begin) + 4 > kWidth) {
      result += fmt::format("\n{} *", indent);
      column = indent.size() + 2;
    }
    result += " " + text.substr(begin, end - begin);
    column += end - begin + 1;
    begin = end + 1;
  }
  return result + " */\n";
}

bool is_required(const TensorField& field) {
  for (int form = 0; form < field.contract.num_forms(); ++form) {
    bool taken = false;
    for (const Alternative& alternative : field.contract)
      if (field.contract.applies(alternative, form)) taken = taken || !alternative.optional;
    if (!taken) return false;
  }
  return true;
}

/// How a parameter stands in the struct. Absence needs a pointer; texts and lists are pointers anyway.
struct CParam {
  const ParamField& field;
  ParamValue default_value;

  bool by_pointer() const {
    return std::holds_alternative<std::monostate>(default_value) || field.type == ParamType::text ||
           field.type == ParamType::integers;
  }
  std::string_view type() const {
    switch (field.type) {
      case ParamType::boolean:
        return "bool";
      case ParamType::integer:
      case ParamType::integers:
        return "int64_t";
      case ParamType::real:
        return "double";
      case ParamType::text:
        return "char";
    }
    return "";
  }
  std::string_view setter() const {
    switch (field.type) {
      case ParamType::boolean:
        return "bool";
      case ParamType::integer:
        return "i64";
      case ParamType::integers:
        return "i64s";
      case ParamType::real:
        return "f64";
      case ParamType::text:
        return "str";
    }
    return "";
  }
  bool is_zero() const {
    return default_text() == "NULL" || default_text() == "false" || default_text() == "0" || default_text() == "0.0";
  }
  std::string default_text() const {
    if (const bool* v = std::get_if<bool>(&default_value)) return *v ? "true" : "false";
    if (const int64_t* v = std::get_if<int64_t>(&default_value)) return fmt::format("{}", *v);
    if (const double* v = std::get_if<double>(&default_value)) return fmt::format("{:#}", *v);
    if (const std::string* v = std::get_if<std::string>(&default_value)) return fmt::format("\"{}\"", *v);
    return "NULL";
  }
  std::string doc() const {
    std::string text =
        fmt::format("{}; default {}", field.doc, default_text() == "NULL" ? "NULL: none" : default_text());
    for (size_t i = 0; i < field.choices.size(); ++i)
      text += fmt::format("{}\"{}\"", i == 0 ? "; one of " : ", ", field.choices[i]);
    return text;
  }
};

CParam c_param(const Operation& op, const ParamField& field) {
  return {.field = field, .default_value = field.get(op.default_params.data())};
}

std::string tensor_members(std::span<const TensorField> fields, std::string_view name, bool are_inputs) {
  std::string text = "  struct {\n";
  for (const TensorField& field : fields) {
    const std::string_view kind = !are_inputs ? "" : is_required(field) ? "required; " : "may be NULL; ";
    const std::string_view place = is_aliased(field) ? "; the input itself, updated in place, or NULL" : "";
    text += comment("    ", fmt::format("{}{}: {}{}", kind, field.doc, field.contract.text(), place));
    text += fmt::format("    const DLTensor* {};\n", field.name);
  }
  return text + fmt::format("  }} {};{}\n", name, are_inputs ? "" : " /* NULL: not wanted */");
}

std::string param_members(const Operation& op) {
  if (op.params.empty()) return {};
  std::string text = "  struct {\n";
  for (const ParamField& field : op.params) {
    const CParam param = c_param(op, field);
    text += comment("    ", param.doc());
    text += param.by_pointer() ? fmt::format("    const {}* {};\n", param.type(), field.name)
                               : fmt::format("    {} {};\n", param.type(), field.name);
    if (field.type == ParamType::integers) text += fmt::format("    size_t {}_count;\n", field.name);
  }
  return text + "  } params;\n";
}

std::string arguments(const Operation& op) {
  return fmt::format(
      "typedef struct ejk_{0}_args {{\n{1}{2}{3}  const ejk_plan_options* plan; /* NULL: none */\n"
      "  const ejk_run_options* run;   /* NULL: none */\n}} ejk_{0}_args;\n",
      op.name, tensor_members(op.inputs, "inputs", true), tensor_members(op.outputs, "outputs", false),
      param_members(op));
}

std::string initialiser(const Operation& op) {
  std::string text = comment("", "Every tensor absent, every parameter at its default.");
  text += fmt::format("static inline void ejk_{0}_init(ejk_{0}_args* args) {{\n  memset(args, 0, sizeof *args);\n",
                      op.name);
  for (const ParamField& field : op.params) {
    const CParam param = c_param(op, field);
    if (param.default_text() != "NULL")
      text += fmt::format("  args->params.{} = {};\n", field.name, param.default_text());
  }
  return text + "}\n";
}

std::string set_param_line(const Operation& op, const ParamField& field) {
  const CParam param = c_param(op, field);
  const std::string member = fmt::format("args->params.{}", field.name);
  std::string value = member;
  if (field.type == ParamType::integers)
    value = fmt::format("{0}, {0}_count", member);
  else if (param.by_pointer() && field.type != ParamType::text)
    value = "*" + member;
  return fmt::format("  if (status == EJK_OK && {} != {})\n    status = ejk_params_set_{}(params, \"{}\", {});\n",
                     member, param.by_pointer() ? "NULL" : param.default_text(), param.setter(), field.name, value);
}

std::string function(const Operation& op) {
  std::string text = comment("", "Errors as ejk_execute.");
  text += fmt::format("static inline ejk_status ejk_{0}(const ejk_{0}_args* args) {{\n", op.name);
  text += fmt::format("  ejk_tensor inputs[{}], outputs[{}];\n", op.inputs.size(), op.outputs.size());
  text += "  size_t num_inputs = 0, num_outputs = 0;\n  ejk_params_t* params = NULL;\n";
  text += fmt::format("  ejk_status status = ejk_params_new(\"{}\", &params);\n", op.name);
  for (const TensorField& f : op.inputs)
    text += fmt::format("  ejk_ops_add(inputs, &num_inputs, \"{0}\", args->inputs.{0});\n", f.name);
  for (const TensorField& f : op.outputs)
    text += fmt::format("  ejk_ops_add(outputs, &num_outputs, \"{0}\", args->outputs.{0});\n", f.name);
  for (const ParamField& f : op.params) text += set_param_line(op, f);
  text += fmt::format(
      "  if (status == EJK_OK)\n    status = ejk_execute(\"{}\", inputs, num_inputs, outputs, num_outputs, "
      "params, args->plan, args->run);\n",
      op.name);
  return text + "  ejk_params_free(params);\n  return status;\n}\n";
}

constexpr std::string_view kHead =
    R"(/* One typed C99 function per operation, over c_api.h. Made from the declarations (`./dev docs`): do not edit.
 *
 *   ejk_{0}_args args;
 *   ejk_{0}_init(&args);
 *   args.inputs.{1} = &{1}; ...
 *   if (ejk_{0}(&args) != EJK_OK) ...
 */
/* clang-format off */
#ifndef {2}
#define {2}

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ejkernel/c_api.h"

#ifndef EJK_OPS_ADD_
#define EJK_OPS_ADD_
static inline void ejk_ops_add(ejk_tensor* list, size_t* count, const char* name, const DLTensor* tensor) {{
  if (tensor == NULL) return;
  list[*count].name = name;
  list[*count].tensor = tensor;
  ++*count;
}}
#endif
)";

}  // namespace

std::string c_header(std::span<const Operation* const> operations, const std::string& include_guard) {
  if (operations.empty()) return {};
  std::string text = fmt::format(kHead, operations[0]->name, operations[0]->inputs[0].name, include_guard);
  for (const Operation* op : operations) {
    text += fmt::format("\n/* ---- {} ---- */\n\n", op->name);
    text += comment("", fmt::format("{} {}.{}", op->summary, op->source,
                                    op->gradient.empty() ? "" : fmt::format(" Gradient: {}.", op->gradient)));
    text += arguments(*op) + "\n" + initialiser(*op) + "\n" + function(*op);
  }
  return text + fmt::format("\n#endif /* {} */\n", include_guard);
}

}  // namespace ejk
