// Rows of a cache that lies in pages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace ejk::cpu {

/// In place of the offset of a row that does not exist. Offsets may be negative where strides are.
inline constexpr int64_t kNoRow = std::numeric_limits<int64_t>::min();

/// Offsets of the rows in slots [first, first + count) of a sequence, a run of slots of one page at a time. `page_of`
/// names the page that holds a slot, or -1; an offset is page * page_stride + (slot in the page) * slot_stride.
template <class PageOf>
void find_rows(int64_t first, int64_t count, int64_t page_size, PageOf page_of, int64_t page_stride,
               int64_t slot_stride, int64_t* offsets) {
  for (int64_t done = 0; done < count;) {
    const int64_t slot = first + done, in_page = slot % page_size, page = page_of(slot);
    const int64_t run = std::min(count - done, page_size - in_page);
    const int64_t offset = page * page_stride + in_page * slot_stride;
    for (int64_t i = 0; i < run; ++i) offsets[done + i] = page < 0 ? kNoRow : offset + i * slot_stride;
    done += run;
  }
}

}  // namespace ejk::cpu
