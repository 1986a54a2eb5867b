// The fields of an operation's declaration: tensors with their contract, parameters with range and key kind.
// Everything that is derived (validation, keys, JSON, command line, docs, C ABI) walks these arrays.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "ejkernel/core/contract.h"
#include "ejkernel/core/dtype.h"
#include "ejkernel/core/enum_name.h"
#include "ejkernel/core/export.h"

namespace ejk {

/// A tensor argument. Inputs and Outputs structs hold nothing but Tensors, in the order of their fields.
struct TensorField {
  std::string_view name;
  Contract contract;
  std::string_view doc;
  std::string_view python_name = {};  ///< where the Python library spells it differently
};

/// An output that is the input of its name, written in place.
constexpr bool is_aliased(const TensorField& output) {
  for (const Alternative& alternative : output.contract)
    if (alternative.aliased) return true;
  return false;
}

/// Whether an output may alias an input: the same forms and alternatives, each with the same dimensions, and the same
/// dtypes or '@' the input itself.
constexpr bool may_alias(const TensorField& output, const TensorField& input) {
  const Contract &out = output.contract, &in = input.contract;
  if (output.name != input.name || out.size() != in.size() || out.num_forms() != in.num_forms()) return false;
  for (int i = 0; i < out.size(); ++i) {
    const Alternative &o = out.begin()[i], &a = in.begin()[i];
    const bool is_same_dtype = o.rule == a.rule && o.dtypes == a.dtypes && o.dtype_text == a.dtype_text;
    const bool is_inputs_dtype = o.rule == DTypeRule::same_as && o.dtype_text == input.name;
    if (!o.aliased || o.form != a.form || o.optional != a.optional || o.dims_text != a.dims_text ||
        !(is_same_dtype || is_inputs_dtype))
      return false;
  }
  return true;
}

/// The input that an output aliases; -1: none, it has memory of its own.
constexpr int aliased_input(std::span<const TensorField> inputs, const TensorField& output) {
  if (!is_aliased(output)) return -1;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].name == output.name) return static_cast<int>(i);
  return -1;
}

/// Whether every '&' stands at an output that may alias an input.
constexpr bool aliases_are_sound(std::span<const TensorField> inputs, std::span<const TensorField> outputs) {
  for (const TensorField& input : inputs)
    if (is_aliased(input)) return false;
  for (const TensorField& output : outputs) {
    if (!is_aliased(output)) continue;
    const int input = aliased_input(inputs, output);
    if (input < 0 || !may_alias(output, inputs[static_cast<size_t>(input)])) return false;
  }
  return true;
}

/// A parameter's value without its type: absent, or one of what the C ABI, JSON and the command line can carry.
/// Enumerations and dtypes travel by name, windows as one or two integers.
using ParamValue = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>>;

/// How a parameter enters the tuning key.
enum class Key : uint8_t { none, present, value, bucket };

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = true;
  bool high_open = true;
  bool contains(double x) const { return (low_open ? x > low : x >= low) && (high_open ? x < high : x <= high); }
};
constexpr Range finite() { return {}; }
constexpr Range positive() { return {.low = 0}; }
constexpr Range at_least(double low) { return {.low = low, .low_open = false}; }
constexpr Range half_open(double low, double high) { return {.low = low, .high = high, .low_open = false}; }

/// Tokens (left, right) that a query sees around its own position, both inclusive; -1 is unbounded. A plain integer w
/// means (w, 0) under a causal mask and (w, w) otherwise (operations §0.6). Default: no window.
struct Window {
  int64_t left = -1;
  int64_t right = -1;
  bool symmetric = false;  // a plain integer: `right` follows from the mask

  constexpr Window() = default;
  constexpr Window(int64_t w) : left(w), right(w), symmetric(true) {}  // NOLINT: `.sliding_window = 128`
  constexpr Window(int64_t left, int64_t right) : left(left), right(right) {}

  constexpr bool unbounded() const { return left == -1 && right == -1; }
  /// The window that the mask kernels use.
  constexpr Window resolve(bool causal) const {
    return symmetric && causal && left >= 0 ? Window(left, 0) : Window(left, right);
  }
  friend constexpr bool operator==(const Window&, const Window&) = default;
};

/// Enumerations used as parameters give their names, in order, by `enum_names(E)` found by argument-dependent lookup.
template <class E>
concept NamedEnum = std::is_enum_v<E> && requires(E e) {
  enum_names(e);
};

/// What kind of value a parameter takes, as documents and command lines say it.
enum class ParamType : uint8_t { boolean, integer, real, text, integers };
EJK_API std::string_view name(ParamType type);

template <class T>
struct ParamTraits;

template <>
struct ParamTraits<bool> {
  static constexpr ParamType kType = ParamType::boolean;
  static ParamValue get(bool value) { return value; }
  static bool set(bool& to, const ParamValue& from) {
    const bool* value = std::get_if<bool>(&from);
    if (value != nullptr) to = *value;
    return value != nullptr;
  }
};

template <>
struct ParamTraits<int64_t> {
  static constexpr ParamType kType = ParamType::integer;
  static ParamValue get(int64_t value) { return value; }
  static bool set(int64_t& to, const ParamValue& from) {
    const int64_t* value = std::get_if<int64_t>(&from);
    if (value != nullptr) to = *value;
    return value != nullptr;
  }
};

template <>
struct ParamTraits<double> {
  static constexpr ParamType kType = ParamType::real;
  static ParamValue get(double value) { return value; }
  static bool set(double& to, const ParamValue& from) {
    if (const double* value = std::get_if<double>(&from)) return to = *value, true;
    if (const int64_t* value = std::get_if<int64_t>(&from)) return to = static_cast<double>(*value), true;
    return false;
  }
};

template <NamedEnum E>
struct ParamTraits<E> {
  static constexpr ParamType kType = ParamType::text;
  static ParamValue get(E value) { return std::string(name_in(enum_names(value), value)); }
  static bool set(E& to, const ParamValue& from) {
    const std::string* text = std::get_if<std::string>(&from);
    if (text == nullptr) return false;
    constexpr auto names = enum_names(E{});
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i] == *text) return to = static_cast<E>(i), true;
    return false;
  }
};

template <>
struct ParamTraits<DType> {
  static constexpr ParamType kType = ParamType::text;
  static ParamValue get(DType value) { return std::string(name(value)); }
  static bool set(DType& to, const ParamValue& from) {
    const std::string* text = std::get_if<std::string>(&from);
    const std::optional<DType> dtype = text == nullptr ? std::nullopt : parse_dtype(*text);
    if (dtype) to = *dtype;
    return dtype.has_value();
  }
};

template <>
struct ParamTraits<Window> {
  static constexpr ParamType kType = ParamType::integers;
  static ParamValue get(const Window& window) {
    if (window == Window()) return std::monostate();
    if (window.symmetric) return std::vector<int64_t>{window.left};
    return std::vector<int64_t>{window.left, window.right};
  }
  static bool set(Window& to, const ParamValue& from) {
    if (std::holds_alternative<std::monostate>(from)) return to = Window(), true;
    if (const int64_t* w = std::get_if<int64_t>(&from)) return to = Window(*w), true;
    const auto* sides = std::get_if<std::vector<int64_t>>(&from);
    if (sides == nullptr || sides->empty() || sides->size() > 2) return false;
    to = sides->size() == 1 ? Window((*sides)[0]) : Window((*sides)[0], (*sides)[1]);
    return true;
  }
};

template <class T>
struct ParamTraits<std::optional<T>> {
  static constexpr ParamType kType = ParamTraits<T>::kType;
  static ParamValue get(const std::optional<T>& value) {
    return value ? ParamTraits<T>::get(*value) : ParamValue(std::monostate());
  }
  static bool set(std::optional<T>& to, const ParamValue& from) {
    if (std::holds_alternative<std::monostate>(from)) return to.reset(), true;
    T value{};
    if (!ParamTraits<T>::set(value, from)) return false;
    to = value;
    return true;
  }
};

/// A parameter: its place in the operation's Params struct is behind `get` and `set`.
struct ParamField {
  std::string_view name;
  Key key;
  Range range;
  std::string_view doc;
  ParamType type;
  std::span<const std::string_view> choices;  ///< legal texts of an enumeration; empty otherwise
  ParamValue (*get)(const void* params);
  bool (*set)(void* params, const ParamValue& value);  ///< false: not a value of this type
};

template <class T>
struct MemberOf;
template <class S, class T>
struct MemberOf<T S::*> {
  using Struct = S;
  using Type = T;
};

namespace schema_detail {
template <class T>
struct Unwrap {
  using Type = T;
};
template <class T>
struct Unwrap<std::optional<T>> {
  using Type = T;
};
// Hidden: otherwise the library would export one symbol per instance.
template <class E>
[[gnu::visibility("hidden")]] inline constexpr auto kEnumNames = enum_names(E{});

template <class T>
constexpr std::span<const std::string_view> choices() {
  using Plain = typename Unwrap<T>::Type;
  if constexpr (NamedEnum<Plain>)
    return kEnumNames<Plain>;
  else
    return {};
}
}  // namespace schema_detail

template <auto kMember>
constexpr ParamField param(std::string_view name, Key key, std::string_view doc, Range range = {}) {
  using Member = MemberOf<decltype(kMember)>;
  using Traits = ParamTraits<typename Member::Type>;
  return {
      .name = name,
      .key = key,
      .range = range,
      .doc = doc,
      .type = Traits::kType,
      .choices = schema_detail::choices<typename Member::Type>(),
      .get = [](const void* p) { return Traits::get(static_cast<const typename Member::Struct*>(p)->*kMember); },
      .set = [](void* p,
                const ParamValue& v) { return Traits::set(static_cast<typename Member::Struct*>(p)->*kMember, v); }};
}

/// A config field: an int, bool or `enum class : int` of a kernel's Config struct, with its legal values.
struct ConfigField {
  std::string_view name;
  std::span<const int64_t> legal;
  std::string_view doc;
  int64_t (*get)(const void* config);
  void (*set)(void* config, int64_t value);
};

// Hidden like the names above.
template <int64_t... kLegal>
[[gnu::visibility("hidden")]] inline constexpr std::array<int64_t, sizeof...(kLegal)> kLegalValues = {kLegal...};

template <auto kMember, int64_t... kLegal>
constexpr ConfigField config_field(std::string_view name, std::string_view doc) {
  using Member = MemberOf<decltype(kMember)>;
  return {
      .name = name,
      .legal = kLegalValues<kLegal...>,
      .doc = doc,
      .get =
          [](const void* c) { return static_cast<int64_t>(static_cast<const typename Member::Struct*>(c)->*kMember); },
      .set =
          [](void* c, int64_t v) {
            static_cast<typename Member::Struct*>(c)->*kMember = static_cast<typename Member::Type>(v);
          }};
}

/// One array out of two: a gradient's inputs are its operation's, and then some.
template <class T, size_t kFirst, size_t kSecond>
constexpr std::array<T, kFirst + kSecond> concatenate(const std::array<T, kFirst>& a, const std::array<T, kSecond>& b) {
  return [&]<size_t... i, size_t... j>(std::index_sequence<i...>, std::index_sequence<j...>) {
    return std::array<T, kFirst + kSecond>{a[i]..., b[j]...};
  }
  (std::make_index_sequence<kFirst>(), std::make_index_sequence<kSecond>());
}

}  // namespace ejk
