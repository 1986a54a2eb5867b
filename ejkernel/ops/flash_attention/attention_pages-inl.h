// Keys and values that lie in pages, as the tiles of attention take them: rows and row pairs, from any dtype that
// caches store. Rows on pages that do not exist are zeros. Included once per instruction set, after
// attention_tiles-inl.h and stored-inl.h.

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {

inline constexpr int64_t kMaxDims = 512;

/// A tensor over pages and the scales of its codes, which are applied here where groups of elements have their own.
struct PagedRows {
  const Problem& p;
  const Tensor& x;
  const Strides& strides;
  const Tensor& scale;

  bool grouped() const { return scale.rank() == 4; }
  int64_t dims() const { return x.shape[-1]; }

  /// Where the rows of keys [first, first + count) of kv head 0 begin, in elements of x.
  void find(const Sequence& s, int64_t first, int64_t count, int64_t* offsets) const {
    cpu::find_rows(
        s.k_begin + first, count, p.pages.size, [&](int64_t slot) { return p.page_of(s, slot); }, strides.batch,
        strides.row, offsets);
  }

  void load(const Sequence& s, int64_t key, int64_t kv_head, int64_t offset, float* row) const {
    load_stored_row(x.data, x.dtype, offset + kv_head * strides.head, dims(), row);
    if (!grouped()) return;
    const int64_t size = dims() / scale.shape[3];
    for (int64_t d = 0; d < dims(); d += size) {
      const auto factor = static_cast<float>(p.page_scale_at(scale, s, key, kv_head, d, dims()));
      for (int64_t i = d; i < d + size; ++i) row[i] *= factor;
    }
  }
};

/// Rows of keys [first, first + count), padded(units<E>(dims)) elements apart. Says which ones do not exist, and
/// returns whether there are any.
template <class E>
inline bool load_paged_rows(const PagedRows& from, const Panel& t, int64_t first, int64_t count, E* rows,
                            uint8_t* missing) {
  int64_t offsets[kMaxBlockK];
  alignas(64) float floats[kMaxDims];
  alignas(64) uint16_t narrow[kMaxDims];
  from.find(t.sequence, first, count, offsets);
  const int64_t dims = from.dims(), stride = padded(units<E>(dims));
  bool any = false;
  for (int64_t j = 0; j < count; ++j) {
    E* row = rows + j * stride;
    missing[j] = offsets[j] == cpu::kNoRow;
    any = any || missing[j];
    if (missing[j]) {
      std::fill_n(row, units<E>(dims), E{});
    } else if constexpr (std::is_same_v<E, float>) {
      from.load(t.sequence, first + j, t.kv_head, offsets[j], row);
    } else if (from.x.dtype == DType::bf16) {
      load_elements(from.x.data, DType::bf16, offsets[j] + t.kv_head * from.strides.head, dims, row);
    } else {
      load_stored_row(from.x.data, from.x.dtype, offsets[j] + t.kv_head * from.strides.head, dims, floats, narrow);
      load_elements(narrow, DType::bf16, 0, dims, row);
    }
  }
  return any;
}

/// Row pairs of the same keys, padded(dims) elements apart, with zeros in place of keys that are not live.
inline void load_paged_pairs(const PagedRows& from, const Panel& t, int64_t first, int64_t count, const uint8_t* live,
                             float* pairs) {
  int64_t offsets[kMaxBlockK];
  from.find(t.sequence, first, count, offsets);
  for (int64_t j = 0; j < count; ++j) {
    float* row = pairs + j * padded(from.dims());
    if (live[j] && offsets[j] != cpu::kNoRow)
      from.load(t.sequence, first + j, t.kv_head, offsets[j], row);
    else
      std::fill_n(row, from.dims(), 0.0f);
  }
}
inline void load_paged_pairs(const PagedRows& from, const Panel& t, int64_t first, int64_t count, const uint8_t* live,
                             Pair* pairs) {
  int64_t offsets[kMaxBlockK];
  alignas(64) float floats[kMaxDims];
  alignas(64) uint16_t narrow[2][kMaxDims];
  from.find(t.sequence, first, count, offsets);
  const auto row = [&](int64_t j) -> const uint16_t* {
    if (j >= count || !live[j] || offsets[j] == cpu::kNoRow) return nullptr;
    const int64_t offset = offsets[j] + t.kv_head * from.strides.head;
    if (from.x.dtype == DType::bf16) return static_cast<const uint16_t*>(from.x.data) + offset;
    load_stored_row(from.x.data, from.x.dtype, offset, from.dims(), floats, narrow[j % 2]);
    return narrow[j % 2];
  };
  for (int64_t j = 0; j < count; j += 2) {
    const uint16_t* even = row(j);
    interleave(even, row(j + 1), from.dims(), pairs + j / 2 * padded(from.dims()));
  }
}

/// Keys that do not exist are seen by no row. False when none is left.
inline bool exclude_missing(const Panel& t, KeyBlock& block, const uint8_t* missing, float* scores) {
  const FloatTag d;
  for (int64_t j = 0; j < block.count; ++j) {
    if (!missing[j]) continue;
    block.live[j] = 0;
    for (int64_t r = 0; r < t.width(); r += lanes()) hn::Store(minus_infinity(), d, scores + j * panel_rows() + r);
  }
  return block.any_live();
}

/// What is_tiny() asks, of the values of one kv head and of keys [first, past) of a sequence.
inline bool has_tiny_values(const Problem& p, const Sequence& s, int64_t kv_head, int64_t first, int64_t past) {
  if (p.value.dtype != DType::bf16) return false;
  constexpr int64_t kStep = 16;  // the first row mostly answers
  bool any = false;
  for (; first < past; first += kStep) {
    int64_t offsets[kStep];
    const int64_t count = std::min(kStep, past - first);
    PagedRows{p, p.value, p.v, p.v_scale}.find(s, first, count, offsets);
    for (int64_t j = 0; j < count; ++j) {
      if (offsets[j] == cpu::kNoRow) continue;
      const uint16_t* row = p.value.as<const uint16_t>() + offsets[j] + kv_head * p.v.head;
      for (int64_t i = 0; i < p.value_dim; ++i) {
        if (is_ordinary(row[i])) return false;
        any = any || (row[i] & 0x7fff) != 0;
      }
    }
  }
  return any;
}

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
