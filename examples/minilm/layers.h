// What a transformer does to every number or row (token) by itself, in float or double, by Eigen. Products, attention
// and pooling are the library's.
//
// Tensors are contiguous, rank 2 [rows, columns] or rank 1, and of one dtype, f32 or f64, unless said otherwise. The
// caller has checked the shapes.
#pragma once

#include <cstdint>
#include <span>

#include <ejkernel/core/tensor.h>

namespace minilm {

/// x = x * Phi(x), with the error function and not its tanh approximation.
void gelu(const ejk::Tensor& x);

/// x = (x + residual), each row shifted and scaled to mean 0 and variance 1, then times weight plus bias. Without a
/// residual: x alone.
void add_and_normalise(const ejk::Tensor& x, const ejk::Tensor& residual, const ejk::Tensor& weight,
                       const ejk::Tensor& bias, double epsilon);

/// Row i of x += row indices[i] of `table`, whose dtype (f32 or f64) may differ from that of x.
void add_rows(const ejk::Tensor& table, std::span<const int32_t> indices, const ejk::Tensor& x);

/// Scales each row to length 1; a row of zeros stays one.
void normalise_length(const ejk::Tensor& x);

/// The elements as f32 or f64.
ejk::Array cast(const ejk::Tensor& from, ejk::DType dtype);

}  // namespace minilm
