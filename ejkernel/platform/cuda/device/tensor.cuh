// What kernels know of a tensor.
#pragma once

#include "ejkernel/platform/cuda/device/number.cuh"

namespace ejk::cuda {

/// Up to four axes, the last one without gaps; missing and broadcast axes have stride 0. An absent one has no data.
struct TensorRef {
  void* data = nullptr;
  Number number = Number::f32;
  int64 strides[3] = {};

  EJK_DEVICE bool present() const { return data != nullptr; }
  EJK_DEVICE int64 offset(int64 a, int64 b, int64 c, int64 d) const {
    return a * strides[0] + b * strides[1] + c * strides[2] + d;
  }
  EJK_DEVICE double at(int64 a, int64 b, int64 c, int64 d) const { return load(data, number, offset(a, b, c, d)); }
  EJK_DEVICE void set(int64 a, int64 b, int64 c, int64 d, double value) const {
    store(data, number, offset(a, b, c, d), value);
  }
};

}  // namespace ejk::cuda
