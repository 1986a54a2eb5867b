// Memory that will be read soon, asked for a line at a time between other work. A core has only so many requests under
// way: a burst of them makes loads wait, and while there are none memory waits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ejk::cpu {

/// Rows of `bytes` bytes, of several heads, in the order in which they will be read: a chunk of consecutive rows of
/// each head, one after the other, then the next chunk's.
class LinesAhead {
 public:
  LinesAhead() = default;
  /// `rows`: where head 0's lie, num_rows of them, whole chunks; those of other heads are head_bytes apart.
  LinesAhead(const std::byte* const* rows, int64_t num_rows, int64_t chunk, int64_t heads, int64_t head_bytes,
             int64_t bytes)
      : rows_(rows), chunk_(chunk), heads_(heads), head_bytes_(head_bytes), bytes_(bytes) {
    left_ = num_rows * heads * ((bytes + kLine - 1) / kLine);
  }

  /// Asks for the next `count` lines, no nearer than the second-level cache; for fewer where there are no more.
  void ask(int64_t count) {
    if (count > left_) count = left_;
    left_ -= count;
    for (; count > 0; --count) {
      __builtin_prefetch(rows_[row_] + skip_ + at_, 0, 2);
      at_ += kLine;
      if (at_ >= bytes_) next_row();
    }
  }
  int64_t left() const { return left_; }

 private:
  static constexpr int64_t kLine = 64;

  void next_row() {
    at_ = 0;
    if (++row_ < chunk_) return;
    row_ = 0, skip_ += head_bytes_;
    if (++head_ < heads_) return;
    head_ = 0, skip_ = 0, rows_ += chunk_;
  }

  const std::byte* const* rows_ = nullptr;
  int64_t chunk_ = 0, heads_ = 0, head_bytes_ = 0, bytes_ = 0;
  int64_t left_ = 0;                                ///< lines
  int64_t row_ = 0, head_ = 0, skip_ = 0, at_ = 0;  ///< of the next one; bytes
};

}  // namespace ejk::cpu
