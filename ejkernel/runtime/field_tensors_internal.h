// What the runtime's outer edges put a call's tensors into before they run it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "ejkernel/core/tensor.h"

namespace ejk {

/// A call's tensors in field order. Calls of usual size stay on the stack: a run does not allocate.
class FieldTensors {
 public:
  explicit FieldTensors(size_t count) : size_(count) {
    if (count > kUsual)
      many_.resize(count);
    else
      std::uninitialized_default_construct_n(data(), count);
  }
  Tensor& operator[](size_t i) { return data()[i]; }
  operator std::span<const Tensor>() const { return {data(), size_}; }

 private:
  static constexpr size_t kUsual = 32;
  Tensor* data() { return size_ > kUsual ? many_.data() : reinterpret_cast<Tensor*>(usual_); }
  const Tensor* data() const { return const_cast<FieldTensors*>(this)->data(); }

  static_assert(std::is_trivially_destructible_v<Tensor>);
  alignas(Tensor) std::byte usual_[kUsual * sizeof(Tensor)];
  std::vector<Tensor> many_;
  size_t size_;
};

}  // namespace ejk
