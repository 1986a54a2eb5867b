#include "ejkernel/core/tensor.h"

#include <algorithm>
#include <cstring>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/out_of_memory.h"
#include "ejkernel/core/validate.h"

namespace ejk {
namespace {

int64_t multiply_saturated(int64_t a, int64_t b) {
  int64_t product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  return (a < 0) == (b < 0) ? INT64_MAX : INT64_MIN;
}

int64_t add_saturated(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b < 0 ? INT64_MIN : INT64_MAX;
}

/// |stride|, where the most negative one stays just below its true size: enough to compare with extents.
int64_t magnitude(int64_t stride) { return stride == INT64_MIN ? INT64_MAX : std::abs(stride); }

void require_host(const Tensor& tensor, const char* operation) {
  if (tensor.device.kind == DeviceKind::cpu) return;
  throw Unsupported(std::string(operation) + ": a tensor in host memory was expected, " + to_string(tensor) + " on " +
                    to_string(tensor.device) + " was given; copy it to the host first");
}

/// Calls visit(flat index, element offset) for the first element of each run along the last axis. The view has
/// elements.
template <class Visit>
void for_each_row(const Tensor& tensor, Visit visit) {
  const int outer = std::max(0, tensor.rank() - 1);
  const int64_t row_length = tensor.rank() == 0 ? 1 : tensor.shape[-1];
  const int64_t num_rows = tensor.num_elements() / row_length;
  std::array<int64_t, kMaxRank> index{};
  int64_t offset = 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    visit(row * row_length, offset);
    for (int axis = outer - 1; axis >= 0; --axis) {
      int64_t& i = index[static_cast<size_t>(axis)];
      if (++i < tensor.shape[axis]) {
        offset += tensor.strides[axis];
        break;
      }
      // The stride of an axis with one element may be anything: it never enters the sum.
      offset -= (tensor.shape[axis] - 1) * tensor.strides[axis];
      i = 0;
    }
  }
}

/// Bit for bit, whatever the elements mean.
template <class Word>
void copy_words(const Tensor& source, void* target) {
  const int64_t length = source.rank() == 0 ? 1 : source.shape[-1];
  const int64_t stride = source.rank() == 0 ? 1 : source.strides[-1];
  for_each_row(source, [&](int64_t flat, int64_t offset) {
    const Word* from = source.as<const Word>() + offset;
    Word* to = static_cast<Word*>(target) + flat;
    for (int64_t i = 0; i < length; ++i) to[i] = from[i * stride];
  });
}

void copy_converted(const Tensor& source, const Tensor& target) {
  const int64_t length = source.rank() == 0 ? 1 : source.shape[-1];
  const int64_t stride = source.rank() == 0 ? 1 : source.strides[-1];
  for_each_row(source, [&](int64_t flat, int64_t offset) {
    for (int64_t i = 0; i < length; ++i) {
      const double value = load_as_double(source.data, source.dtype, offset + i * stride);
      store_from_double(target.data, target.dtype, flat + i, value);
    }
  });
}

}  // namespace

void refuse_rank(size_t rank) {
  throw InvalidArgument("Shape: at most " + std::to_string(kMaxRank) + " axes are supported, " + std::to_string(rank) +
                        " were given; merge or drop axes");
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  return text + "]";
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride = multiply_saturated(stride, std::max<int64_t>(1, shape[axis]));
  }
  return strides;
}

bool is_same_spec(const Tensor& a, const Tensor& b) {
  if (!a.present() || !b.present()) return a.present() == b.present();
  return a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides && a.device == b.device;
}

int64_t num_bytes(DType dtype, const Shape& shape) {
  const auto refuse = [&](const char* expected) {
    throw_invalid("num_bytes", "the shape", expected, std::string(name(dtype)) + to_string(shape), "correct it");
  };
  for (int64_t extent : shape)
    if (extent < 0) refuse("have no negative extents");
  const int64_t n = shape.num_elements();
  int64_t num_bits = 0;
  if (n == INT64_MAX || __builtin_mul_overflow(n, static_cast<int64_t>(bits(dtype)), &num_bits) ||
      num_bits > INT64_MAX - 7)
    refuse("take less than 2^60 bytes");
  return (num_bits + 7) / 8;
}

std::array<int64_t, 2> element_range(const Tensor& tensor) {
  if (!tensor.present() || tensor.num_elements() == 0) return {0, 0};
  int64_t lowest = 0;
  int64_t highest = 0;
  for (int axis = 0; axis < tensor.rank(); ++axis) {
    const int64_t reach = multiply_saturated(tensor.shape[axis] - 1, tensor.strides[axis]);
    int64_t& end = reach < 0 ? lowest : highest;
    end = add_saturated(end, reach);
  }
  return {lowest, add_saturated(highest, 1)};
}

std::array<int64_t, 2> byte_range(const Tensor& tensor) {
  const auto [first, last] = element_range(tensor);
  if (tensor.dtype == DType::i4) return {first >> 1, last / 2 + last % 2};
  const int64_t size = bits(tensor.dtype) / 8;
  return {multiply_saturated(first, size), multiply_saturated(last, size)};
}

bool is_contiguous(const Tensor& tensor) {
  if (tensor.num_elements() == 0) return true;
  int64_t expected = 1;
  for (int axis = tensor.rank() - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] == 1) continue;
    if (tensor.strides[axis] != expected) return false;
    expected = multiply_saturated(expected, tensor.shape[axis]);
  }
  return true;
}

bool overlaps_itself(const Tensor& tensor) {
  if (!tensor.present() || tensor.num_elements() == 0) return false;
  struct Axis {
    int64_t stride;
    int64_t extent;
  };
  std::array<Axis, kMaxRank> axes{};
  auto* end = axes.begin();
  for (int axis = 0; axis < tensor.rank(); ++axis)
    if (tensor.shape[axis] > 1) *end++ = {magnitude(tensor.strides[axis]), tensor.shape[axis]};
  std::sort(axes.begin(), end, [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  // One step along an axis must pass everything that the faster axes reach together.
  int64_t reach = 0;
  for (auto* axis = axes.begin(); axis != end; ++axis) {
    if (axis->stride <= reach) return true;
    reach = add_saturated(reach, multiply_saturated(axis->extent - 1, axis->stride));
  }
  return false;
}

std::string to_string(const Tensor& tensor) {
  return tensor.present() ? std::string(name(tensor.dtype)) + to_string(tensor.shape) : "absent";
}

int64_t element_offset(const Tensor& tensor, int64_t flat_index) {
  int64_t offset = 0;
  for (int axis = tensor.rank() - 1; axis >= 0; --axis) {
    offset += flat_index % tensor.shape[axis] * tensor.strides[axis];
    flat_index /= tensor.shape[axis];
  }
  return offset;
}

double get(const Tensor& tensor, int64_t flat_index) {
  return load_as_double(tensor.data, tensor.dtype, element_offset(tensor, flat_index));
}

void set(const Tensor& tensor, int64_t flat_index, double value) {
  store_from_double(tensor.data, tensor.dtype, element_offset(tensor, flat_index), value);
}

Array::Array(DType dtype, const Shape& shape, Device device, void* stream) try : view_(nullptr, dtype, shape, device) {
  const auto bytes = static_cast<size_t>(num_bytes(dtype, shape));
  if (device.kind == DeviceKind::cpu) {
    view_.data = allocate_host(bytes);
    owner_ = std::shared_ptr<void>(view_.data, free_host);
  } else {
    view_.data = allocate_device(device, bytes, stream);
    owner_ = std::shared_ptr<void>(view_.data, [device, stream](void* block) { free_device(device, block, stream); });
  }
} catch (const std::bad_alloc&) {  // of the owner's own record
  throw_out_of_memory();
}

Array::Array(const Tensor& view, std::shared_ptr<void> owner) : view_(view), owner_(std::move(owner)) {}

Array Array::clone() const { return contiguous(view_); }

Array Array::zeros(DType dtype, const Shape& shape, Device device, void* stream) {
  Array array(dtype, shape, device, stream);
  const auto bytes = static_cast<size_t>(num_bytes(dtype, shape));
  if (array.data() == nullptr) return array;
  if (device.kind == DeviceKind::cpu)
    std::memset(array.data(), 0, bytes);
  else
    fill_device(device, array.data(), 0, bytes, stream);
  return array;
}

Array contiguous(const Tensor& source) {
  if (!source.present()) return {};
  require_host(source, "contiguous");
  Array copy(source.dtype, source.shape);
  if (copy.num_elements() == 0) return copy;
  if (source.dtype == DType::i4) {  // nibbles have no address of their own; a double holds them exactly
    if (copy.num_elements() % 2 != 0) copy.as<uint8_t>()[copy.num_elements() / 2] = 0;
    copy_converted(source, copy);
    return copy;
  }
  if (is_contiguous(source)) {
    std::memcpy(copy.data(), source.data, static_cast<size_t>(num_bytes(source.dtype, source.shape)));
    return copy;
  }
  switch (bits(source.dtype)) {
    case 64:
      copy_words<uint64_t>(source, copy.data());
      break;
    case 32:
      copy_words<uint32_t>(source, copy.data());
      break;
    case 16:
      copy_words<uint16_t>(source, copy.data());
      break;
    default:
      copy_words<uint8_t>(source, copy.data());
      break;
  }
  return copy;
}

Array convert(const Tensor& source, DType dtype) {
  if (!source.present() || dtype == source.dtype) return contiguous(source);
  require_host(source, "convert");
  Array copy(dtype, source.shape);
  if (copy.num_elements() == 0) return copy;
  if (dtype == DType::i4 && copy.num_elements() % 2 != 0) copy.as<uint8_t>()[copy.num_elements() / 2] = 0;
  copy_converted(source, copy);
  return copy;
}

}  // namespace ejk
