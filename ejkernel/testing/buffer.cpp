#include "ejkernel/testing/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace ejk::testing {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kBand = 512;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/// Pages with one that nobody may touch before or after them. The mapping is found again through its size, which the
/// deleter cannot hold: it stands in the first bytes of a header page of its own.
struct Mapping {
  void* base;
  size_t bytes;
};

void unmap(std::byte* memory) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // Header page, fence page, memory.
  const Mapping mapping = *reinterpret_cast<const Mapping*>(memory - 2 * page);
  munmap(mapping.base, mapping.bytes);
}

std::byte* map_fenced(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t total = 3 * page + bytes;
  void* base = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  *static_cast<Mapping*>(base) = {base, total};
  auto* memory = static_cast<std::byte*>(base) + 2 * page;
  if (mprotect(memory - page, page, PROT_NONE) != 0 || mprotect(memory + bytes, page, PROT_NONE) != 0)
    throw std::bad_alloc();
  return memory;
}

}  // namespace

Buffer::Buffer(size_t bytes, std::byte fill, Fence fence, size_t skew)
    : memory_(nullptr, fence == Fence::bands ? [](std::byte* p) { std::free(p); } : unmap),
      size_(bytes),
      fill_(fill),
      fence_(fence),
      skew_(skew) {
  if (fence == Fence::bands) {
    whole_size_ = round_up(kBand + skew + bytes + kBand, kAlignment);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, whole_size_)));
    if (memory_ == nullptr) throw std::bad_alloc();
    data_ = memory_.get() + kBand + skew;
  } else {
    whole_size_ = round_up(std::max<size_t>(bytes, 1), static_cast<size_t>(sysconf(_SC_PAGESIZE)));
    memory_.reset(map_fenced(whole_size_));
    data_ = memory_.get() + (fence == Fence::page_after ? whole_size_ - bytes : 0);
  }
  std::memset(memory_.get(), std::to_integer<int>(fill), whole_size_);
}

std::shared_ptr<Buffer> Buffer::clone() const {
  auto copy = std::make_shared<Buffer>(size_, fill_, fence_, skew_);
  std::memcpy(copy->whole().data(), whole().data(), whole_size_);
  return copy;
}

void Buffer::remember() { remembered_.assign(whole().begin(), whole().end()); }

std::string Buffer::changes() const {
  const auto bytes = whole();
  // Nearly always nothing has changed, which memcmp says at the speed of memory.
  const bool as_filled =
      remembered_.empty() && bytes[0] == fill_ && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
  const bool as_remembered = !remembered_.empty() && std::memcmp(bytes.data(), remembered_.data(), bytes.size()) == 0;
  if (as_filled || as_remembered) return {};
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == (remembered_.empty() ? fill_ : remembered_[i])) continue;
    const auto at = bytes.data() + i - data_;
    const auto size = static_cast<ptrdiff_t>(size_);
    if (at < 0) return std::to_string(-at) + " bytes before the buffer";
    if (at >= size) return std::to_string(at - size + 1) + " bytes past the end of the buffer";
    return "at byte " + std::to_string(at) + " of " + std::to_string(size_);
  }
  return {};
}

Placed place(DType dtype, const Shape& shape, const Layout& layout) {
  Shape strides = shape;
  int64_t step = 1, start = layout.offset;
  for (int k = shape.rank() - 1; k >= 0; --k) {
    const int axis = layout.order.rank() == 0 ? k : static_cast<int>(layout.order[k]);
    const int64_t extent = std::max<int64_t>(shape[axis], 1);
    const auto bit = uint32_t{1} << axis;
    if ((layout.repeated & bit) != 0) {
      strides[axis] = 0;
      continue;
    }
    strides[axis] = (layout.reversed & bit) != 0 ? -step : step;
    if ((layout.reversed & bit) != 0) start += (extent - 1) * step;
    step = step * extent + (layout.padding.rank() == 0 ? 0 : layout.padding[axis]);
  }
  // The last run's own padding is not needed: what follows the last element is the band.
  Tensor view(nullptr, dtype, shape, strides);
  const int64_t elements = shape.num_elements() == 0 ? 0 : start + element_range(view)[1];
  const auto size = static_cast<size_t>(bits(dtype) <= 8 ? 1 : bits(dtype) / 8);
  auto buffer =
      std::make_shared<Buffer>(static_cast<size_t>(elements) * size, canary(dtype), layout.fence, layout.skew);
  view.data = buffer->data() + (elements == 0 ? 0 : static_cast<size_t>(start) * size);
  return {std::move(buffer), view};
}

Layout random_layout(Random& random, DType dtype, int rank, size_t alignment) {
  Layout layout;
  if (random.chance(0.5) || rank == 0) return layout;
  const auto size = static_cast<size_t>(bits(dtype) <= 8 ? 1 : bits(dtype) / 8);
  const size_t unit = std::max(size, alignment);
  const auto elements = static_cast<int64_t>(unit / size);
  if (random.chance(0.5)) layout.skew = unit * static_cast<size_t>(random.below(static_cast<int64_t>(64 / unit)));
  if (random.chance(0.3)) layout.offset = random.between(1, 70) * elements;
  for (int axis = 0; axis < rank; ++axis) {
    layout.order.push_back(axis);
    layout.padding.push_back(random.chance(0.3) ? random.between(1, 9) * elements : 0);
    if (axis < rank - 1 && random.chance(0.05)) layout.reversed |= uint32_t{1} << axis;
  }
  if (rank >= 3 && random.chance(0.5)) {  // the last axis stays the fastest
    const auto a = static_cast<int>(random.below(rank - 1)), b = static_cast<int>(random.below(rank - 1));
    std::swap(layout.order[a], layout.order[b]);
  }
  return layout;
}

void move_to_copy(std::vector<Placed>& tensors, const std::shared_ptr<Buffer>& buffer) {
  const std::shared_ptr<Buffer> copy = buffer->clone();
  for (Placed& placed : tensors) {
    if (placed.buffer != buffer) continue;
    placed.view.data = copy->data() + (placed.view.as<std::byte>() - buffer->data());
    placed.buffer = copy;
  }
}

std::string stray_writes(const Placed& placed) {
  const Tensor& t = placed.view;
  const auto size = static_cast<size_t>(bits(t.dtype) <= 8 ? 1 : bits(t.dtype) / 8);
  const int64_t row = t.rank() == 0 ? 1 : t.shape[-1];
  for (int64_t n = 0; n < t.num_elements(); n += row)
    std::memset(t.as<std::byte>() + element_offset(t, n) * static_cast<int64_t>(size),
                std::to_integer<int>(placed.buffer->fill()), size * static_cast<size_t>(row));
  return placed.buffer->changes();
}

}  // namespace ejk::testing
