// A call over a cache, read by the words of operations §5 to §8 and §16 from its own tensors, without a line in common
// with paged_problem.cpp and the paging of attention_problem.h; and the answers that follow: sequences are gathered
// into packed float64 tensors, which flash_attention's oracle knows about.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "ejkernel/ops/page_attention/page_attention.h"
#include "ejkernel/testing/operation.h"

namespace ejk::testing {

/// Where a token lies; page -1: in a page that does not exist.
struct Slot {
  int64_t page = -1, slot = 0;
  bool exists() const { return page >= 0; }
};

/// Keys or values of a cache, whatever its layout: codes at [page][slot][head] times their scales.
struct StoredRows {
  Tensor codes = {}, scale = {};
  int slot_axis = 1, head_axis = 2;
  int64_t first_head = 0, head_step = 1;

  int64_t num_heads() const { return codes.shape[head_axis] / head_step; }
  int64_t dims() const { return codes.shape[3]; }
  /// Element d in row-major order of `codes`, and as the formula sees it.
  int64_t flat(const Slot& at, int64_t head, int64_t d) const;
  double scale_at(const Slot& at, int64_t head, int64_t d) const;
  double value(const Slot& at, int64_t head, int64_t d) const;
};

class PagedReading {
 public:
  explicit PagedReading(const Problem& problem);

  struct Sequence {
    int64_t index = 0;
    int64_t q_begin = 0, q_len = 0;
    std::vector<Slot> slots = {};  ///< of its tokens, oldest first

    int64_t length() const { return static_cast<int64_t>(slots.size()); }
    /// Of its query row r; negative for rows before the first token.
    int64_t position(int64_t r) const { return length() - q_len + r; }
  };
  /// Those in use.
  const std::vector<Sequence>& sequences() const { return sequences_; }
  /// Rule 4: row r of the sequence may look at token t, and its page exists.
  bool sees(const Sequence& s, int64_t r, int64_t t) const;
  /// The status word of the reading: clamped contents, and pages that some row needs and do not exist.
  uint32_t status() const;
  /// How many sequences claim each query row.
  std::vector<int> owners() const;

  /// What some visible pair uses: query rows, and slots as [page][slot].
  struct Used {
    std::vector<bool> query, slots;
  };
  Used used() const;
  int64_t page_size() const { return page_size_; }
  size_t slot_index(const Slot& at) const { return static_cast<size_t>(at.page * page_size_ + at.slot); }

  int64_t num_rows() const { return rows_.shape[0]; }
  const Tensor& query() const { return query_; }  ///< [rows, heads, dim]
  const Tensor& sinks() const { return sinks_; }
  const Tensor& q_scale() const { return q_scale_; }
  const StoredRows& keys() const { return keys_; }
  const StoredRows& values() const { return values_; }
  const PageAttention::Params& params() const { return params_; }

 private:
  void read_cache(const Problem& problem);
  void read_paged_sequences(const Problem& problem);
  void read_ranges(const Problem& problem);
  int64_t length_in_use(double length, int64_t most);
  bool may_see(const Sequence& s, int64_t r, int64_t t) const;

  Tensor rows_, query_, sinks_, q_scale_;  // rows_: whatever has a row for each new token
  StoredRows keys_, values_;
  PageAttention::Params params_;
  int64_t num_pages_ = 0, page_size_ = 0;
  std::vector<Sequence> sequences_;
  uint32_t clamped_ = 0;
};

/// The attention of a call: out, and lse as [rows, heads] or [heads, rows].
struct PagedAnswer {
  Expected out = {}, lse = {};
  bool complete = true;
};
PagedAnswer attention_answer(const PagedReading& reading, double budget, uint64_t seed, bool lse_by_row);

/// Answers of the operations that only read.
Answer page_attention_answer(const Problem& problem, double budget);
Answer ragged_page_attention_answer(const Problem& problem, double budget);

/// The cache of page_append or ragged_page_attention_v3 after its writes.
class WrittenCache {
 public:
  explicit WrittenCache(const Problem& problem);

  /// The call with the cache as it is then, in tensors of its own.
  const Problem& after() const { return after_; }
  uint32_t status() const { return status_; }
  /// Two rows go to one slot: which one is there is not defined.
  bool has_conflicts() const { return has_conflicts_; }
  /// Contents of the tensor that an input of this name is, bit for bit, but for slots of conflicts.
  Expected expected(std::string_view input) const;

 private:
  void write(const PagedReading& reading, const Tensor& from, const StoredRows& to);

  Problem after_;
  uint32_t status_ = 0;
  bool has_conflicts_ = false;
  std::vector<std::pair<const void*, int64_t>> undefined_;  // tensor and flat element
};

/// Problems of exact integers.
ExactProblem exact_page_attention(uint64_t seed);
ExactProblem exact_ragged_decode_attention(uint64_t seed);
ExactProblem exact_ragged_page_attention(uint64_t seed);

Answer page_append_answer(const Problem& problem, double budget);
Answer ragged_page_attention_v3_answer(const Problem& problem, double budget);

}  // namespace ejk::testing
