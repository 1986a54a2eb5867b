// Decode over int8 caches on a matrix unit, which multiplies codes as they are: queries and weights become digits,
//
//   x = (d0 + d1 / 256 + d2 / 65536) * unit, digits from -128 to 127, one unit for a row of numbers,
//
// 24 bits below the row's largest number, as float32 has. Products of digits and codes are exact in int32. Keys are
// multiplied where they lie: 16 slots of a page are 16 rows of a tile. Included once per instruction set, after
// simd-inl.h.

#include <algorithm>
#include <cstring>
#include <utility>

#include "ejkernel/ops/page_attention/paged_cpu_internal.h"
#include "ejkernel/platform/cpu/amx.h"
#include "ejkernel/platform/cpu/layout.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {

using namespace ejk::cpu::HWY_NAMESPACE;  // NOLINT: the SIMD vocabulary

/// A row's unit, in two factors: where numbers are tiny it would be subnormal. NaN where the row is not finite.
struct DigitUnit {
  float unit = 0, rest = 1;
};

// In paged_digits_cpu.cpp:

/// Digits of `count` numbers, whole vectors: those of each row_numbers row_bytes behind those of the ones before, and
/// of one place value `plane` bytes behind those of the one before.
DigitUnit split_digits(const float* from, int64_t count, int8_t* to, int64_t plane, int64_t row_numbers,
                       int64_t row_bytes);
/// Products [count][kDigitColumns] as scores, row after row; count is a multiple of 16.
void join_columns(const int32_t* from, int64_t count, const DigitUnit* units, int64_t rows, float* to, int64_t stride);
/// sums[row] += products, [kDigitColumns][kCodeColumns], of `rows` rows.
void add_joined_rows(const int32_t* from, const DigitUnit* units, int64_t rows, float* sums, int64_t stride);
/// kCodeColumns codes of each value, those of four values side by side: a right factor, in an order of its own.
void interleave_values(const std::byte* const* values, int64_t skip, int64_t count, int8_t* to, cpu::LinesAhead& ahead);
/// Sums over such values, `dims` of them, in the order of the values.
void restore_columns(float* sums, int64_t dims);

/// The factors of a task's products, and the products. Results of a call are there after finish(): they are joined
/// while the unit is at the next ones.
class Digits {
 public:
  cpu::LinesAhead ahead;  ///< what products and packing ask memory for

  Digits() = default;
  /// At most `rows` per kv head; `block` keys, a multiple of kDigitDepth, have their weights at a time.
  Digits(const Problem& p, int64_t rows, int64_t block, cpu::Carver& carver) : head_dim_(p.head_dim), block_(block) {
    const int64_t groups = p.num_kv_heads * cpu::ceil_div(rows, cpu::kDigitRows);
    queries_ = carver.take<int8_t>(groups * cpu::kDigitColumns * head_dim_);
    weights_ = carver.take<int8_t>(groups * cpu::kDigitColumns * block);
    query_units_ = carver.take<DigitUnit>(groups * cpu::kDigitRows);
    weight_units_ = carver.take<DigitUnit>(groups * cpu::kDigitRows);
    copies_ = carver.take<int8_t>(std::max(cpu::kDigitDepth, cpu::kDigits) * head_dim_);
    for (int8_t*& codes : values_) codes = carver.take<int8_t>(block * cpu::kCodeColumns);
    for (int32_t*& products : products_)
      products = carver.take<int32_t>(cpu::kDigitColumns * std::max(cpu::kDigitDepth, cpu::kCodeColumns));
  }

  /// A task of so many rows per kv head begins. Columns that no row has are 0.
  void begin(const cpu::MatrixUnit& unit, int64_t num_kv_heads, int64_t rows) {
    unit_ = &unit, rows_ = rows, groups_ = cpu::ceil_div(rows, cpu::kDigitRows);
    const int64_t groups = num_kv_heads * groups_;
    std::fill_n(queries_, groups * cpu::kDigitColumns * head_dim_, int8_t{0});
    std::fill_n(weights_, groups * cpu::kDigitColumns * block_, int8_t{0});
    std::fill_n(query_units_, groups * cpu::kDigitRows, DigitUnit{});
    std::fill_n(weight_units_, groups * cpu::kDigitRows, DigitUnit{});
  }

  void set_query(int64_t kv_head, int64_t row, const float* query) {
    query_units_[place(kv_head, row)] = split_digits(query, head_dim_, copies_, head_dim_, head_dim_, 0);
    int8_t* const column = queries(kv_head, row / cpu::kDigitRows) + row % cpu::kDigitRows * 4;
    for (int64_t n = 0; n < cpu::kDigits; ++n)
      for (int64_t d = 0; d < head_dim_; d += 4)
        std::copy_n(copies_ + n * head_dim_ + d, 4, column + d * cpu::kDigitColumns + 4 * n * cpu::kDigitRows);
  }
  /// Weights of the block's first `count` keys.
  void set_weights(int64_t kv_head, int64_t row, const float* weights, int64_t count) {
    weight_units_[place(kv_head, row)] = split_digits(
        weights, count, this->weights(kv_head, row / cpu::kDigitRows) + row % cpu::kDigitRows * cpu::kDigitDepth,
        cpu::kDigitRows * cpu::kDigitDepth, cpu::kDigitDepth, cpu::kDigitColumns * cpu::kDigitDepth);
  }

  /// The next products are with these kDigitDepth keys, kv head 0's.
  void set_keys(const std::byte* const* rows) {
    keys_ = rows;
    for (int64_t tile = 0; tile < kTiles; ++tile) {
      const auto at = [&](int64_t n) { return reinterpret_cast<intptr_t>(rows[tile * kTileRows + n]); };
      const intptr_t stride = at(1) - at(0);
      is_even_[tile] = true, tiles_.stride[tile] = stride;
      for (int64_t n = 2; n < kTileRows; ++n) is_even_[tile] &= at(n) - at(n - 1) == stride;
    }
  }
  /// scores[row * stride + key] of a kv head's rows and the keys `skip` bytes behind those.
  void multiply_keys(int64_t kv_head, int64_t skip, float* scores, int64_t stride) {
    for (int64_t tile = 0; tile < kTiles; ++tile) set_tile(tile, skip);
    for (int64_t group = 0; group < groups_; ++group) {
      int32_t* const products = next_products();
      unit_->multiply_codes(tiles_, head_dim_, queries(kv_head, group), products, ahead);
      join_later({.products = products,
                  .units = query_units_ + place(kv_head, group * cpu::kDigitRows),
                  .rows = rows_of(group),
                  .to = scores + group * cpu::kDigitRows * stride,
                  .stride = stride,
                  .is_of_keys = true});
    }
  }

  /// sums[row * stride + column] += weights * the first `count` values of the block, kCodeColumns columns of them; in
  /// an order of its own: restore_columns(). Packed codes are multiplied when the ones after them are packed: until
  /// then they are on their way to memory.
  void add_values(int64_t kv_head, const std::byte* const* rows, int64_t skip, int64_t count, float* sums,
                  int64_t stride) {
    int8_t* const codes = values_[values_turn_];
    values_turn_ = 1 - values_turn_;
    interleave_values(rows, skip, count, codes, ahead);
    add_packed();
    packed_ = {.codes = codes, .kv_head = kv_head, .count = count, .sums = sums, .stride = stride};
  }

  void finish() {
    add_packed();
    join();
  }

 private:
  void add_packed() {
    const Packed now = std::exchange(packed_, {});
    if (now.codes == nullptr) return;
    for (int64_t group = 0; group < groups_; ++group) {
      int32_t* const products = next_products();
      unit_->multiply_digits(weights(now.kv_head, group), now.count, now.codes, products, ahead);
      join_later({.products = products,
                  .units = weight_units_ + place(now.kv_head, group * cpu::kDigitRows),
                  .rows = rows_of(group),
                  .to = now.sums + group * cpu::kDigitRows * now.stride,
                  .stride = now.stride,
                  .is_of_keys = false});
    }
  }

  struct Packed {
    const int8_t* codes = nullptr;
    int64_t kv_head = 0, count = 0;
    float* sums = nullptr;
    int64_t stride = 0;
  };
  struct Pending {
    const int32_t* products = nullptr;
    const DigitUnit* units = nullptr;
    int64_t rows = 0;
    float* to = nullptr;
    int64_t stride = 0;
    bool is_of_keys = false;
  };

  int32_t* next_products() { return products_[turn_ = 1 - turn_]; }
  void join_later(const Pending& products) {
    join();
    pending_ = products;
  }
  void join() {
    const Pending now = std::exchange(pending_, {});
    if (now.products == nullptr) return;
    if (now.is_of_keys)
      join_columns(now.products, cpu::kDigitDepth, now.units, now.rows, now.to, now.stride);
    else
      add_joined_rows(now.products, now.units, now.rows, now.to, now.stride);
  }

  int64_t rows_of(int64_t group) const { return std::min(cpu::kDigitRows, rows_ - group * cpu::kDigitRows); }
  int64_t place(int64_t kv_head, int64_t row) const { return kv_head * groups_ * cpu::kDigitRows + row; }
  int8_t* queries(int64_t kv_head, int64_t group) const {
    return queries_ + (kv_head * groups_ + group) * cpu::kDigitColumns * head_dim_;
  }
  int8_t* weights(int64_t kv_head, int64_t group) const {
    return weights_ + (kv_head * groups_ + group) * cpu::kDigitColumns * block_;
  }

  /// Keys are a tile where they lie if they are equally far apart, as slots of a page are; else their copies are.
  void set_tile(int64_t tile, int64_t skip) {
    const std::byte* const* const rows = keys_ + tile * kTileRows;
    tiles_.first[tile] = rows[0] + skip;
    if (is_even_[tile]) return;
    int8_t* const copy = copies_ + tile * kTileRows * head_dim_;
    for (int64_t n = 0; n < kTileRows; ++n)
      std::memcpy(copy + n * head_dim_, rows[n] + skip, static_cast<size_t>(head_dim_));
    tiles_.first[tile] = reinterpret_cast<const std::byte*>(copy), tiles_.stride[tile] = head_dim_;
  }

  static constexpr int64_t kTileRows = 16, kTiles = cpu::kDigitDepth / kTileRows;

  const cpu::MatrixUnit* unit_ = nullptr;
  int64_t head_dim_ = 0, rows_ = 0, block_ = 0;
  int64_t groups_ = 0;                ///< of kDigitRows rows, of a kv head
  int8_t* queries_ = nullptr;         ///< [kv head][group][head_dim / 4][kDigitColumns][4]
  int8_t* weights_ = nullptr;         ///< [kv head][group][block / kDigitDepth][kDigitColumns][kDigitDepth]
  DigitUnit* query_units_ = nullptr;  ///< [kv head][group][kDigitRows]
  DigitUnit* weight_units_ = nullptr;
  int8_t* copies_ = nullptr;                   ///< of kDigitDepth keys, or of a query's digits
  int8_t* values_[2] = {nullptr, nullptr};     ///< of a kv head and block, and of the one before
  int32_t* products_[2] = {nullptr, nullptr};  ///< the last two
  int turn_ = 0, values_turn_ = 0;
  const std::byte* const* keys_ = nullptr;  ///< of kv head 0
  cpu::CodeTiles tiles_ = {};
  bool is_even_[kTiles] = {};  ///< a tile's keys are equally far apart
  Packed packed_ = {};
  Pending pending_ = {};
};

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
