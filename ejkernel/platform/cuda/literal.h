// The text of a config or variant struct as a template argument: literal(FlashForwardConfig{2, true}) is
// "ejk::FlashForwardConfig{2, true}", which device code compiled from the same header reads as the same value.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace ejk::cuda {

namespace literal_detail {

/// "ejk::FlashForwardConfig": the spelling that the compiler gives in "… [with T = ejk::FlashForwardConfig; …]".
template <class T>
constexpr std::string_view type_name() {
  constexpr std::string_view function = __PRETTY_FUNCTION__;
  constexpr size_t begin = function.find("T = ") + 4;
  constexpr size_t end = function.find_first_of(";]", begin);
  return function.substr(begin, end - begin);
}

/// Stands for a member of any type while members are counted.
struct Anything {
  template <class T>
  operator T() const;  // NOLINT: implicit is the point; never defined
};

template <class T, size_t... i>
constexpr bool takes(std::index_sequence<i...>) {
  return requires { T{((void)i, Anything())...}; };
}

/// How many values an aggregate's braces hold.
template <class T, size_t kCount = 0>
constexpr size_t num_members() {
  if constexpr (takes<T>(std::make_index_sequence<kCount + 1>()))
    return num_members<T, kCount + 1>();
  else
    return kCount;
}

/// Calls use(members...).
template <class T, class Use>
auto with_members(const T& value, Use use) {
  constexpr size_t kCount = num_members<T>();
  static_assert(kCount >= 1 && kCount <= 16, "one more line below");
  if constexpr (kCount == 1) {
    const auto& [a] = value;
    return use(a);
  } else if constexpr (kCount == 2) {
    const auto& [a, b] = value;
    return use(a, b);
  } else if constexpr (kCount == 3) {
    const auto& [a, b, c] = value;
    return use(a, b, c);
  } else if constexpr (kCount == 4) {
    const auto& [a, b, c, d] = value;
    return use(a, b, c, d);
  } else if constexpr (kCount == 5) {
    const auto& [a, b, c, d, e] = value;
    return use(a, b, c, d, e);
  } else if constexpr (kCount == 6) {
    const auto& [a, b, c, d, e, f] = value;
    return use(a, b, c, d, e, f);
  } else if constexpr (kCount == 7) {
    const auto& [a, b, c, d, e, f, g] = value;
    return use(a, b, c, d, e, f, g);
  } else if constexpr (kCount == 8) {
    const auto& [a, b, c, d, e, f, g, h] = value;
    return use(a, b, c, d, e, f, g, h);
  } else if constexpr (kCount == 9) {
    const auto& [a, b, c, d, e, f, g, h, i] = value;
    return use(a, b, c, d, e, f, g, h, i);
  } else if constexpr (kCount == 10) {
    const auto& [a, b, c, d, e, f, g, h, i, j] = value;
    return use(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (kCount == 11) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k] = value;
    return use(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (kCount == 12) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = value;
    return use(a, b, c, d, e, f, g, h, i, j, k, l);
  } else if constexpr (kCount == 13) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = value;
    return use(a, b, c, d, e, f, g, h, i, j, k, l, m);
  } else if constexpr (kCount == 14) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = value;
    return use(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  } else if constexpr (kCount == 15) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = value;
    return use(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  } else {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = value;
    return use(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
  }
}

}  // namespace literal_detail

/// Members are int, bool, enumerations, or structs of these; types stand in a named namespace.
template <class T>
std::string literal(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else if constexpr (std::is_enum_v<T>) {
    using Number = std::underlying_type_t<T>;
    return std::string(literal_detail::type_name<T>()).append("(").append(std::to_string(static_cast<Number>(value))) +
           ")";
  } else {
    std::string text(literal_detail::type_name<T>());
    const char* separator = "{";
    literal_detail::with_members(value, [&](const auto&... members) {
      ((text.append(separator).append(literal(members)), separator = ", "), ...);
    });
    return text.append("}");
  }
}

}  // namespace ejk::cuda
