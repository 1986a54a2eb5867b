// Memory for tensors under test: guard bands or unreadable pages around it, every layout a call may have, and every
// byte that no element owns set to a value that shows when it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ejkernel/core/tensor.h"
#include "ejkernel/testing/random.h"

namespace ejk::testing {

/// What stands around a buffer. Bands show a stray write afterwards, and a stray read through the NaN it brings in; a
/// page without access stops either at once (the process dies: run it in a child).
enum class Fence : uint8_t { bands, page_before, page_after };

/// The byte that unowned memory is filled with: NaN in every floating dtype; in the others a large number.
constexpr std::byte canary(DType dtype) { return static_cast<std::byte>(is_float(dtype) ? 0xff : 0x7f); }

/// A block of bytes and what stands around it, all filled with one byte. Movable; its address stays.
class Buffer {
 public:
  /// `skew`: bytes past a 64-byte boundary where the block begins (bands only; pages fix the place of one end).
  Buffer(size_t bytes, std::byte fill, Fence fence = Fence::bands, size_t skew = 0);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::byte fill() const { return fill_; }
  /// Another with the same contents, fence and skew.
  std::shared_ptr<Buffer> clone() const;
  /// The bands as well; of pages without access nothing.
  std::span<std::byte> whole() const { return {memory_.get(), whole_size_}; }

  /// Takes the contents, bands included, as what they should be from now on.
  void remember();
  /// Says where a byte differs from what was remembered (or from the fill): "3 bytes past the end"; empty: nowhere.
  std::string changes() const;

 private:
  std::unique_ptr<std::byte, void (*)(std::byte*)> memory_;  // bands included; pages without access not
  size_t whole_size_ = 0;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::byte fill_;
  Fence fence_;
  size_t skew_;
  std::vector<std::byte> remembered_ = {};
};

/// How a tensor lies in its buffer. The default is contiguous.
struct Layout {
  Shape order = {};       ///< axes from the slowest to the fastest; empty: as they come
  Shape padding = {};     ///< elements left free after each axis's run; empty: none
  uint32_t reversed = 0;  ///< bit a: axis a has a negative stride
  uint32_t repeated = 0;  ///< bit a: axis a has stride 0
  int64_t offset = 0;     ///< elements before the first
  size_t skew = 0;        ///< bytes by which the buffer misses its 64-byte boundary
  Fence fence = Fence::bands;
};

/// A tensor in a buffer of its own (which copies share). Elements hold the fill until they are set; default: absent.
struct Placed {
  std::shared_ptr<Buffer> buffer = {};
  Tensor view = {};
};
Placed place(DType dtype, const Shape& shape, const Layout& layout = {});

/// A layout that every operation accepts for inputs and outputs: the last axis contiguous, no repeated axis, aligned
/// elements. Plain in half of the cases. Where rows start is a multiple of `alignment` bytes, as far as their own
/// length is.
Layout random_layout(Random& random, DType dtype, int rank, size_t alignment = 1);

/// Tensors of this buffer go to a copy of it, which they share as before.
void move_to_copy(std::vector<Placed>& tensors, const std::shared_ptr<Buffer>& buffer);

/// Where bytes outside the view's elements have changed; empty: nowhere. Overwrites the elements with the fill.
std::string stray_writes(const Placed& placed);

}  // namespace ejk::testing
