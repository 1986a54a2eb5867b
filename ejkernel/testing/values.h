// Tensors from lists of numbers and back, for tests that work a result out by hand.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ejkernel/core/error.h"
#include "ejkernel/core/tensor.h"

namespace ejk::testing {

inline Array array_of(DType dtype, const Shape& shape, const std::vector<double>& values) {
  Array a(dtype, shape);
  for (int64_t n = 0; n < a.num_elements(); ++n) set(a, n, values.at(static_cast<size_t>(n)));
  return a;
}
inline Array f32(const Shape& shape, const std::vector<double>& values) { return array_of(DType::f32, shape, values); }
inline Array f64(const Shape& shape, const std::vector<double>& values) { return array_of(DType::f64, shape, values); }
inline Array i32(const std::vector<double>& values) {
  return array_of(DType::i32, {static_cast<int64_t>(values.size())}, values);
}
inline Array bools(const Shape& shape, const std::vector<double>& values) {
  return array_of(DType::boolean, shape, values);
}

/// first, first + 1, …
inline Array counting(const Shape& shape, double first = 1, DType dtype = DType::f32) {
  Array a(dtype, shape);
  for (int64_t n = 0; n < a.num_elements(); ++n) set(a, n, first + static_cast<double>(n));
  return a;
}

inline std::vector<double> values_of(const Tensor& t) {
  std::vector<double> values;
  for (int64_t n = 0; n < t.num_elements(); ++n) values.push_back(get(t, n));
  return values;
}

/// The text of the InvalidArgument that a call throws.
inline std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

}  // namespace ejk::testing
