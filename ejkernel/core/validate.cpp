#include "ejkernel/core/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "ejkernel/core/error.h"

namespace ejk {
namespace {

std::string dtype_names(DTypeSet set) {
  std::string names;
  for (int i = 0; i < kNumDTypes; ++i) {
    if ((set & (DTypeSet{1} << i)) == 0) continue;
    const bool last = (set >> (i + 1)) == 0;
    names += fmt::format("{}{}", names.empty() ? "" : last ? " or " : ", ", name(static_cast<DType>(i)));
  }
  return names;
}

std::string dim_text(const Dim& dim) {
  switch (dim.kind) {
    case Dim::Kind::number:
      return std::to_string(dim.number);
    case Dim::Kind::plus:
      return fmt::format("{}+{}", dim.name, dim.number);
    case Dim::Kind::times:
      return fmt::format("{}*{}", dim.number, dim.name);
    case Dim::Kind::broadcast:
      return fmt::format("{} (or 1)", dim.name);
    case Dim::Kind::name:
      return std::string(dim.name);
  }
  return {};
}

/// What values a parameter takes, ranges apart.
std::string expected_of(const ParamField& field) {
  if (!field.choices.empty()) return fmt::format("be {}", fmt::join(field.choices, " or "));
  if (field.type == ParamType::text) return "be the name of a dtype";  // all other texts are enumerations
  if (field.type == ParamType::integers) return "be one integer or two";
  return fmt::format("be of type {}", name(field.type));
}

/// Offsets of elements must be far from overflowing wherever kernels multiply and add them.
void check_reach(const Operation& op, const TensorField& field, const Tensor& t) {
  constexpr int64_t kFarthest = int64_t{1} << 56;
  const auto [lowest, end] = element_range(t);
  if (lowest < -kFarthest || end > kFarthest)
    throw_invalid(op.name, field.name, "reach elements inside the address space",
                  fmt::format("shape {} with strides {}", to_string(t.shape), to_string(t.strides)),
                  "correct the strides");
}

void check_size(const Operation& op, const TensorField& field, const Tensor& t) {
  const auto refuse = [&](std::string_view expected) {
    throw_invalid(op.name, field.name, expected, to_string(t), "check how the shape was computed");
  };
  try {
    num_bytes(t.dtype, t.shape);
  } catch (const InvalidArgument&) {
    refuse("take less than 2^60 bytes");
  }
  if (t.num_elements() > 0) return;
  // Kernels count rows and heads where there is nothing to compute as well.
  int64_t product = 1;
  for (const int64_t extent : t.shape)
    if (extent > 0 && (__builtin_mul_overflow(product, extent, &product) || product >= int64_t{1} << 48))
      refuse("have extents beside its 0 of less than 2^48 elements");
}

/// Walks the inputs of one call in order and binds dimension names as they come.
class Checker {
 public:
  Checker(const Operation& op, std::span<const Tensor> inputs, const ParamsBlock& params)
      : op_(op), inputs_(inputs), params_(params) {}

  CheckedCall run() {
    check_count(op_, inputs_);
    check_params();
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (inputs_[i].present()) check_basics(op_.inputs[i], inputs_[i]);
    call_.form = op_.form(inputs_, params_);
    for (size_t i = 0; i < inputs_.size(); ++i) check_input(op_.inputs[i], inputs_[i]);
    check_devices();
    if (op_.check != nullptr) op_.check(inputs_, params_, call_.dims);
    for (const TensorField& field : op_.outputs) call_.outputs.push_back(infer(field));
    for (const OutputSpec& spec : call_.outputs)
      if (const auto i = static_cast<size_t>(spec.aliased_input); spec.aliased_input >= 0)
        check_writable(op_, op_.inputs[i], inputs_[i]);
    return std::move(call_);
  }

 private:
  [[noreturn]] void invalid(std::string_view argument, std::string_view expected, std::string_view got,
                            std::string_view fix) const {
    throw_invalid(op_.name, argument, expected, got, fix);
  }

  const Tensor* input(std::string_view name) const {
    const int i = find_input(op_, name);
    return i < 0 ? nullptr : &inputs_[static_cast<size_t>(i)];
  }

  void check_params() const {
    for (const ParamField& field : op_.params) {
      const ParamValue value = field.get(params_.data());
      const double* real = std::get_if<double>(&value);
      const int64_t* integer = std::get_if<int64_t>(&value);
      if (real != nullptr || integer != nullptr) {
        const double number = real != nullptr ? *real : static_cast<double>(*integer);
        if (!std::isfinite(number) || !field.range.contains(number)) range_error(field, value);
      }
      if (const std::string* text = std::get_if<std::string>(&value)) check_text(field, *text);
      if (const auto* sides = std::get_if<std::vector<int64_t>>(&value))
        for (int64_t side : *sides)
          if (side < -1) invalid(field.name, "have sides >= -1", to_string(value), "use -1 for an unbounded side");
    }
  }

  /// An enumerator that a cast made of a number has no name.
  void check_text(const ParamField& field, const std::string& text) const {
    const bool known = field.choices.empty()
                           ? parse_dtype(text).has_value()
                           : std::find(field.choices.begin(), field.choices.end(), text) != field.choices.end();
    if (!known) invalid(field.name, expected_of(field), "a value that is no enumerator", "pass one by its name");
  }

  [[noreturn]] void range_error(const ParamField& field, const ParamValue& value) const {
    const Range& r = field.range;
    std::string expected = "be finite";
    if (std::isfinite(r.low)) expected = fmt::format("be {} {}", r.low_open ? ">" : ">=", r.low);
    if (std::isfinite(r.high)) expected += fmt::format(" and {} {}", r.high_open ? "<" : "<=", r.high);
    invalid(field.name, expected, to_string(value), "choose a value in that range, or leave it at its default");
  }

  void check_basics(const TensorField& field, const Tensor& t) const {
    check_tensor(op_, field, t);
    if (t.rank() > 0 && t.shape[-1] > 1 && t.strides[-1] != 1)
      invalid(field.name, "have a contiguous last axis (stride 1)",
              fmt::format("stride {} (shape {}, strides {})", t.strides[-1], to_string(t.shape), to_string(t.strides)),
              "pass a contiguous copy");
  }

  void check_input(const TensorField& field, const Tensor& t) {
    const Contract& contract = field.contract;
    bool accepted = false, optional = true;
    for (const Alternative& alternative : contract)
      if (contract.applies(alternative, call_.form)) accepted = true, optional = optional && alternative.optional;
    if (!t.present()) {
      if (accepted && !optional)
        invalid(field.name, "be given" + in_this_form(), "nothing", fmt::format("pass {}", field.contract.text()));
      return;
    }
    if (!accepted)
      invalid(field.name, "be left out" + in_this_form(), to_string(t), "leave it out, or use another form");

    const Alternative* of_rank = nullptr;  // the first that fits, else the first
    for (const Alternative& alternative : contract) {
      if (!contract.applies(alternative, call_.form) || alternative.rank != t.rank()) continue;
      if (of_rank == nullptr || (!fits(*of_rank, t) && fits(alternative, t))) of_rank = &alternative;
    }
    if (of_rank == nullptr) rank_error(field, t);
    bind(field, *of_rank, t);  // names the first dimension that differs
  }

  std::string in_this_form() const {
    if (op_.forms.empty()) return {};
    return fmt::format(" in the {} form", op_.forms[static_cast<size_t>(call_.form)]);
  }

  [[noreturn]] void rank_error(const TensorField& field, const Tensor& t) const {
    std::string expected;
    for (const Alternative& alternative : field.contract)
      if (field.contract.applies(alternative, call_.form))
        expected += fmt::format("{}{}", expected.empty() ? "be " : " or ", alternative.dims_text);
    invalid(field.name, expected + in_this_form(), fmt::format("rank {} {}", t.rank(), to_string(t.shape)),
            "reshape it, or pass a strided view");
  }

  bool fits(const Alternative& alternative, const Tensor& t) const {
    for (int axis = 0; axis < t.rank(); ++axis) {
      const Dim& dim = alternative.dims[static_cast<size_t>(axis)];
      const Dims::Entry* known = call_.dims.find(dim.name);
      const int64_t extent = t.shape[axis];
      switch (dim.kind) {
        case Dim::Kind::number:
          if (extent != dim.number) return false;
          break;
        case Dim::Kind::name:
          if (known != nullptr && extent != known->value) return false;
          break;
        case Dim::Kind::plus:
          if (known != nullptr ? extent != known->value + dim.number : extent < dim.number) return false;
          break;
        case Dim::Kind::times:
          if (known != nullptr ? extent != known->value * dim.number : extent % dim.number != 0) return false;
          break;
        case Dim::Kind::broadcast:
          if (extent != 1 && known != nullptr && extent != known->value) return false;
          break;
      }
    }
    return true;
  }

  void bind(const TensorField& field, const Alternative& alternative, const Tensor& t) {
    check_dtype(field, alternative, t);
    for (int axis = 0; axis < t.rank(); ++axis) bind_axis(field, alternative.dims[static_cast<size_t>(axis)], t, axis);
  }

  void bind_axis(const TensorField& field, const Dim& dim, const Tensor& t, int axis) {
    const int64_t extent = t.shape[axis];
    if (dim.kind == Dim::Kind::number) {
      if (extent != dim.number)
        invalid(field.name, fmt::format("have extent {} on axis {}", dim.number, axis),
                fmt::format("{} ({} {})", extent, field.name, to_string(t.shape)), "reshape it");
      return;
    }
    if (dim.kind == Dim::Kind::broadcast && extent == 1) return;
    const Dims::Entry* known = call_.dims.find(dim.name);
    if (known != nullptr) return check_bound(field, dim, *known, t, axis);
    int64_t value = extent;
    if (dim.kind == Dim::Kind::plus) value = extent - dim.number;
    if (dim.kind == Dim::Kind::times) value = extent / dim.number;
    if (value < 0 || (dim.kind == Dim::Kind::times && extent % dim.number != 0))
      invalid(field.name, fmt::format("have {} elements on axis {}", dim_text(dim), axis),
              fmt::format("{} ({} {})", extent, field.name, to_string(t.shape)), "check its length");
    call_.dims.bind(dim.name, value, field.name);
  }

  void check_bound(const TensorField& field, const Dim& dim, const Dims::Entry& known, const Tensor& t,
                   int axis) const {
    int64_t expected = known.value;
    if (dim.kind == Dim::Kind::plus) expected += dim.number;
    if (dim.kind == Dim::Kind::times) expected *= dim.number;
    if (t.shape[axis] == expected) return;
    const Tensor* binder = input(known.bound_by);
    const std::string both =
        fmt::format("({} {}, {} {})", known.bound_by, to_string(binder->shape), field.name, to_string(t.shape));
    const std::string or_one = dim.kind == Dim::Kind::broadcast ? " (or be 1)" : "";
    if (dim.kind == Dim::Kind::plus || dim.kind == Dim::Kind::times)
      throw_invalid(op_.name, field.name,
                    fmt::format("have {} = {} elements on axis {}", dim_text(dim), expected, axis),
                    fmt::format("{} {}", t.shape[axis], both), fmt::format("{} fixes {}", known.bound_by, dim.name));
    throw_invalid(op_.name, fmt::format("{} {}", field.name, dim.name),
                  fmt::format("equal {} {} {}{}", known.bound_by, known.name, expected, or_one),
                  fmt::format("{} {}", t.shape[axis], both), fmt::format("give both the same {}", dim.name));
  }

  void check_dtype(const TensorField& field, const Alternative& alternative, const Tensor& t) const {
    if (alternative.rule == DTypeRule::one_of) {
      if ((alternative.dtypes & set_of(t.dtype)) == 0)
        invalid(fmt::format("{} dtype", field.name), "be " + dtype_names(alternative.dtypes), name(t.dtype),
                "convert it first");
      return;
    }
    const DType expected = resolve_dtype(alternative);
    if (t.dtype == expected) return;
    const bool is_same = alternative.rule == DTypeRule::same_as;
    invalid(fmt::format("{} dtype", field.name),
            is_same ? fmt::format("equal {} dtype {}", alternative.dtype_text, name(expected))
                    : fmt::format("be {}", name(expected)),
            name(t.dtype), is_same ? "convert one of them first" : "convert it first");
  }

  DType resolve_dtype(const Alternative& alternative) const {
    if (alternative.rule == DTypeRule::one_of) return first_dtype(alternative.dtypes);
    const Tensor* of = input(alternative.dtype_text);
    if (of == nullptr || !of->present())
      throw Internal(fmt::format("{}: a contract refers to {}, which is not given", op_.name, alternative.dtype_text));
    return dtype_by_rule(op_, params_, alternative.rule, of->dtype);
  }

  static DType first_dtype(DTypeSet set) {
    for (int i = 0; i < kNumDTypes; ++i)
      if ((set & (DTypeSet{1} << i)) != 0) return static_cast<DType>(i);
    return DType::f32;
  }

  void check_devices() const {
    const Tensor* first = nullptr;
    std::string_view first_name;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].present()) continue;
      if (first == nullptr) {
        first = &inputs_[i];
        first_name = op_.inputs[i].name;
      }
      if (!(inputs_[i].device == first->device))
        invalid(op_.inputs[i].name, fmt::format("be on the device of {}, {}", first_name, to_string(first->device)),
                to_string(inputs_[i].device), "copy it there first");
    }
  }

  OutputSpec infer(const TensorField& field) const {
    if (const int i = aliased_input(op_.inputs, field); i >= 0) {
      const Tensor& t = inputs_[static_cast<size_t>(i)];
      return t.present() ? OutputSpec{t.dtype, t.shape, true, i} : OutputSpec{};
    }
    for (const Alternative& alternative : field.contract) {
      if (!field.contract.applies(alternative, call_.form)) continue;
      // The input of the same name, if there is one: what a gradient mirrors, broadcast extents included.
      const Tensor* twin = input(field.name);
      if (alternative.optional && (twin == nullptr || !twin->present())) return {};
      if (twin != nullptr && twin->rank() != alternative.rank) continue;
      OutputSpec spec{.dtype = resolve_dtype(alternative), .present = true};
      for (int axis = 0; axis < alternative.rank; ++axis)
        spec.shape.push_back(extent_of(alternative.dims[static_cast<size_t>(axis)], twin, axis));
      return spec;
    }
    return {};
  }

  int64_t extent_of(const Dim& dim, const Tensor* twin, int axis) const {
    switch (dim.kind) {
      case Dim::Kind::number:
        return dim.number;
      case Dim::Kind::plus:
        return call_.dims[dim.name] + dim.number;
      case Dim::Kind::times:
        return call_.dims[dim.name] * dim.number;
      case Dim::Kind::broadcast:
        return twin != nullptr ? twin->shape[axis] : 1;
      case Dim::Kind::name:
        return call_.dims[dim.name];
    }
    return 0;
  }

  const Operation& op_;
  std::span<const Tensor> inputs_;
  const ParamsBlock& params_;
  CheckedCall call_;
};

void check_alignment(const Operation& op, const TensorField& field, const Tensor& t) {
  if (t.num_elements() == 0) return;
  if (t.data == nullptr)
    throw_invalid(op.name, field.name, "point at its elements", "a null pointer", "pass the buffer's address");
  const auto size = static_cast<uintptr_t>(bits(t.dtype) <= 8 ? 1 : bits(t.dtype) / 8);
  const auto address = reinterpret_cast<uintptr_t>(t.data);
  if (address % size != 0)
    throw_invalid(op.name, field.name, fmt::format("be aligned to its element size {}", size),
                  fmt::format("an address that is {} past such a boundary", address % size), "pass an aligned copy");
}

}  // namespace

void throw_invalid(std::string_view operation, std::string_view argument, std::string_view expected,
                   std::string_view got, std::string_view fix) {
  throw InvalidArgument(fmt::format("{}: {} must {}, got {}; {}", operation, argument, expected, got, fix));
}

DType dtype_by_rule(const Operation& op, const ParamsBlock& params, DTypeRule rule, DType of) {
  const auto chosen_by = [&](std::string_view param) -> std::optional<DType> {
    for (const ParamField& field : op.params) {
      if (field.name != param) continue;
      const ParamValue chosen = field.get(params.data());
      if (const std::string* text = std::get_if<std::string>(&chosen)) return parse_dtype(*text);
    }
    return {};
  };
  const DType stats = of == DType::f64 ? DType::f64 : DType::f32;
  switch (rule) {
    case DTypeRule::result_of:
      return chosen_by("out_dtype").value_or(bits(of) <= 8 ? DType::bf16 : of);
    case DTypeRule::stats_of:
      return stats;
    case DTypeRule::state_of:
      return chosen_by("state_dtype").value_or(stats);
    default:
      return of;
  }
}

void check_count(const Operation& op, std::span<const Tensor> inputs) {
  if (inputs.size() != op.inputs.size())
    throw_invalid(op.name, "the inputs", fmt::format("be {} tensors", op.inputs.size()), std::to_string(inputs.size()),
                  "pass one per declared input, absent ones default-constructed");
}

void check_tensor(const Operation& op, const TensorField& field, const Tensor& t) {
  if (static_cast<int>(t.dtype) >= kNumDTypes)
    throw_invalid(op.name, fmt::format("{} dtype", field.name), "be a DType",
                  fmt::format("the number {}", static_cast<int>(t.dtype)), "pass an enumerator by its name");
  if (t.device.kind != DeviceKind::cpu && t.device.kind != DeviceKind::cuda)
    throw_invalid(op.name, fmt::format("{} device kind", field.name), "be cpu or cuda",
                  fmt::format("the number {}", static_cast<int>(t.device.kind)), "pass an enumerator by its name");
  if (t.strides.rank() != t.rank())
    throw_invalid(op.name, field.name, fmt::format("have {} strides", t.rank()), std::to_string(t.strides.rank()),
                  "give one stride per dimension");
  for (int64_t extent : t.shape)
    if (extent < 0)
      throw_invalid(op.name, field.name, "have extents >= 0", to_string(t.shape), "check how the shape was computed");
  check_size(op, field, t);
  check_reach(op, field, t);
}

void check_writable(const Operation& op, const TensorField& field, const Tensor& t) {
  if (overlaps_itself(t))
    throw_invalid(op.name, field.name, "have strides that do not overlap",
                  fmt::format("shape {} with strides {}", to_string(t.shape), to_string(t.strides)),
                  "pass a buffer of its own");
}

CheckedCall check_call(const Operation& operation, std::span<const Tensor> inputs, const ParamsBlock& params) {
  return Checker(operation, inputs, params).run();
}

void check_buffers(const Operation& op, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                   std::span<const OutputSpec> specs, std::span<const Tensor> planned) {
  if (inputs.size() != planned.size() || outputs.size() != specs.size())
    throw_invalid(op.name, "the tensors", fmt::format("be {} inputs and {} outputs", planned.size(), specs.size()),
                  fmt::format("{} and {}", inputs.size(), outputs.size()), "pass one per declared field");
  const Device device = planned[0].device;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor &t = inputs[i], &plan = planned[i];
    // Most inputs of most calls are absent: told without a call of a function.
    if (t.present() != plan.present() || (t.present() && !is_same_spec(t, plan)))
      throw_invalid(op.name, op.inputs[i].name, "equal what was planned, " + to_string(plan), to_string(t),
                    "plan again for another shape, dtype, stride or device");
    if (t.present()) check_alignment(op, op.inputs[i], t);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& t = outputs[i];
    const TensorField& field = op.outputs[i];
    if (!t.present()) continue;  // an output that the caller does not want
    if (!specs[i].present)
      throw_invalid(op.name, field.name, "be left out of the outputs of this call", to_string(t),
                    "its input is absent, so it has no value");
    if (specs[i].aliased_input >= 0) {
      const Tensor& input = inputs[static_cast<size_t>(specs[i].aliased_input)];
      const bool is_there = t.data == input.data || t.num_elements() == 0;
      if (!is_there || !is_same_spec(t, input))
        throw_invalid(op.name, fmt::format("the output {}", field.name),
                      fmt::format("be the input of that name, {}, whose memory is written", to_string(input)),
                      fmt::format("{} {}", to_string(t), is_there ? "seen otherwise" : "in other memory"),
                      "pass the same tensor twice, or leave the output out");
      continue;
    }
    if (t.dtype != specs[i].dtype || !(t.shape == specs[i].shape))
      throw_invalid(op.name, field.name, "be " + to_string(Tensor(nullptr, specs[i].dtype, specs[i].shape)),
                    to_string(t), "allocate it from the plan's output specs");
    if (!(t.device == device))
      throw_invalid(op.name, field.name, "be on the call's device " + to_string(device), to_string(t.device),
                    "allocate it there");
    if (t.strides.rank() != t.rank())
      throw_invalid(op.name, field.name, fmt::format("have {} strides", t.rank()), std::to_string(t.strides.rank()),
                    "give one stride per dimension");
    if (t.rank() > 0 && t.shape[-1] > 1 && t.strides[-1] != 1)
      throw_invalid(op.name, field.name, "have a contiguous last axis (stride 1)", to_string(t.strides),
                    "pass another buffer");
    check_reach(op, field, t);
    check_writable(op, field, t);
    check_alignment(op, field, t);
  }
}

void set_param(const Operation& op, ParamsBlock& params, std::string_view name, const ParamValue& value) {
  for (const ParamField& field : op.params) {
    if (field.name != name) continue;
    if (field.set(params.data(), value)) return;
    const std::string got = to_string(value);
    throw_invalid(op.name, name, expected_of(field), got.empty() ? "an empty text" : got,
                  "see the operation's page for its parameters");
  }
  std::string known;
  for (const ParamField& field : op.params) known += fmt::format("{}{}", known.empty() ? "" : ", ", field.name);
  throw_invalid(op.name, fmt::format("parameter name {}", name), "be one of its parameters", "an unknown name",
                known.empty() ? "it has none" : "it has " + known);
}

std::string to_string(const ParamValue& value) {
  if (const bool* v = std::get_if<bool>(&value)) return *v ? "true" : "false";
  if (const int64_t* v = std::get_if<int64_t>(&value)) return std::to_string(*v);
  if (const double* v = std::get_if<double>(&value)) return fmt::format("{}", *v);
  if (const std::string* v = std::get_if<std::string>(&value)) return *v;
  if (const auto* v = std::get_if<std::vector<int64_t>>(&value)) return fmt::format("({})", fmt::join(*v, ", "));
  return "nothing";
}

int find_input(const Operation& op, std::string_view name) {
  for (size_t i = 0; i < op.inputs.size(); ++i)
    if (op.inputs[i].name == name) return static_cast<int>(i);
  return -1;
}

int find_output(const Operation& op, std::string_view name) {
  for (size_t i = 0; i < op.outputs.size(); ++i)
    if (op.outputs[i].name == name) return static_cast<int>(i);
  return -1;
}

}  // namespace ejk
