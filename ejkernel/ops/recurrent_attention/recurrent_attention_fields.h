// Fields that recurrent_attention has in common with the operations that are it with some of its gates.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "ejkernel/core/schema.h"

namespace ejk {

/// softmax_scale, reverse, state_dtype.
template <class Params>
constexpr auto recurrence_params() {
  return std::array{
      param<&Params::softmax_scale>("softmax_scale", Key::none, "factor of out; absent: 1/sqrt(key_dim)", finite()),
      param<&Params::reverse>("reverse", Key::value, "from the last token to the first"),
      param<&Params::state_dtype>("state_dtype", Key::value,
                                  "dtype of final_state; absent: float32 (float64 for float64 queries)")};
}

/// The fields of these names, in the names' order. A name that none has does not compile.
template <size_t kFields, size_t kNames>
constexpr std::array<TensorField, kNames> fields_named(const std::array<TensorField, kFields>& fields,
                                                       const std::string_view (&names)[kNames]) {
  const auto find = [&](std::string_view name) {
    for (const TensorField& field : fields)
      if (field.name == name) return field;
    throw "no field has this name";
  };
  return [&]<size_t... i>(std::index_sequence<i...>) { return std::array<TensorField, kNames>{find(names[i])...}; }
  (std::make_index_sequence<kNames>());
}

}  // namespace ejk
