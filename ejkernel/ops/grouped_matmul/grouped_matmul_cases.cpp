#include "ejkernel/ops/grouped_matmul/grouped_matmul_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace ejk::testing {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
bool is_8_bit(DType dtype) { return (set_of(dtype) & kQuantised8) != 0; }

/// Builds problems from one description: the forward's inputs, then what a gradient needs besides.
class Builder {
 public:
  explicit Builder(const MatmulCase& c, const Operation& operation)
      : c_(c), random_(c.seed ^ 0x474D4Du), problem_(Problem::of(operation)) {
    problem_.seed = c.seed;
    problem_.label = to_string(c);
    problem_.replay = "--case=" + c.name;
  }

  Problem forward() {
    problem_.params = ParamsBlock::of(params());
    add_forward_inputs();
    add_scales();
    if (c_.existing_out) fill_numbers(add("existing_out", result_dtype(), out_shape()));
    if (c_.poison) poison_forward();
    return std::move(problem_);
  }

  Problem backward() {
    problem_.params = ParamsBlock::of(params());
    add_forward_inputs();
    if (c_.existing_out) add("existing_out", result_dtype(), out_shape());  // stays NaN: nothing may read it
    add_cotangent(result_dtype());
    if (c_.poison) poison_forward(), poison_cotangent();
    return std::move(problem_);
  }

  Problem transposed() {
    const auto [transpose_rhs, group_offset, out_dtype, block_m, block_k, block_n] = params();
    TransposedGroupedMatmul::Params to = {.transpose_rhs = transpose_rhs, .group_offset = group_offset};
    to.out_dtype = out_dtype, to.block_m = block_m, to.block_k = block_k, to.block_n = block_n;
    if (c_.groups_elsewhere > 0 || random_.chance(0.5)) to.num_groups = num_groups();
    problem_.params = ParamsBlock::of(to);
    fill_numbers(add("lhs", c_.dtype, {num_rows(), c_.k}));
    add_group_sizes();
    add_masks();
    // The cotangent of another dtype's output as well.
    add_cotangent(random_.chance(0.2) && c_.dtype != DType::f64 ? DType::f32 : c_.dtype);
    if (c_.poison) poison_rows(), poison_cotangent();
    return std::move(problem_);
  }

 private:
  Tensor add(std::string_view name, DType dtype, const Shape& shape) {
    Layout layout = c_.random_layouts ? random_layout(random_, dtype, shape.rank()) : Layout{};
    // What blocks share may be broadcast along all axes but the last. Not scales over rows and groups: those of nobody
    // are NaN.
    const bool is_scale = name.ends_with("_scale");
    if (c_.random_layouts && (is_scale || name.ends_with("_mask")))
      for (int axis = is_scale ? 1 : 0; axis < shape.rank() - 1; ++axis)
        if (random_.chance(0.25)) layout.repeated |= uint32_t{1} << axis;
    return problem_.add(name, dtype, shape, layout);
  }

  GroupedMatmul::Params params() const {
    GroupedMatmul::Params params = {.transpose_rhs = c_.transpose_rhs};
    if (!c_.batched) params.group_offset = c_.group_offset;
    params.out_dtype = c_.out_dtype;
    if (c_.out_mask) params.block_m = c_.block_m;
    if (c_.rhs_mask) params.block_k = c_.block_k;
    if (c_.rhs_mask || c_.out_mask) params.block_n = c_.block_n;
    return params;
  }

  DType result_dtype() const { return c_.out_dtype.value_or(is_8_bit(c_.dtype) ? DType::bf16 : c_.dtype); }
  int64_t num_rows() const { return std::accumulate(c_.sizes.begin(), c_.sizes.end(), c_.rows_of_nobody); }
  int64_t num_groups() const {
    return c_.batched ? c_.num_groups : static_cast<int64_t>(c_.sizes.size()) - c_.group_offset - c_.groups_elsewhere;
  }
  Shape out_shape() const { return c_.batched ? Shape{c_.batch, c_.num_groups, c_.m, c_.n} : Shape{num_rows(), c_.n}; }

  /// Codes use their dtype's range; a float's are normal.
  void fill_numbers(const Tensor& t) {
    if (c_.data == MatmulData::integers) return fill(t, [&](int64_t) { return random_.between(-8, 8); });
    const double deviation = t.dtype == DType::i8 ? 30 : 1;
    fill_normal(t, random_, deviation);
    if (c_.data != MatmulData::outliers) return;
    for (int64_t count = t.num_elements() / 100; count > 0; --count)
      set(t, random_.below(t.num_elements()), 20 * deviation * random_.normal());
  }

  void fill_scales(const Tensor& t) {
    if (c_.data == MatmulData::integers) return fill(t, [&](int64_t) { return random_.pick({0.5, 1.0, 2.0}); });
    fill(t, [&](int64_t) { return (0.5 + random_.uniform()) / 30; });
  }

  void add_group_sizes() {
    std::vector<int64_t> sizes = c_.sizes;
    const int64_t m = num_rows();
    for (int64_t& size : sizes)
      if (c_.hostile && random_.chance(0.5))
        size = random_.pick<int64_t>({-1, INT32_MIN, INT32_MAX, 0, size + 1, -size, m, m + 1,
                                      random_.between(-3, m + 3), random_.between(INT32_MIN, INT32_MAX)});
    fill_values(add("group_sizes", DType::i32, {static_cast<int64_t>(sizes.size())}), sizes);
  }

  void add_masks() {
    const auto fill_mask = [&](const Tensor& t) { fill(t, [&](int64_t) { return random_.chance(c_.mask_density); }); };
    const int64_t n_blocks = divide_up(c_.n, c_.block_n);
    if (c_.rhs_mask) fill_mask(add("rhs_mask", DType::boolean, {num_groups(), divide_up(c_.k, c_.block_k), n_blocks}));
    if (c_.out_mask) fill_mask(add("out_mask", DType::boolean, {divide_up(num_rows(), c_.block_m), n_blocks}));
  }

  void add_forward_inputs() {
    Shape lhs = c_.batched ? Shape{c_.batch, c_.num_groups, c_.m, c_.k} : Shape{num_rows(), c_.k};
    Shape rhs = c_.batched ? Shape{c_.batch} : Shape{};
    rhs.push_back(num_groups());
    rhs.push_back(c_.transpose_rhs ? c_.n : c_.k);
    rhs.push_back(c_.transpose_rhs ? c_.k : c_.n);
    fill_numbers(add("lhs", c_.dtype, lhs));
    fill_numbers(add("rhs", c_.rhs_dtype.value_or(c_.dtype), rhs));
    if (c_.batched) return;
    add_group_sizes();
    add_masks();
  }

  void add_scales() {
    const int64_t k_blocks = divide_up(c_.k, 128), n_blocks = divide_up(c_.n, 128);
    if (c_.lhs_scale_rank) {
      Shape shape;
      if (*c_.lhs_scale_rank > 0) shape.push_back(num_rows());
      if (*c_.lhs_scale_rank > 1) shape.push_back(k_blocks);
      fill_scales(add("lhs_scale", DType::f32, shape));
    }
    if (c_.rhs_scale_rank) {
      Shape shape;
      if (*c_.rhs_scale_rank == 2) shape = {num_groups(), c_.n};
      if (*c_.rhs_scale_rank == 3) shape = {num_groups(), k_blocks, n_blocks};
      fill_scales(add("rhs_scale", DType::f32, shape));
    }
  }

  void add_cotangent(DType dtype) {
    const Tensor d_out = add("d_out", dtype, out_shape());
    if (c_.data == MatmulData::integers) return fill_numbers(d_out);
    fill_normal(d_out, random_);
  }

  // ---- NaN where nothing reads ----

  void poison_forward() {
    if (c_.batched) return;
    poison_rows();
    poison_matrices();
  }

  std::vector<int64_t> owners() const {
    return owners_of_rows(problem_.view("group_sizes"), num_rows(), c_.group_offset, num_groups());
  }

  void poison_row(const Tensor& t, int64_t row) const {
    const int64_t width = t.num_elements() / std::max<int64_t>(t.shape[0], 1);
    for (int64_t i = 0; i < width; ++i) set(t, row * width + i, kNaN);
  }

  /// Rows that no group with a matrix owns, and their scales.
  void poison_rows() const {
    const Tensor lhs = problem_.view("lhs");
    const bool forward = problem_.operation->name == GroupedMatmul::kName;
    const Tensor scale = forward ? problem_.view("lhs_scale") : Tensor();
    const std::vector<int64_t> owner = owners();
    for (size_t row = 0; row < owner.size(); ++row) {
      if (owner[row] >= 0) continue;
      poison_row(lhs, static_cast<int64_t>(row));
      if (scale.present() && scale.rank() > 0) poison_row(scale, static_cast<int64_t>(row));
    }
  }

  /// Matrices of groups without rows, their scales, and blocks that the mask takes for 0.
  void poison_matrices() const {
    const Tensor rhs = problem_.view("rhs"), mask = problem_.view("rhs_mask");
    const bool forward = problem_.operation->name == GroupedMatmul::kName;
    const Tensor scale = forward ? problem_.view("rhs_scale") : Tensor();
    const std::vector<int64_t> owner = owners();
    for (int64_t g = 0; g < num_groups(); ++g) {
      if (std::find(owner.begin(), owner.end(), g) != owner.end()) continue;
      poison_row(rhs, g);
      if (scale.present() && scale.rank() > 0) poison_row(scale, g);
    }
    if (!mask.present()) return;
    const int64_t rows = rhs.shape[1], columns = rhs.shape[2];
    for (int64_t at = 0; at < rhs.num_elements(); ++at) {
      const int64_t r = at / columns % rows, c = at % columns, g = at / columns / rows;
      const int64_t k = c_.transpose_rhs ? c : r, n = c_.transpose_rhs ? r : c;
      const int64_t block = (g * mask.shape[1] + k / c_.block_k) * mask.shape[2] + n / c_.block_n;
      if (get(mask, block) == 0) set(rhs, at, kNaN);
    }
  }

  /// Rows that no group with a matrix owns, and blocks that gave no product.
  void poison_cotangent() const {
    if (c_.batched) return;
    const Tensor d_out = problem_.view("d_out"), mask = problem_.view("out_mask");
    const std::vector<int64_t> owner = owners();
    for (int64_t at = 0; at < d_out.num_elements(); ++at) {
      const int64_t row = at / c_.n, column = at % c_.n;
      const bool masked = mask.present() && get(mask, row / c_.block_m * mask.shape[1] + column / c_.block_n) == 0;
      // d existing_out is d_out everywhere.
      if ((owner[static_cast<size_t>(row)] < 0 || masked) && !c_.existing_out) set(d_out, at, kNaN);
    }
  }

  const MatmulCase& c_;
  Random random_;
  Problem problem_;
};

/// What gradients are there for: floats.
MatmulCase differentiable(MatmulCase c) {
  if (is_8_bit(c.dtype)) c.dtype = DType::bf16;
  c.rhs_dtype.reset(), c.lhs_scale_rank.reset(), c.rhs_scale_rank.reset();
  return c;
}

/// The same groups one after the other.
MatmulCase ragged(MatmulCase c) {
  if (!c.batched) return c;
  c.batched = false;
  c.sizes.assign(static_cast<size_t>(c.batch * c.num_groups), c.m);
  return c;
}

}  // namespace

GroupRows rows_of_groups(const Tensor& group_sizes, int64_t m) {
  GroupRows rows;
  int64_t next = 0;
  for (int64_t g = 0; g < group_sizes.shape[0]; ++g) {
    const auto claimed = static_cast<int64_t>(get(group_sizes, g));
    const int64_t left = m - next, size = claimed < 0 ? 0 : claimed > left ? left : claimed;
    if (size != claimed) rows.status |= status::kGroupSize;
    rows.all.push_back({next, next + size});
    next += size;
  }
  return rows;
}

std::vector<int64_t> owners_of_rows(const Tensor& group_sizes, int64_t m, int64_t group_offset, int64_t num_groups) {
  std::vector<int64_t> owners(static_cast<size_t>(m), -1);
  const GroupRows rows = rows_of_groups(group_sizes, m);
  for (int64_t g = 0; g < num_groups; ++g) {
    const GroupRows::Rows of = rows.all[static_cast<size_t>(group_offset + g)];
    std::fill(owners.begin() + of.begin, owners.begin() + of.end, g);
  }
  return owners;
}

std::string to_string(const MatmulCase& c) {
  std::string text = std::string(ejk::name(c.dtype));
  if (c.rhs_dtype) text += fmt::format(" x {}", ejk::name(*c.rhs_dtype));
  if (c.out_dtype) text += fmt::format(" -> {}", ejk::name(*c.out_dtype));
  text += c.batched             ? fmt::format(" b={} g={} m={}", c.batch, c.num_groups, c.m)
          : c.sizes.size() > 24 ? fmt::format(" {} groups", c.sizes.size())
                                : fmt::format(" ({})", fmt::join(c.sizes, ","));
  if (c.rows_of_nobody > 0) text += fmt::format("+{}", c.rows_of_nobody);
  if (c.group_offset + c.groups_elsewhere > 0)
    text += fmt::format(" elsewhere={}/{}", c.group_offset, c.groups_elsewhere);
  text += fmt::format(" k={} n={}", c.k, c.n);
  if (c.transpose_rhs) text += " transposed";
  if (c.existing_out) text += " existing";
  if (c.lhs_scale_rank) text += fmt::format(" lhs_scale={}d", *c.lhs_scale_rank);
  if (c.rhs_scale_rank) text += fmt::format(" rhs_scale={}d", *c.rhs_scale_rank);
  if (c.rhs_mask) text += fmt::format(" rhs_mask={}x{}", c.block_k, c.block_n);
  if (c.out_mask) text += fmt::format(" out_mask={}x{}", c.block_m, c.block_n);
  if (c.data != MatmulData::normal) text += c.data == MatmulData::outliers ? " outliers" : " integers";
  if (c.random_layouts) text += " strided";
  if (c.hostile) text += " hostile";
  return text;
}

Problem make_matmul_problem(const MatmulCase& c) { return Builder(c, declaration<GroupedMatmul>()).forward(); }

Problem make_matmul_backward_problem(const MatmulCase& description) {
  const MatmulCase c = differentiable(description);
  return Builder(c, declaration<GroupedMatmulBackward>()).backward();
}

Problem make_transposed_matmul_problem(const MatmulCase& description) {
  MatmulCase c = ragged(differentiable(description));
  c.existing_out = false;
  return Builder(c, declaration<TransposedGroupedMatmul>()).transposed();
}

// ---- random problems ----

namespace {

struct Limits {
  double products;  ///< multiplications
  int64_t extent, rows, groups;
};
Limits limits_of(Size size) {
  if (size == Size::tiny) return {.products = 400, .extent = 7, .rows = 12, .groups = 3};
  if (size == Size::small) return {.products = 2e5, .extent = 150, .rows = 200, .groups = 8};
  return {.products = 3e6, .extent = 1500, .rows = 3000, .groups = 40};
}

/// Sizes that add up to m: even, skewed, or all in one.
std::vector<int64_t> random_sizes(Random& random, int64_t m, int64_t count) {
  std::vector<int64_t> sizes(static_cast<size_t>(count), 0);
  if (count == 0) return sizes;
  const bool even = random.chance(0.2), one = random.chance(0.2);
  for (int64_t g = 0; g < count && even; ++g) sizes[static_cast<size_t>(g)] = m / count;
  if (even) return sizes;
  for (int64_t left = m; left > 0;) {
    const int64_t size = one ? left : random.log_uniform(1, left);
    sizes[static_cast<size_t>(random.below(count))] += size;
    left -= size;
  }
  return sizes;
}

/// 8-bit operands and their scales.
void draw_codes(Random& random, MatmulCase& c) {
  const auto code = [&] { return random.pick({DType::i8, DType::i8, DType::e4m3, DType::e4m3, DType::e5m2}); };
  const bool weights_only = random.chance(0.4);
  if (weights_only)
    c.rhs_dtype = code();
  else
    c.dtype = code();
  if (!weights_only && random.chance(0.15)) c.rhs_dtype = code();
  if (!weights_only && random.chance(0.8)) c.lhs_scale_rank = c.batched ? 0 : random.pick({0, 1, 1, 2, 2});
  if (random.chance(0.8)) c.rhs_scale_rank = c.batched ? 0 : random.pick({0, 2, 2, 3, 3});
}

}  // namespace

MatmulCase random_matmul_case(const RandomRequest& request) {
  Random random(request.seed);
  const Limits limits = limits_of(request.size);
  MatmulCase c = {.hostile = request.hostile, .seed = request.seed};
  c.dtype = random.pick({DType::f32, DType::f32, DType::f32, DType::bf16, DType::bf16, DType::bf16, DType::f16});
  if (random.chance(0.06)) c.dtype = DType::f64;
  c.batched = !request.hostile && random.chance(0.2);
  if (!request.differentiable && !request.dtype && random.chance(0.3)) draw_codes(random, c);
  if (request.dtype) c.dtype = *request.dtype;
  if (random.chance(0.15)) c.out_dtype = random.pick({DType::f32, DType::bf16, DType::f16});
  if (request.differentiable) c.out_dtype.reset();
  if (random.chance(0.1)) c.data = MatmulData::outliers;

  const auto extent = [&] { return random.chance(0.03) ? 0 : random_length(random, limits.extent, false); };
  c.k = extent(), c.n = extent();
  const double per_row = static_cast<double>(std::max<int64_t>(c.k * c.n, 1));
  const auto most = std::min(static_cast<int64_t>(limits.products / per_row), limits.rows);
  const int64_t rows = most < 1 ? std::min<int64_t>(limits.rows, 2) : random_length(random, most);
  if (c.batched) {
    c.batch = random.chance(0.03) ? 0 : random.between(1, 3);
    c.num_groups = random.chance(0.03) ? 0 : random.between(1, 4);
    c.m = rows / std::max<int64_t>(c.batch * c.num_groups, 1);
  } else {
    const int64_t owned = random.chance(0.3) ? 1 : random.between(0, limits.groups);
    if (random.chance(0.3)) c.group_offset = random.between(0, 3), c.groups_elsewhere = random.between(0, 3);
    c.sizes = random_sizes(random, rows, owned + c.group_offset + c.groups_elsewhere);
    if (random.chance(0.3)) c.rows_of_nobody = random.between(1, 5);
    const auto block = [&] { return random.chance(0.03) ? INT64_MAX : random_length(random, 200, false); };
    c.rhs_mask = random.chance(0.2), c.out_mask = random.chance(0.2);
    c.block_m = block(), c.block_k = block(), c.block_n = block();
    c.mask_density = random.pick({0.0, 0.3, 0.7, 1.0});
  }
  c.transpose_rhs = random.chance(0.4);
  c.existing_out = random.chance(0.25);
  c.random_layouts = random.chance(0.4);
  return c;
}

}  // namespace ejk::testing
