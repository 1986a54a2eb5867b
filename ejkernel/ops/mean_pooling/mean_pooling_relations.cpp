// What must hold between two calls of mean_pooling, whatever the answer is.
#include <algorithm>
#include <limits>
#include <numeric>

#include "ejkernel/ops/mean_pooling/mean_pooling_cases.h"

namespace ejk::testing {
namespace {

/// Two sums of the same terms in other orders, each rounded once: a few steps of the output's dtype.
double few_steps(const Tensor& out) { return 4 * unit_roundoff(out.dtype); }

PoolingCase draw(uint64_t seed, Size size) {
  PoolingCase c = random_pooling_case({.seed = seed, .size = size});
  c.data = PoolingData::normal;
  return c;
}
PoolingCase batched(uint64_t seed, Size size) {
  PoolingCase c = draw(seed, size);
  if (c.packed) c.num_tokens = std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0});
  c.packed = false, c.lengths.clear(), c.unowned_rows = 0, c.chunk_size.reset(), c.num_heads = 1;
  c.batch = std::max<int64_t>(c.batch, 1);
  return c;
}
PoolingCase packed(uint64_t seed, Size size) {
  PoolingCase c = draw(seed, size);
  if (!c.packed) c.lengths = {c.num_tokens, c.num_tokens / 3, 0, 1};
  c.packed = true, c.masked = false;
  return c;
}

/// A problem with its x, and what else it needs, copied from views.
Problem problem_of(const Tensor& x, const Tensor& mask, const Tensor& cu_seqlens, std::optional<int64_t> chunk_size,
                   uint64_t seed) {
  Problem problem = Problem::of(declaration<MeanPooling>());
  problem.seed = seed;
  problem.params = ParamsBlock::of(MeanPooling::Params{.chunk_size = chunk_size});
  for (const auto& [name, from] :
       {std::pair<std::string_view, Tensor>{"x", x}, {"mask", mask}, {"cu_seqlens", cu_seqlens}})
    if (from.present())
      fill(problem.add(name, from.dtype, from.shape), [from = from](int64_t n) { return get(from, n); });
  return problem;
}

/// Rows [begin, begin + count) along an axis.
Tensor slice(const Tensor& t, int axis, int64_t begin, int64_t count) {
  Tensor part = t;
  part.shape[axis] = count;
  if (count > 0 && bits(t.dtype) >= 8) part.data = t.as<std::byte>() + begin * t.strides[axis] * bits(t.dtype) / 8;
  return part;
}

/// The same memory as another shape; the view is contiguous.
Tensor reshaped(const Tensor& t, const Shape& shape) { return Tensor(t.data, t.dtype, shape); }

std::string mask_of_ones(uint64_t seed, Size size, const KernelRunner& run) {
  PoolingCase c = batched(seed, size);
  c.masked = true, c.mask_density = 1;
  const Problem masked = make_pooling_problem(c);
  const Problem plain = problem_of(masked.view("x"), {}, {}, {}, seed);
  return compare_bits(run(masked)[0], run(plain)[0]);
}

std::string masked_rows_left_out(uint64_t seed, Size size, const KernelRunner& run) {
  PoolingCase c = batched(seed, size);
  c.masked = true, c.mask_density = 0.5, c.batch = 1;
  const Problem masked = make_pooling_problem(c);
  const Tensor x = masked.view("x"), mask = masked.view("mask");
  std::vector<int64_t> selected;
  for (int64_t row = 0; row < c.num_tokens; ++row)
    if (get(mask, row) != 0) selected.push_back(row);
  Problem rest = Problem::of(declaration<MeanPooling>());
  rest.seed = seed;
  const Tensor kept = rest.add("x", x.dtype, {1, static_cast<int64_t>(selected.size()), c.dim});
  fill(kept, [&](int64_t n) { return get(x, selected[static_cast<size_t>(n / c.dim)] * c.dim + n % c.dim); });
  const Array all = run(masked)[0];
  return compare(all, run(rest)[0], few_steps(all));
}

std::string batch_entries_alone(uint64_t seed, Size size, const KernelRunner& run) {
  const PoolingCase c = batched(seed, size);
  const Problem together = make_pooling_problem(c);
  const Array all = run(together)[0];
  for (int64_t b = 0; b < c.batch; ++b) {
    const Tensor mask = together.view("mask");
    const Problem alone =
        problem_of(slice(together.view("x"), 0, b, 1), mask.present() ? slice(mask, 0, b, 1) : mask, {}, {}, seed);
    const Array one = run(alone)[0];
    if (std::string wrong = compare(slice(all, 0, b, 1), one, few_steps(one)); !wrong.empty()) return wrong;
  }
  return {};
}

std::string packed_sequences_alone(uint64_t seed, Size size, const KernelRunner& run) {
  const PoolingCase c = packed(seed, size);
  const Problem together = make_pooling_problem(c);
  const std::vector<Array> all = run(together);
  int64_t begin = c.unowned_rows, first_mean = 0;
  for (size_t n = 0; n < c.lengths.size(); ++n) {
    const Array rows = contiguous(slice(together.view("x"), 0, begin, c.lengths[n]));
    Shape shape = {1};
    for (int64_t extent : rows.shape()) shape.push_back(extent);
    const Array one = run(problem_of(reshaped(rows, shape), {}, {}, c.chunk_size, seed))[0];
    const int64_t means = c.chunk_size ? one.shape()[1] : 1;
    Shape flat = all[0].shape();
    flat[0] = means;
    const std::string wrong = compare(slice(all[0], 0, first_mean, means), reshaped(one, flat), few_steps(one));
    if (!wrong.empty()) return wrong;
    begin += c.lengths[n], first_mean += means;
    if (c.chunk_size && get(all[1], static_cast<int64_t>(n) + 1) != static_cast<double>(first_mean))
      return "chunk_offsets: a sequence does not have as many chunks as it has alone";
  }
  return {};
}

std::string one_chunk_is_the_whole(uint64_t seed, Size size, const KernelRunner& run) {
  PoolingCase c = batched(seed, size);
  c.num_tokens = std::max<int64_t>(c.num_tokens, 1), c.masked = false;  // chunks take no mask
  const Problem whole = make_pooling_problem(c);
  const Array x = contiguous(whole.view("x"));
  const Problem chunked = problem_of(reshaped(x, {c.batch, c.num_tokens, 1, c.dim}), {}, {},
                                     c.num_tokens + static_cast<int64_t>(seed % 3), seed);
  const Array expected = run(whole)[0];
  return compare(reshaped(run(chunked)[0], expected.shape()), expected, few_steps(expected));
}

std::string heads_are_columns(uint64_t seed, Size size, const KernelRunner& run) {
  PoolingCase c = draw(seed, size);
  if (!c.chunk_size) c.chunk_size = 7;
  c.num_heads = 3, c.masked = false;
  const Problem heads = make_pooling_problem(c);
  const Array x = contiguous(heads.view("x"));
  Shape shape = x.shape();
  shape[shape.rank() - 2] = 1, shape[shape.rank() - 1] = 3 * c.dim;
  const Array expected = run(heads)[0];
  const Array merged = run(problem_of(reshaped(x, shape), {}, heads.view("cu_seqlens"), c.chunk_size, seed))[0];
  return compare(reshaped(merged, expected.shape()), expected, few_steps(expected));
}

std::string rows_of_nobody(uint64_t seed, Size size, const KernelRunner& run) {
  PoolingCase c = packed(seed, size);
  c.unowned_rows = 0;
  const Problem tight = make_pooling_problem(c);
  const Tensor x = tight.view("x"), offsets = tight.view("cu_seqlens");
  Problem padded = Problem::of(declaration<MeanPooling>());
  padded.seed = seed, padded.params = tight.params;
  Shape shape = x.shape;
  shape[0] += 9;
  const int64_t begin = 4 * x.num_elements() / std::max<int64_t>(x.shape[0], 1), end = begin + x.num_elements();
  fill(padded.add("x", x.dtype, shape),
       [&](int64_t n) { return n < begin || n >= end ? std::numeric_limits<double>::quiet_NaN() : get(x, n - begin); });
  fill(padded.add("cu_seqlens", DType::i32, offsets.shape), [&](int64_t n) { return get(offsets, n) + 4; });
  const Array expected = run(tight)[0], out = run(padded)[0];
  const int64_t rows = std::min(expected.shape()[0], out.shape()[0]);
  if (x.shape[0] == 0) return {};  // no row to say how wide one is
  return compare(slice(out, 0, 0, rows), slice(expected, 0, 0, rows), few_steps(expected));
}

std::string scales_with_x(uint64_t seed, Size size, const KernelRunner& run) {
  const Problem once = make_pooling_problem(draw(seed, size));
  const Tensor x = once.view("x");
  Problem twice =
      problem_of(x, once.view("mask"), once.view("cu_seqlens"), once.params.as<MeanPooling::Params>().chunk_size, seed);
  fill(twice.view("x"), [&](int64_t n) { return -2 * get(x, n); });
  const Array expected = run(once)[0], out = run(twice)[0];
  const Array doubled = expected.clone();
  for (int64_t n = 0; n < doubled.num_elements(); ++n) set(doubled, n, -2 * get(expected, n));
  return compare(out, doubled, expected.dtype() == DType::f16 ? few_steps(out) : 0);
}

}  // namespace

std::vector<Relation> pooling_relations() {
  return {{"mask_of_ones_is_no_mask", mask_of_ones},
          {"masked_rows_may_be_left_out", masked_rows_left_out},
          {"batch_entries_do_not_meet", batch_entries_alone},
          {"packed_is_each_sequence_alone", packed_sequences_alone},
          {"one_chunk_is_the_whole_sequence", one_chunk_is_the_whole},
          {"heads_are_columns", heads_are_columns},
          {"rows_of_no_sequence_change_nothing", rows_of_nobody},
          {"scaling_x_scales_out", scales_with_x}};
}

}  // namespace ejk::testing
