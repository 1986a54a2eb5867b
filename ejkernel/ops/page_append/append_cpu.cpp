// Appending on the CPU: pages are dealt to tasks, so that no two write to one slot and rows for the same slot keep
// their order. Every task goes through all sequences, a run of rows of one page at a time.
#include "ejkernel/ops/page_append/append_cpu_internal.h"

#include <algorithm>
#include <cstring>

#include "ejkernel/core/untrusted.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/page_append/append_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h:
#include "ejkernel/platform/cpu/quantise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {
namespace {

using namespace ejk::cpu::HWY_NAMESPACE;  // NOLINT: the SIMD vocabulary

constexpr int64_t kMaxDims = 512;

/// Rows of new keys or values, and the tensor that stores them.
struct Writer {
  const Tensor& from;
  const Tensor& to;
  const Tensor& scale;
  Strides from_strides, to_strides;

  Writer(const Tensor& rows, const Tensor& cache, const Tensor& scales)
      : from(rows), to(cache), scale(scales), from_strides(strides_of(rows)), to_strides(strides_of(cache)) {}

  void write(int64_t row, int64_t page, int64_t slot) const {
    for (int64_t g = 0; g < to.shape[2]; ++g)
      write_head(from_strides.offset(0, row, g), to_strides.offset(page, slot, g), Problem::scale_at(scale, 0, 0, g));
  }

 private:
  void write_head(int64_t from_offset, int64_t to_offset, double factor) const {
    const int64_t count = from.shape[-1];
    if (from.dtype == to.dtype && factor == 1) {
      const int64_t size = bits(from.dtype) / 8;
      std::memcpy(to.as<std::byte>() + to_offset * size, from.as<const std::byte>() + from_offset * size,
                  static_cast<size_t>(count * size));
      return;
    }
    const bool to_codes = bits(to.dtype) == 8, rounds_once = factor == 1 && to.dtype != DType::f64;
    if (from.dtype == DType::f64 || (!to_codes && !rounds_once)) {
      for (int64_t d = 0; d < count; ++d)
        store_from_double(to.data, to.dtype, to_offset + d,
                          load_as_double(from.data, from.dtype, from_offset + d) / factor);
      return;
    }
    alignas(64) float row[kMaxDims + cpu::kMaxLanes];
    load_row(from.data, from.dtype, from_offset, count, row);
    std::fill_n(row + count, cpu::kMaxLanes, 0.0f);
    switch (to.dtype) {
      case DType::i8:
        return quantise_row(row, factor, count, to.as<int8_t>() + to_offset);
      case DType::e4m3:
        return quantise_row(row, factor, count, to.as<e4m3_t>() + to_offset);
      case DType::e5m2:
        return quantise_row(row, factor, count, to.as<e5m2_t>() + to_offset);
      default:
        return store_row(row, 1, count, to.data, to.dtype, to_offset);
    }
  }
};

/// Writes what goes to the pages of task `task` of `tasks`.
void write_pages(const Append& append, int64_t task, int64_t tasks, uint32_t* status) {
  const Problem& cache = append.cache;
  const Writer keys(append.keys, cache.key, cache.k_scale), values(append.values, cache.value, cache.v_scale);
  const int64_t page_size = cache.pages.size;
  for (int64_t n = 0; n < cache.num_sequences; ++n) {
    const Sequence s = cache.sequence(n, status);
    if (s.q_len > 0 && s.offset < 0) untrusted::raise(status, status::kLength);
    for (int64_t r = std::max<int64_t>(-s.offset, 0); r < s.q_len;) {
      const int64_t position = r + s.offset, slot = position % page_size, page = cache.page_of(s, position);
      const int64_t run = std::min(page_size - slot, s.q_len - r);
      if (page < 0) untrusted::raise(status, status::kPageId);
      if (page >= 0 && page % tasks == task)
        for (int64_t i = 0; i < run; ++i)
          keys.write(s.q_begin + r + i, page, slot + i), values.write(s.q_begin + r + i, page, slot + i);
      r += run;
    }
  }
}

}  // namespace
}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::attn {
namespace {
HWY_EXPORT(write_pages);
constexpr int64_t kTasks = 16;
}  // namespace

void append_cpu(const Append& append, const RunContext& context) {
  const int64_t most = std::min({append.cache.pages.count, append.keys.shape[0], kTasks});
  const int64_t tasks = std::max<int64_t>(most, 1);  // one that looks at the lengths, in any case
  cpu::parallel_for(tasks, [&](int64_t task) {
    HWY_DYNAMIC_DISPATCH(write_pages)(append, task, tasks, context.status);
  });
}

}  // namespace ejk::attn
#endif
