#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/gradient.h"
#include "ejkernel/runtime/registry.h"
#include "tools/ejk/call_flags.h"
#include "tools/ejk/cases.h"

namespace ejk::tool {
namespace {

/// What an operation takes for a dimension that the command line leaves out, by the names that all operations share:
/// another dimension, or a number.
struct DefaultDim {
  std::string_view name, same_as;
  int64_t value;
};
constexpr DefaultDim kDefaultDims[] = {
    {"kv_len", "q_len", 0},
    {"total_k", "total_q", 0},
    {"num_kv_heads", "num_q_heads", 0},
    {"value_dim", "head_dim", 0},
    {"num_all_groups", "num_groups", 0},
    {"max_num_seqs", "num_seqs", 0},
    {"batch", "", 1},
    {"q_len", "", 1024},
    {"seq_len", "", 1024},
    {"total_q", "", 4096},
    {"num_tokens", "", 4096},
    {"num_seqs", "", 4},
    {"total_tokens", "", 64},
    {"page_size", "", 16},
    {"max_num_pages", "", 128},
    {"num_pages", "", 512},
    {"table_num_pages", "", 512},
    {"num_k_groups", "", 1},
    {"num_v_groups", "", 1},
    {"num_q_heads", "", 8},
    {"num_heads", "", 8},
    {"head_dim", "", 128},
    {"key_dim", "", 128},
    {"dim", "", 128},
    {"num_sinks", "", 1},
    {"m", "", 1024},
    {"k", "", 1024},
    {"n", "", 1024},
    {"num_groups", "", 8},
    {"num_k_blocks", "", 8},
    {"num_n_blocks", "", 8},
    {"num_mask_m_blocks", "", 8},
    {"num_mask_k_blocks", "", 8},
    {"num_mask_n_blocks", "", 8},
    {"input_size", "", 512},
    {"hidden_size", "", 512},
    {"gate_rows", "", 2048},
    {"layer_size", "hidden_size", 0},
    {"num_directions", "", 1},
    {"num_states", "", 1},
    {"num_upper", "", 1},
};

/// Likewise for parameters without a default of their own, which a call must give.
struct DefaultParam {
  std::string_view name;
  int64_t value;
};
constexpr DefaultParam kDefaultParams[] = {{"layer_idx", 12}, {"num_layers", 24}};

/// Builds the inputs of one forward call, field by field.
class CallBuilder {
 public:
  CallBuilder(const Operation& op, const CallFlags& flags) : op_(op), flags_(flags) {}

  ToolCall run() {
    if (!flags_.case_name.empty()) {
      call_ = make_case(op_.name, flags_.case_name);
      set_params();
      return std::move(call_);
    }
    call_.operation = op_.name;
    call_.params = op_.default_params;
    set_default_params();
    set_params();
    const std::vector<int> forms = possible_forms();
    for (const int form : forms) {
      make_inputs(form);
      // A parameter may decide the form as well: take one that the operation sees so too.
      if (op_.form(call_.inputs, call_.params) == form) return std::move(call_);
    }
    make_inputs(forms.front());  // checking the call will say what does not fit
    const std::string_view made =
        op_.forms.empty() ? "" : op_.forms[static_cast<size_t>(op_.form(call_.inputs, call_.params))];
    if (!flags_.form.empty() && made != flags_.form)
      invalid("--form", "be the one that the parameters make",
              fmt::format("'{}', which they make '{}'", flags_.form, made), "set the parameter that decides it");
    return std::move(call_);
  }

 private:
  [[noreturn]] void invalid(std::string_view argument, std::string_view expected, std::string_view got,
                            std::string_view fix) const {
    throw_invalid(op_.name, argument, expected, got, fix);
  }

  void set_default_params() {
    for (const ParamField& field : op_.params)
      for (const auto& [name, value] : kDefaultParams)
        if (field.name == name && std::holds_alternative<std::monostate>(field.get(op_.default_params.data())))
          set_param(op_, call_.params, name, value);
  }

  void set_params() {
    for (const auto& [name, text] : flags_.params) set_param(op_, call_.params, name, parse_param(name, text));
  }

  const ParamField& param_field(std::string_view name) const {
    return *std::find_if(op_.params.begin(), op_.params.end(), [&](const ParamField& f) { return f.name == name; });
  }

  template <class T>
  T parse_number(std::string_view argument, std::string_view text, std::string_view expected) const {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      invalid(argument, expected, fmt::format("'{}'", text), "write it as in --help");
    return value;
  }

  ParamValue parse_param(std::string_view name, const std::string& text) const {
    const ParamField& field = param_field(name);
    if (text == "none") return std::monostate();
    switch (field.type) {
      case ParamType::boolean:
        return text == "true";
      case ParamType::integer:
        return parse_number<int64_t>(name, text, "be an integer");
      case ParamType::real:
        return parse_number<double>(name, text, "be a number");
      case ParamType::text:
        return text;
      case ParamType::integers:
        break;
    }
    std::vector<int64_t> values;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      values.push_back(parse_number<int64_t>(name, std::string_view(text).substr(begin, end - begin),
                                             "be integers with commas between them"));
      begin = end + 1;
    }
    return values;
  }

  /// The form by name, or all that have every dimension and input given.
  std::vector<int> possible_forms() const {
    const auto forms = op_.forms;
    if (!flags_.form.empty()) {
      const auto found = std::find(forms.begin(), forms.end(), flags_.form);
      if (found == forms.end())
        invalid("--form", fmt::format("be one of {}", fmt::join(forms, ", ")), fmt::format("'{}'", flags_.form),
                "see --help");
      return {static_cast<int>(found - forms.begin())};
    }
    std::vector<int> possible;
    for (int form = 0; form < std::max(1, static_cast<int>(forms.size())); ++form)
      if (has_everything_given(form)) possible.push_back(form);
    if (possible.empty())
      invalid("the dimensions and inputs", "belong to one form of the operation", "those of several forms",
              "name the form with --form to see which do not fit");
    return possible;
  }

  bool has_everything_given(int form) const {
    const std::vector<std::string> dims = dim_names(op_, form);
    const bool has_dims = std::all_of(flags_.dims.begin(), flags_.dims.end(), [&](const auto& dim) {
      return std::find(dims.begin(), dims.end(), dim.first) != dims.end();
    });
    const bool has_inputs = std::all_of(op_.inputs.begin(), op_.inputs.end(), [&](const TensorField& field) {
      return find_wanted(field.name) == nullptr ||
             std::any_of(field.contract.begin(), field.contract.end(),
                         [&](const Alternative& alternative) { return field.contract.applies(alternative, form); });
    });
    return has_dims && has_inputs;
  }

  void make_inputs(int form) {
    form_ = form;
    call_.inputs.clear();
    for (const TensorField& field : op_.inputs) call_.inputs.push_back(make_input(field));
  }

  Tensor make_input(const TensorField& field) {
    const std::string* wanted = find_wanted(field.name);
    const size_t equals = wanted == nullptr ? std::string::npos : wanted->find('=');
    std::optional<DType> dtype;
    if (equals != std::string::npos) {
      const std::string_view spec = std::string_view(*wanted).substr(equals + 1);
      if (spec.find('[') != std::string_view::npos) return parse_spec(field.name, spec);
      dtype = parse_dtype_of(field.name, spec);
    }
    const Alternative* alternative = alternative_of(field, dtype);
    if (alternative == nullptr && wanted != nullptr)
      invalid(field.name, fmt::format("be left out in the {} form", op_.forms[static_cast<size_t>(form_)]),
              "--input " + *wanted, "use another form");
    if (alternative == nullptr || (alternative->optional && wanted == nullptr)) return {};
    Shape shape;
    for (int axis = 0; axis < alternative->rank; ++axis)
      shape.push_back(extent(alternative->dims[static_cast<size_t>(axis)], field.name));
    return Tensor(nullptr, dtype ? *dtype : dtype_of(*alternative), shape);
  }

  /// The first of this form, or the first that may have this dtype, where there is one; null when the form has none.
  const Alternative* alternative_of(const TensorField& field, std::optional<DType> dtype) const {
    const Alternative* first = nullptr;
    for (const Alternative& alternative : field.contract) {
      if (!field.contract.applies(alternative, form_)) continue;
      if (!dtype || (alternative.dtypes & set_of(*dtype)) != 0) return &alternative;
      if (first == nullptr) first = &alternative;  // what refuses the dtype says what it takes
    }
    return first;
  }

  const std::string* find_wanted(std::string_view name) const {
    for (const std::string& text : flags_.inputs)
      if (std::string_view(text).substr(0, text.find('=')) == name) return &text;
    return nullptr;
  }

  DType parse_dtype_of(std::string_view name, std::string_view text) const {
    const std::optional<DType> dtype = parse_dtype(text);
    if (!dtype) refuse_spec(name, text);
    return *dtype;
  }
  [[noreturn]] void refuse_spec(std::string_view name, std::string_view text) const {
    invalid(name, "be a dtype, or a dtype and a shape such as f32[2, 8]", fmt::format("'{}'", text), "see --help");
  }

  /// "bf16[2, 1, 8, 8]"
  Tensor parse_spec(std::string_view name, std::string_view text) const {
    const size_t open = text.find('[');
    const DType dtype = parse_dtype_of(name, text.substr(0, open));
    if (!text.ends_with(']')) refuse_spec(name, text);
    std::string_view list = text.substr(open + 1, text.size() - open - 2);
    Shape shape;
    while (!list.empty()) {
      const size_t comma = std::min(list.find(','), list.size());
      std::string_view word = list.substr(0, comma);
      while (word.starts_with(' ')) word.remove_prefix(1);
      shape.push_back(parse_number<int64_t>(name, word, "have integer extents"));
      list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return Tensor(nullptr, dtype, shape);
  }

  int64_t extent(const Dim& dim, std::string_view field) const {
    if (dim.kind == Dim::Kind::number) return dim.number;
    const int64_t value = dim_value(dim.name, field);
    int64_t result = value;
    const bool is_too_large = dim.kind == Dim::Kind::plus    ? __builtin_add_overflow(value, dim.number, &result)
                              : dim.kind == Dim::Kind::times ? __builtin_mul_overflow(value, dim.number, &result)
                                                             : false;
    if (is_too_large)
      invalid(fmt::format("--{}", dim.name), fmt::format("leave {} an extent of 64 bits", field), std::to_string(value),
              "pass a smaller one");
    return result;
  }

  int64_t dim_value(std::string_view name, std::string_view field) const {
    if (const auto given = flags_.dims.find(std::string(name)); given != flags_.dims.end()) return given->second;
    for (const DefaultDim& known : kDefaultDims)
      if (known.name == name) return known.same_as.empty() ? known.value : dim_value(known.same_as, field);
    invalid(fmt::format("--{}", name), fmt::format("be given for {}", field), "nothing", "pass its extent");
  }

  /// The first that fits: --dtype, the dtype the contract refers to, f32, or the only one that is legal.
  DType dtype_of(const Alternative& alternative) const {
    if (alternative.rule != DTypeRule::one_of) {
      const DType of = call_.inputs[static_cast<size_t>(find_input(op_, alternative.dtype_text))].dtype;
      return dtype_by_rule(op_, call_.params, alternative.rule, of);
    }
    DType wanted = DType::f32;
    if (!flags_.dtype.empty()) {
      const std::optional<DType> parsed = parse_dtype(flags_.dtype);
      if (!parsed) invalid("--dtype", "be the name of a dtype", fmt::format("'{}'", flags_.dtype), "for example bf16");
      wanted = *parsed;
    }
    // A first input that refuses --dtype says so itself; the others follow as far as they can.
    if ((alternative.dtypes & set_of(wanted)) != 0 || call_.inputs.empty()) return wanted;
    for (DType dtype : {DType::f32, DType::i32})
      if ((alternative.dtypes & set_of(dtype)) != 0) return dtype;
    for (int i = 0; i < kNumDTypes; ++i)
      if ((alternative.dtypes & set_of(static_cast<DType>(i))) != 0) return static_cast<DType>(i);
    return wanted;
  }

  const Operation& op_;
  const CallFlags& flags_;
  ToolCall call_;
  int form_ = 0;
};

}  // namespace

/// Names of the dimensions of an operation's inputs, in the order of the declaration.
std::vector<std::string> dim_names(const Operation& op, std::optional<int> form) {
  std::vector<std::string> names;
  for (const TensorField& field : op.inputs)
    for (const Alternative& alternative : field.contract) {
      if (form && !field.contract.applies(alternative, *form)) continue;
      for (int axis = 0; axis < alternative.rank; ++axis) {
        const std::string name(alternative.dims[static_cast<size_t>(axis)].name);
        if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
    }
  return names;
}

ToolCall make_call(const CallFlags& flags) {
  const Operation& op = *KernelRegistry::instance().find(flags.operation)->declaration;
  if (!flags.case_name.empty() && names_a_shape(flags))
    throw_invalid(op.name, "--case", "be the only description of the problem",
                  "dimensions, dtype, inputs or form as well", "leave one of them out");
  for (const std::string& text : flags.inputs)
    if (const std::string name = text.substr(0, text.find('=')); find_input(op, name) < 0) {
      std::vector<std::string> known;
      for (const TensorField& field : op.inputs) known.emplace_back(field.name);
      throw_invalid(op.name, "--input", "name one of its inputs", fmt::format("'{}'", name),
                    fmt::format("it has {}", fmt::join(known, ", ")));
    }
  return CallBuilder(op, flags).run();
}

ToolCall gradient_of(const ToolCall& forward, std::span<const Tensor> outputs, const Tensor& cotangent) {
  std::vector<Tensor> cotangents(outputs.size());
  cotangents[0] = cotangent;
  GradientCall gradient =
      gradient_call({forward.operation, forward.inputs, forward.params, {outputs.begin(), outputs.end()}}, cotangents);
  return {gradient.operation,
          gradient.inputs,
          gradient.params,
          {std::make_shared<std::vector<Array>>(std::move(gradient.zeros))}};
}

ToolCall make_specs(const CallFlags& flags) {
  ToolCall call = make_call(flags);
  for (Tensor& input : call.inputs) input.device = flags.device;
  if (!flags.backward) return call;
  const Operation& op = *KernelRegistry::instance().find(call.operation)->declaration;
  std::vector<Tensor> outputs;
  for (const OutputSpec& spec : check_call(op, call.inputs, call.params).outputs)
    outputs.push_back(spec.present ? Tensor(nullptr, spec.dtype, spec.shape, flags.device) : Tensor());
  return gradient_of(call, outputs, outputs[0]);
}

}  // namespace ejk::tool
