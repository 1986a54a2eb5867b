// Tensor: a view of memory somebody else owns. Array: the same, owning it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "ejkernel/core/device.h"
#include "ejkernel/core/dtype.h"
#include "ejkernel/core/export.h"

namespace ejk {

inline constexpr int kMaxRank = 6;

/// Throws InvalidArgument: a Shape holds at most kMaxRank numbers.
[[noreturn]] EJK_API void refuse_rank(size_t rank);

/// A short list of extents or strides, in elements.
class Shape {
 public:
  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  constexpr explicit Shape(std::span<const int64_t> extents) : rank_(static_cast<int>(extents.size())) {
    if (extents.size() > kMaxRank) refuse_rank(extents.size());
    for (size_t i = 0; i < extents.size(); ++i) extents_[i] = extents[i];
  }

  constexpr int rank() const { return rank_; }
  constexpr int64_t operator[](int axis) const { return extents_[static_cast<size_t>(axis < 0 ? axis + rank_ : axis)]; }
  constexpr int64_t& operator[](int axis) { return extents_[static_cast<size_t>(axis < 0 ? axis + rank_ : axis)]; }
  constexpr const int64_t* begin() const { return extents_.data(); }
  constexpr const int64_t* end() const { return extents_.data() + rank_; }
  constexpr void push_back(int64_t extent) {
    if (rank_ == kMaxRank) refuse_rank(kMaxRank + 1);
    extents_[static_cast<size_t>(rank_++)] = extent;
  }

  /// Product of the extents (1 for rank 0); INT64_MAX when it does not fit. A negative extent counts as 0: validation
  /// refuses it by name, and until then nothing may be touched because of it.
  constexpr int64_t num_elements() const {
    for (int64_t extent : *this)
      if (extent <= 0) return 0;
    int64_t n = 1;
    for (int64_t extent : *this)
      if (__builtin_mul_overflow(n, extent, &n)) return INT64_MAX;
    return n;
  }
  constexpr friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }

 private:
  std::array<int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

/// "[2, 8, 4, 64]"
EJK_API std::string to_string(const Shape& shape);
/// Row-major. Extents below 1 count as 1, so that no stride is 0; a product beyond int64 stays at INT64_MAX.
EJK_API Shape contiguous_strides(const Shape& shape);

/// A strided, non-owning view: what every kernel reads and writes. A default-constructed Tensor is absent: that is how
/// an optional argument is left out. A present one may be empty, and then its data may be null. Strides count elements.
/// `data` of a const view is not written: constness belongs to the role (input or output), not to this type.
struct Tensor {
  void* data = nullptr;
  Shape shape = {};
  Shape strides = {};
  DType dtype = DType::f32;
  Device device = {};
  bool is_present = false;

  Tensor() = default;
  /// Contiguous, row-major.
  Tensor(void* data, DType dtype, const Shape& shape, Device device = {})
      : Tensor(data, dtype, shape, contiguous_strides(shape), device) {}
  Tensor(void* data, DType dtype, const Shape& shape, const Shape& strides, Device device = {})
      : data(data), shape(shape), strides(strides), dtype(dtype), device(device), is_present(true) {}

  bool present() const { return is_present; }
  int rank() const { return shape.rank(); }
  int64_t num_elements() const { return is_present ? shape.num_elements() : 0; }

  /// The elements as T; the caller knows the dtype. `i4` has no such pointer.
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

/// Whether both are absent, or equal in all but their data.
EJK_API bool is_same_spec(const Tensor& a, const Tensor& b);
/// Bytes that a contiguous tensor of this shape takes (i4: two elements a byte, rounded up once). Throws
/// InvalidArgument for a negative extent and for a size beyond int64.
EJK_API int64_t num_bytes(DType dtype, const Shape& shape);
/// Smallest and one-past-largest element offset that the strided view touches ({0, 0} when empty or absent). Right for
/// any strides; an end that does not fit stays at INT64_MIN or INT64_MAX.
EJK_API std::array<int64_t, 2> element_range(const Tensor& tensor);
/// The same in bytes from `data`; of i4, whole ones.
EJK_API std::array<int64_t, 2> byte_range(const Tensor& tensor);
/// Row-major without gaps. The stride of an axis with one element, and all strides of an empty view, do not matter.
EJK_API bool is_contiguous(const Tensor& tensor);
/// True when two distinct indices may name the same element. Exact for views made by slicing, permuting, reversing and
/// broadcasting; true as well for strides that interleave without meeting, such as [2, 3] with strides [3, 2].
EJK_API bool overlaps_itself(const Tensor& tensor);
/// "f32[2, 8, 4, 64]"; "absent" for an absent one.
EJK_API std::string to_string(const Tensor& tensor);

/// Element at a multi-index / flat row-major index, as double. Slow and obvious: for tests, oracles and printing.
EJK_API int64_t element_offset(const Tensor& tensor, int64_t flat_index);
EJK_API double get(const Tensor& tensor, int64_t flat_index);
EJK_API void set(const Tensor& tensor, int64_t flat_index, double value);

/// Owns a contiguous, row-major buffer aligned to 64 bytes (256 on a GPU), and converts to the Tensor that views it.
/// Copies share the buffer; `clone()` copies the elements of one in host memory. Memory is not initialised. Throws
/// Internal (out_of_memory) when the allocation fails, and Unsupported for a device that is not here.
///
/// Device memory is allocated and released in the order of `stream` (null: the default stream): the last copy must go
/// before that stream is destroyed, and after work on other streams has finished or that stream waits for it.
class EJK_API Array {
 public:
  Array() = default;
  Array(DType dtype, const Shape& shape, Device device = {}, void* stream = nullptr);
  /// Takes over memory owned elsewhere (DLPack, a mapped file); `owner` releases it. Without one it owns nothing: the
  /// memory must outlive it, and may have any strides.
  Array(const Tensor& view, std::shared_ptr<void> owner);

  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }  // NOLINT: the point of the class

  bool present() const { return view_.present(); }
  const Shape& shape() const { return view_.shape; }
  DType dtype() const { return view_.dtype; }
  int64_t num_elements() const { return view_.num_elements(); }
  void* data() const { return view_.data; }
  template <class T>
  T* as() const {
    return view_.as<T>();
  }
  Array clone() const;

  static Array zeros(DType dtype, const Shape& shape, Device device = {}, void* stream = nullptr);

 private:
  Tensor view_;
  std::shared_ptr<void> owner_;
};

/// A contiguous host copy of any strided view, bit for bit, or in another dtype (one rounding through double).
EJK_API Array contiguous(const Tensor& source);
EJK_API Array convert(const Tensor& source, DType dtype);

}  // namespace ejk
