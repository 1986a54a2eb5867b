// What the relations of attention share: tensors by their indices, problems with some of their tensors moved about.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include "ejkernel/ops/flash_attention/flash_attention_cases.h"

namespace ejk::testing {

using Index = std::array<int64_t, 4>;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline Index index_of(const Tensor& t, int64_t flat) {
  Index index{};
  for (int axis = t.rank() - 1; axis >= 0; --axis) {
    index[static_cast<size_t>(axis)] = flat % t.shape[axis];
    flat /= t.shape[axis];
  }
  return index;
}

/// An element by its indices; an axis of extent 1 broadcasts.
inline double at(const Tensor& t, const Index& index) {
  int64_t flat = 0;
  for (int axis = 0; axis < t.rank(); ++axis)
    flat = flat * t.shape[axis] + (t.shape[axis] == 1 ? 0 : index[static_cast<size_t>(axis)]);
  return get(t, flat);
}

/// Puts an input of this shape in the place of the old one; `value` gets an element's indices.
template <class F>
void put(Problem& p, std::string_view input, DType dtype, const Shape& shape, F&& value) {
  const Tensor t = p.add(input, dtype, shape);
  fill(t, [&](int64_t n) { return value(index_of(t, n)); });
}

/// The batched call with `longer` keys, those past the old ones beyond the length in use and full of NaN.
inline Problem with_unused_keys(const Problem& before, int64_t longer) {
  Problem after = before;
  const int64_t kv_len = before.view("key").shape[1];
  for (const char* name : {"key", "value"}) {
    const Tensor t = before.view(name);
    Shape shape = t.shape;
    shape[1] = longer;
    put(after, name, t.dtype, shape, [&](const Index& i) { return i[1] < kv_len ? at(t, i) : std::nan(""); });
  }
  const Tensor used = before.view("seqused_k");
  put(after, "seqused_k", DType::i32, {before.view("key").shape[0]},
      [&](const Index& i) { return used.present() ? at(used, i) : static_cast<double>(kv_len); });
  return after;
}

/// A batched problem of a dtype that fast kernels take, without NaN in unread places: relations move rows about.
inline AttentionCase draw_batched(uint64_t seed, Size size) {
  AttentionCase c = random_attention_case({.seed = seed, .size = size}, {.packed = false});
  if (bits(c.dtype) == 64 || bits(c.dtype) == 8) c.dtype = DType::f32;
  c.scales = CodeScale::none;
  c.data = Data::normal;
  c.poison = false;
  c.batch = std::max<int64_t>(c.batch, 1);
  c.q_len = std::max<int64_t>(c.q_len, 1);
  c.kv_len = std::max<int64_t>(c.kv_len, 1);
  if (c.params.softmax_scale && std::abs(*c.params.softmax_scale) > 1) c.params.softmax_scale.reset();
  c.params.normalize_output = true;
  return c;
}
/// Steps of the output's dtype that two right results may differ by, relative to the largest element. For lse, whose
/// error is that of its logits, and for float32 sums in another order, a few more.
inline double few_steps(const Tensor& t) { return t.dtype == DType::f32 ? 3e-5 : 6 * unit_roundoff(t.dtype); }

/// An array with its elements picked from another one: result[i] = from[source(i)].
template <class F>
Array picked(const Tensor& from, const Shape& shape, F&& source) {
  Array to(from.dtype, shape);
  fill(to, [&](int64_t n) { return at(from, source(index_of(to, n))); });
  return to;
}

inline std::vector<int64_t> permutation(int64_t count, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  Random(seed ^ 0x5045524Du).shuffle(order);
  return order;
}

}  // namespace ejk::testing
