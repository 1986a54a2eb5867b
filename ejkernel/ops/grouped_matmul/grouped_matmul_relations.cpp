// What must hold between two calls of grouped_matmul or of its gradients, whatever the answer is. Numbers are small
// integers and scales powers of two, so that every order of summation gives the same result: nothing may differ.
#include <algorithm>
#include <numeric>

#include "ejkernel/ops/grouped_matmul/grouped_matmul_cases.h"
#include "ejkernel/testing/check.h"

namespace ejk::testing {
namespace {

/// Equal numbers; zeros may differ in sign.
std::string same(const Tensor& a, const Tensor& b) { return compare(a, b, 0); }

MatmulCase draw(uint64_t seed, Size size) {
  MatmulCase c = random_matmul_case({.seed = seed, .size = size});
  c.data = MatmulData::integers;
  return c;
}
MatmulCase ragged(uint64_t seed, Size size) {
  MatmulCase c = draw(seed, size);
  if (!c.batched) return c;
  c.batched = false;
  c.sizes.assign(static_cast<size_t>(c.num_groups), c.m);
  if (c.lhs_scale_rank) c.lhs_scale_rank = 1;
  return c;
}
/// Every group has a matrix.
MatmulCase whole(uint64_t seed, Size size) {
  MatmulCase c = ragged(seed, size);
  c.group_offset = c.groups_elsewhere = 0;
  if (c.sizes.empty()) c.sizes = {c.rows_of_nobody};
  return c;
}
MatmulCase float_operands(MatmulCase c) {
  if (bits(c.dtype) == 8) c.dtype = DType::bf16;
  c.rhs_dtype.reset(), c.lhs_scale_rank.reset(), c.rhs_scale_rank.reset();
  return c;
}

/// A problem with these inputs replaced by contiguous copies; an absent one is taken away.
Problem with(const Problem& problem, std::initializer_list<std::pair<std::string_view, Tensor>> inputs) {
  Problem copy = problem;
  for (const auto& [name, from] : inputs) {
    for (size_t i = 0; i < copy.inputs.size(); ++i)
      if (copy.operation->inputs[i].name == name) copy.inputs[i] = {};
    if (from.present()) fill(copy.add(name, from.dtype, from.shape), [from = from](int64_t n) { return get(from, n); });
  }
  return copy;
}
template <class Op, class Change>
Problem with_params(Problem problem, Change&& change) {
  auto params = problem.params.as<typename Op::Params>();
  change(params);
  problem.params = ParamsBlock::of(params);
  return problem;
}

/// Entries [begin, begin + count) along the first axis.
Tensor slice(const Tensor& t, int64_t begin, int64_t count) {
  if (!t.present()) return t;
  Tensor part = t;
  part.shape[0] = count;
  if (count > 0) part.data = t.as<std::byte>() + begin * t.strides[0] * bits(t.dtype) / 8;
  return part;
}
/// The last two axes change places.
Array transposed(const Tensor& t) {
  Tensor view = t;
  std::swap(view.shape[-1], view.shape[-2]);
  std::swap(view.strides[-1], view.strides[-2]);
  return contiguous(view);
}
Array mapped(const Tensor& t, const std::function<double(int64_t)>& value) {
  Array made(t.dtype, t.shape);
  fill(made, value);
  return made;
}
Array sizes_of(const std::vector<int64_t>& sizes) {
  Array made(DType::i32, {static_cast<int64_t>(sizes.size())});
  fill_values(made, sizes);
  return made;
}

// ---- grouped_matmul ----

std::string one_group_is_a_plain_product(uint64_t seed, Size size, const KernelRunner& run) {
  MatmulCase c = float_operands(whole(seed, size));
  c.sizes = {std::accumulate(c.sizes.begin(), c.sizes.end(), int64_t{0})};
  c.rows_of_nobody = 0, c.rhs_mask = c.out_mask = c.existing_out = c.transpose_rhs = false;
  const Problem problem = make_matmul_problem(c);
  const Tensor lhs = problem.view("lhs"), rhs = problem.view("rhs");
  const Array out = run(problem)[0];
  return same(out, mapped(out, [&](int64_t at) {
                double sum = 0;
                for (int64_t p = 0; p < c.k; ++p) sum += get(lhs, at / c.n * c.k + p) * get(rhs, p * c.n + at % c.n);
                return sum;
              }));
}

std::string batched_is_ragged_with_equal_groups(uint64_t seed, Size size, const KernelRunner& run) {
  MatmulCase c = draw(seed, size);
  if (!c.batched) c.m = c.sizes.empty() ? 3 : c.sizes[0], c.num_groups = 3;
  c.batched = true, c.batch = 1, c.rhs_mask = c.out_mask = false;
  if (c.lhs_scale_rank) c.lhs_scale_rank = 0;
  if (c.rhs_scale_rank) c.rhs_scale_rank = 0;
  const Problem batched = make_matmul_problem(c);
  const auto flat = [&](std::string_view name, int rank) {
    const Tensor t = batched.view(name);
    if (!t.present()) return Array();
    const Array dense = contiguous(t);
    const Shape shape = rank == 2 ? Shape{c.num_groups * c.m, t.shape[3]} : Shape{t.shape[1], t.shape[2], t.shape[3]};
    return Array(Tensor(dense.data(), t.dtype, shape), std::make_shared<Array>(dense));
  };
  const Array lhs = flat("lhs", 2), rhs = flat("rhs", 3), existing = flat("existing_out", 2);
  const Array sizes = sizes_of(std::vector<int64_t>(static_cast<size_t>(c.num_groups), c.m));
  const Array expected = run(batched)[0];
  const Array out =
      run(with(batched, {{"lhs", lhs}, {"rhs", rhs}, {"existing_out", existing}, {"group_sizes", sizes}}))[0];
  return same(Tensor(out.data(), out.dtype(), expected.shape()), expected);
}

/// Groups, their rows and their matrices in the opposite order.
std::string groups_may_change_places(uint64_t seed, Size size, const KernelRunner& run) {
  MatmulCase c = float_operands(whole(seed, size));
  c.rows_of_nobody = 0, c.rhs_mask = c.out_mask = false, c.poison = false;
  const Problem forward = make_matmul_problem(c);
  const Tensor lhs = forward.view("lhs"), rhs = forward.view("rhs"), existing = forward.view("existing_out");
  std::vector<int64_t> rows, sizes(c.sizes.rbegin(), c.sizes.rend());  // rows[i]: where the i-th row comes from
  int64_t past = lhs.shape[0];
  for (const int64_t count : sizes) {
    past -= count;
    for (int64_t i = 0; i < count; ++i) rows.push_back(past + i);
  }
  const auto moved = [&](const Tensor& t) {
    if (!t.present()) return Array();
    const int64_t width = t.shape[1];
    return mapped(t, [&](int64_t n) { return get(t, rows[static_cast<size_t>(n / width)] * width + n % width); });
  };
  const int64_t matrix = c.k * c.n, last = rhs.shape[0] - 1;
  const Array reversed_rhs =
      mapped(rhs, [&](int64_t n) { return get(rhs, (last - n / matrix) * matrix + n % matrix); });
  const Array reversed = run(with(forward, {{"lhs", moved(lhs)},
                                            {"rhs", reversed_rhs},
                                            {"existing_out", moved(existing)},
                                            {"group_sizes", sizes_of(sizes)}}))[0];
  const Array expected = run(forward)[0];
  return same(reversed, moved(expected));
}

/// Expert parallelism: ranks hold some of the matrices each and add what the rank before gave.
std::string slices_of_groups_add_up(uint64_t seed, Size size, const KernelRunner& run) {
  MatmulCase c = whole(seed, size);
  c.poison = false;
  const Problem all = make_matmul_problem(c);
  const Tensor rhs = all.view("rhs"), scale = all.view("rhs_scale"), mask = all.view("rhs_mask");
  const int64_t first = rhs.shape[0] / 3, count = rhs.shape[0] - first;
  const auto rank = [&](int64_t begin, int64_t groups, const Tensor& existing) {
    const bool per_group = scale.present() && scale.rank() > 0;
    return run(with_params<GroupedMatmul>(with(all, {{"rhs", slice(rhs, begin, groups)},
                                                     {"rhs_scale", per_group ? slice(scale, begin, groups) : scale},
                                                     {"rhs_mask", slice(mask, begin, groups)},
                                                     {"existing_out", existing}}),
                                          [&](GroupedMatmul::Params& p) { p.group_offset = begin; }))[0];
  };
  const Array of_first = rank(0, first, all.view("existing_out"));
  return same(rank(first, count, of_first), run(all)[0]);
}

std::string transposition_is_a_copy(uint64_t seed, Size size, const KernelRunner& run) {
  const Problem problem = make_matmul_problem(draw(seed, size));
  const Array rhs = transposed(problem.view("rhs"));
  const Problem other = with_params<GroupedMatmul>(
      with(problem, {{"rhs", rhs}}), [](GroupedMatmul::Params& p) { p.transpose_rhs = !p.transpose_rhs; });
  return same(run(other)[0], run(problem)[0]);
}

std::string linear_in_lhs(uint64_t seed, Size size, const KernelRunner& run) {
  MatmulCase c = float_operands(draw(seed, size));
  c.existing_out = c.poison = false, c.out_dtype = DType::f32;
  if (c.dtype == DType::f64) c.dtype = DType::f32;
  const Problem one = make_matmul_problem(c);
  const Tensor x = one.view("lhs");
  const Array y = mapped(x, [](int64_t n) { return static_cast<double>(n % 5) - 2; });
  const Array both = mapped(x, [&](int64_t n) { return 2 * get(x, n) - get(y, n); });
  const Array of_x = run(one)[0], of_y = run(with(one, {{"lhs", y}}))[0], of_both = run(with(one, {{"lhs", both}}))[0];
  return same(of_both, mapped(of_x, [&](int64_t n) { return 2 * get(of_x, n) - get(of_y, n); }));
}

std::string existing_out_is_added(uint64_t seed, Size size, const KernelRunner& run) {
  MatmulCase c = draw(seed, size);
  c.existing_out = true, c.out_dtype = DType::f32;
  const Problem onto = make_matmul_problem(c);
  const Tensor existing = onto.view("existing_out");
  const Array alone = run(with(onto, {{"existing_out", Tensor()}}))[0];
  return same(run(onto)[0], mapped(alone, [&](int64_t n) { return get(alone, n) + get(existing, n); }));
}

/// A mask is zeros in its place.
std::string masked_blocks_are_zeros(uint64_t seed, Size size, const KernelRunner& run) {
  MatmulCase c = whole(seed, size);
  c.rhs_mask = c.out_mask = true, c.poison = false;
  const Problem masked = make_matmul_problem(c);
  const Tensor rhs = masked.view("rhs"), rhs_mask = masked.view("rhs_mask"), out_mask = masked.view("out_mask");
  const Tensor existing = masked.view("existing_out");
  const Array zeroed = mapped(rhs, [&](int64_t at) {
    const int64_t r = at / rhs.shape[2] % rhs.shape[1], column = at % rhs.shape[2],
                  g = at / rhs.shape[2] / rhs.shape[1];
    const int64_t k = c.transpose_rhs ? column : r, n = c.transpose_rhs ? r : column;
    const int64_t block = (g * rhs_mask.shape[1] + k / c.block_k) * rhs_mask.shape[2] + n / c.block_n;
    return get(rhs_mask, block) != 0 ? get(rhs, at) : 0;
  });
  const Problem dense = with_params<GroupedMatmul>(
      with(masked, {{"rhs", zeroed}, {"rhs_mask", Tensor()}, {"out_mask", Tensor()}}),
      [](GroupedMatmul::Params& p) { p.block_m.reset(), p.block_k.reset(), p.block_n.reset(); });
  const Array product = run(dense)[0];
  return same(run(masked)[0], mapped(product, [&](int64_t at) {
                const int64_t block = at / c.n / c.block_m * out_mask.shape[1] + at % c.n / c.block_n;
                if (get(out_mask, block) != 0) return get(product, at);
                return existing.present() ? get(existing, at) : 0;
              }));
}

/// Codes and their scales are the numbers that they stand for.
std::string codes_are_numbers(uint64_t seed, Size size, const KernelRunner& run) {
  MatmulCase c = ragged(seed, size);
  c.dtype = seed % 2 == 0 ? DType::i8 : DType::e4m3;
  c.rhs_dtype.reset(), c.out_dtype = DType::f32, c.rhs_mask = c.out_mask = c.poison = false;
  c.lhs_scale_rank = static_cast<int>(seed % 3), c.rhs_scale_rank = seed % 5 < 3 ? 2 : 3;
  const Problem codes = make_matmul_problem(c);
  const Tensor lhs = codes.view("lhs"), rhs = codes.view("rhs");
  const Tensor lhs_scale = codes.view("lhs_scale"), rhs_scale = codes.view("rhs_scale");
  const Array a(DType::f32, lhs.shape), b(DType::f32, rhs.shape);
  fill(a, [&](int64_t at) {
    const int64_t i = at / c.k, block = at % c.k / 128;
    const int64_t of = lhs_scale.rank() == 0 ? 0 : lhs_scale.rank() == 1 ? i : i * lhs_scale.shape[1] + block;
    return get(lhs, at) * get(lhs_scale, of);
  });
  fill(b, [&](int64_t at) {
    const int64_t r = at / rhs.shape[2] % rhs.shape[1], column = at % rhs.shape[2],
                  g = at / rhs.shape[2] / rhs.shape[1];
    const int64_t k = c.transpose_rhs ? column : r, n = c.transpose_rhs ? r : column;
    const int64_t of =
        rhs_scale.rank() == 2 ? g * c.n + n : (g * rhs_scale.shape[1] + k / 128) * rhs_scale.shape[2] + n / 128;
    return get(rhs, at) * get(rhs_scale, of);
  });
  const Problem numbers = with(codes, {{"lhs", a}, {"rhs", b}, {"lhs_scale", Tensor()}, {"rhs_scale", Tensor()}});
  return same(run(codes)[0], run(numbers)[0]);
}

// ---- gradients ----

KernelRunner reference_of(const Operation& operation) { return KernelRunner(kernels_of(operation).back()); }

/// The gradient for lhs is a product with the transposed matrices.
std::string d_lhs_is_a_product(uint64_t seed, Size size, const KernelRunner& run) {
  MatmulCase c = ragged(seed, size);
  c.rhs_mask = c.out_mask = c.existing_out = false, c.out_dtype.reset();
  const Problem backward = make_matmul_backward_problem(c);
  Problem product = Problem::of(declaration<GroupedMatmul>());
  product.seed = seed, product.params = backward.params;
  product = with(
      product,
      {{"lhs", backward.view("d_out")}, {"rhs", backward.view("rhs")}, {"group_sizes", backward.view("group_sizes")}});
  product = with_params<GroupedMatmul>(product, [](GroupedMatmul::Params& p) { p.transpose_rhs = !p.transpose_rhs; });
  return same(run(backward)[0], reference_of(declaration<GroupedMatmul>())(product)[0]);
}

std::string d_rhs_is_a_transposed_product(uint64_t seed, Size size, const KernelRunner& run) {
  MatmulCase c = ragged(seed, size);
  c.out_dtype.reset();
  const Problem backward = make_matmul_backward_problem(c);
  const auto params = backward.params.as<GroupedMatmulBackward::Params>();
  Problem product = Problem::of(declaration<TransposedGroupedMatmul>());
  product.seed = seed;
  TransposedGroupedMatmul::Params to = {.transpose_rhs = params.transpose_rhs, .group_offset = params.group_offset};
  to.num_groups = backward.view("rhs").shape[0];
  to.block_m = params.block_m, to.block_k = params.block_k, to.block_n = params.block_n;
  product.params = ParamsBlock::of(to);
  product = with(product, {{"lhs", backward.view("lhs")},
                           {"d_out", backward.view("d_out")},
                           {"group_sizes", backward.view("group_sizes")},
                           {"rhs_mask", backward.view("rhs_mask")},
                           {"out_mask", backward.view("out_mask")}});
  return same(run(backward)[1], reference_of(declaration<TransposedGroupedMatmul>())(product)[0]);
}

std::string linear_in_the_cotangent(uint64_t seed, Size size, const KernelRunner& run) {
  MatmulCase c = float_operands(draw(seed, size));
  c.poison = c.existing_out = false, c.dtype = DType::f32, c.out_dtype.reset();
  const Problem one = make_matmul_backward_problem(c);
  const Tensor u = one.view("d_out");
  const Array v = mapped(u, [](int64_t n) { return static_cast<double>(n % 7) - 3; });
  const Array both = mapped(u, [&](int64_t n) { return 2 * get(u, n) - get(v, n); });
  const auto of_u = run(one), of_v = run(with(one, {{"d_out", v}})), of_both = run(with(one, {{"d_out", both}}));
  for (size_t o = 0; o < 2; ++o) {
    const Array sum = mapped(of_u[o], [&](int64_t n) { return 2 * get(of_u[o], n) - get(of_v[o], n); });
    if (std::string wrong = same(of_both[o], sum); !wrong.empty()) return wrong;
  }
  return {};
}

/// The sum of all groups' matrices is that of one group with all rows.
std::string groups_share_a_sum(uint64_t seed, Size size, const KernelRunner& run) {
  MatmulCase c = float_operands(whole(seed, size));
  c.poison = c.rhs_mask = false, c.out_dtype = DType::f32;
  const Problem many = make_transposed_matmul_problem(c);
  const int64_t rows = std::accumulate(c.sizes.begin(), c.sizes.end(), int64_t{0});
  const Problem one =
      with_params<TransposedGroupedMatmul>(with(many, {{"group_sizes", sizes_of({rows})}}),
                                           [](TransposedGroupedMatmul::Params& p) { p.num_groups.reset(); });
  const Array parts = run(many)[0], all = run(one)[0];
  const int64_t matrix = c.k * c.n, groups = parts.shape()[0];
  return same(all, mapped(all, [&](int64_t n) {
                double sum = 0;
                for (int64_t g = 0; g < groups; ++g) sum += get(parts, g * matrix + n);
                return sum;
              }));
}

std::string results_may_be_transposed(uint64_t seed, Size size, const KernelRunner& run) {
  const Problem problem = make_transposed_matmul_problem(draw(seed, size));
  const Problem other = with_params<TransposedGroupedMatmul>(
      problem, [](TransposedGroupedMatmul::Params& p) { p.transpose_rhs = !p.transpose_rhs; });
  return same(transposed(run(other)[0]), run(problem)[0]);
}

}  // namespace

std::vector<Relation> matmul_relations() {
  return {{"one_group_is_a_plain_product", one_group_is_a_plain_product},
          {"batched_is_ragged_with_equal_groups", batched_is_ragged_with_equal_groups},
          {"groups_may_change_places", groups_may_change_places},
          {"slices_of_groups_add_up", slices_of_groups_add_up},
          {"transposition_is_a_copy", transposition_is_a_copy},
          {"linear_in_lhs", linear_in_lhs},
          {"existing_out_is_added", existing_out_is_added},
          {"masked_blocks_are_zeros", masked_blocks_are_zeros},
          {"codes_are_the_numbers_they_stand_for", codes_are_numbers}};
}

std::vector<Relation> matmul_backward_relations() {
  return {{"d_lhs_is_a_product_with_transposed_matrices", d_lhs_is_a_product},
          {"d_rhs_is_a_transposed_product", d_rhs_is_a_transposed_product},
          {"gradients_are_linear_in_the_cotangent", linear_in_the_cotangent}};
}

std::vector<Relation> transposed_matmul_relations() {
  return {{"groups_share_a_sum", groups_share_a_sum}, {"results_may_be_transposed", results_may_be_transposed}};
}

}  // namespace ejk::testing
