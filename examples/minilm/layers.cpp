#include "examples/minilm/layers.h"

#include <Eigen/Core>
#include <unsupported/Eigen/SpecialFunctions>

namespace minilm {
namespace {

using ejk::DType;
using ejk::Tensor;

template <class T>
using Matrix = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <class T>
using Row = Eigen::Map<Eigen::Matrix<T, 1, Eigen::Dynamic>>;

template <class T>
Matrix<T> matrix(const Tensor& t) {
  return {t.as<T>(), t.shape[0], t.shape[1]};
}
template <class T>
Row<T> row(const Tensor& t) {
  return {t.as<T>(), t.num_elements()};
}

/// Calls f<float>() or f<double>().
template <class F>
void dispatch(DType dtype, F&& f) {
  if (dtype == DType::f64)
    f.template operator()<double>();
  else
    f.template operator()<float>();
}

}  // namespace

void gelu(const Tensor& x) {
  dispatch(x.dtype, [&]<class T>() {
    auto values = row<T>(x).array();
    values *= T(0.5) * (T(1) + (values * T(M_SQRT1_2)).erf());
  });
}

void add_and_normalise(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                       double epsilon) {
  dispatch(x.dtype, [&]<class T>() {
    Matrix<T> rows = matrix<T>(x);
    if (residual.present()) rows += matrix<T>(residual);
    for (auto values : rows.rowwise()) {
      values.array() -= values.mean();
      const T variance = values.squaredNorm() / static_cast<T>(values.size());
      values *= T(1) / std::sqrt(variance + static_cast<T>(epsilon));
      values.array() = values.array() * row<T>(weight).array() + row<T>(bias).array();
    }
  });
}

void add_rows(const Tensor& table, std::span<const int32_t> indices, const Tensor& x) {
  dispatch(x.dtype, [&]<class To>() {
    dispatch(table.dtype, [&]<class From>() {
      Matrix<To> rows = matrix<To>(x);
      for (Eigen::Index i = 0; i < rows.rows(); ++i)
        rows.row(i) += matrix<From>(table).row(indices[static_cast<size_t>(i)]).template cast<To>();
    });
  });
}

void normalise_length(const Tensor& x) {
  dispatch(x.dtype, [&]<class T>() { matrix<T>(x).rowwise().normalize(); });
}

ejk::Array cast(const Tensor& from, DType dtype) {
  const bool is_simple = from.dtype == DType::f32 || from.dtype == DType::f64;
  if (!is_simple) return ejk::convert(from, dtype);
  ejk::Array to(dtype, from.shape);
  dispatch(dtype, [&]<class To>() {
    dispatch(from.dtype, [&]<class From>() { row<To>(to) = row<From>(from).template cast<To>(); });
  });
  return to;
}

}  // namespace minilm
