#include "ejkernel/ops/mean_pooling/mean_pooling_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace ejk::testing {
namespace {

/// Builds one forward problem from its description.
class Builder {
 public:
  explicit Builder(const PoolingCase& c)
      : c_(c), random_(c.seed ^ 0x504F4F4Cu), problem_(Problem::of(declaration<MeanPooling>())) {
    problem_.seed = c.seed;
    problem_.params = ParamsBlock::of(MeanPooling::Params{.chunk_size = c.chunk_size});
    problem_.label = to_string(c);
  }

  Problem build() {
    add_rows();
    if (c_.masked)
      fill(add("mask", DType::boolean, {c_.batch, c_.num_tokens}),
           [&](int64_t) { return random_.chance(c_.mask_density); });
    if (c_.packed) add_offsets();
    if (c_.poison) poison();
    return std::move(problem_);
  }

 private:
  Tensor add(std::string_view name, DType dtype, const Shape& shape) {
    return problem_.add(name, dtype, shape, c_.random_layouts ? random_layout(random_, dtype, shape.rank()) : Layout{});
  }

  int64_t num_rows() const {
    if (!c_.packed) return c_.num_tokens;
    return std::accumulate(c_.lengths.begin(), c_.lengths.end(), int64_t{0}) + 2 * c_.unowned_rows;
  }

  void add_rows() {
    Shape shape;
    if (!c_.packed) shape.push_back(c_.batch);
    shape.push_back(num_rows());
    if (c_.chunk_size) shape.push_back(c_.num_heads);
    shape.push_back(c_.dim);
    const Tensor x = add("x", c_.dtype, shape);
    if (c_.data == PoolingData::normal) return fill_normal(x, random_);
    if (c_.data == PoolingData::integers) return fill(x, [&](int64_t) { return random_.between(-64, 64); });
    const double most = c_.dtype == DType::f16 ? 6e4 : c_.dtype == DType::f64 ? 1e300 : 3e38;
    fill(x, [&](int64_t) { return most * (0.5 + 0.5 * random_.uniform()); });
  }

  void add_offsets() {
    std::vector<int64_t> offsets = {c_.unowned_rows};
    for (int64_t length : c_.lengths) offsets.push_back(offsets.back() + length);
    for (int64_t& offset : offsets)
      if (c_.hostile && random_.chance(0.5))
        offset = random_.pick<int64_t>({-1, INT32_MIN, INT32_MAX, 0, offset + 1, offset - 1, num_rows(), num_rows() + 1,
                                        random_.between(-3, num_rows() + 3), random_.between(INT32_MIN, INT32_MAX)});
    fill_values(add("cu_seqlens", DType::i32, {static_cast<int64_t>(offsets.size())}), offsets);
  }

  /// NaN (or infinity) in the rows that no mean is made of.
  void poison() {
    const Tensor x = problem_.view("x");
    const int64_t num_batches = c_.packed ? 1 : c_.batch, rows = num_rows();
    const int64_t per_row = c_.dim * (c_.chunk_size ? c_.num_heads : 1);
    std::vector<bool> read(static_cast<size_t>(num_batches * rows));
    for (const Pool& pool :
         pools_of(problem_.view("mask"), problem_.view("cu_seqlens"), num_batches, rows, c_.chunk_size).all)
      for (int64_t row : pool.rows) read[static_cast<size_t>(pool.batch * rows + row)] = true;
    const double bad =
        random_.chance(0.7) ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    for (size_t r = 0; r < read.size(); ++r)
      for (int64_t n = 0; n < per_row && !read[r]; ++n) set(x, static_cast<int64_t>(r) * per_row + n, bad);
  }

  const PoolingCase& c_;
  Random random_;
  Problem problem_;
};

int64_t at(const Tensor& cu_seqlens, int64_t n, int64_t num_tokens, uint32_t& status) {
  const auto offset = static_cast<int64_t>(get(cu_seqlens, n));
  if (offset < 0 || offset > num_tokens) status |= status::kOffsets;
  return std::clamp<int64_t>(offset, 0, num_tokens);
}

}  // namespace

int64_t means_per_batch(const Tensor& cu_seqlens, int64_t num_tokens, std::optional<int64_t> chunk_size) {
  const int64_t num_seqs = cu_seqlens.present() ? cu_seqlens.shape[0] - 1 : 0;
  if (!chunk_size) return cu_seqlens.present() ? num_seqs : 1;
  const int64_t whole = num_tokens / *chunk_size, tail = num_tokens % *chunk_size != 0 ? 1 : 0;
  return whole + tail + num_seqs;
}

Pools pools_of(const Tensor& mask, const Tensor& cu_seqlens, int64_t num_batches, int64_t num_tokens,
               std::optional<int64_t> chunk_size) {
  Pools pools;
  const int64_t capacity = means_per_batch(cu_seqlens, num_tokens, chunk_size);
  int64_t mean = 0;
  auto add = [&](int64_t batch, int64_t begin, int64_t end) {
    Pool pool = {.batch = batch, .mean = mean};
    for (int64_t row = begin; row < end; ++row)
      if (!mask.present() || get(mask, batch * num_tokens + row) != 0) pool.rows.push_back(row);
    if (mean < capacity) pools.all.push_back(std::move(pool)), ++mean;
  };
  auto add_sequence = [&](int64_t batch, int64_t begin, int64_t end) {
    if (!chunk_size) return add(batch, begin, end);
    for (int64_t row = begin, past = begin; row < end; row = past) {
      past = row + std::min(*chunk_size, end - row);
      add(batch, row, past);
    }
  };
  if (!cu_seqlens.present()) {
    for (int64_t b = 0; b < num_batches; ++b, mean = 0) add_sequence(b, 0, num_tokens);
    return pools;
  }
  for (int64_t n = 0; n + 1 < cu_seqlens.shape[0]; ++n) {
    pools.chunk_offsets.push_back(mean);
    if (get(cu_seqlens, n + 1) < get(cu_seqlens, n)) pools.status |= status::kOffsets;
    const int64_t begin = at(cu_seqlens, n, num_tokens, pools.status);
    const int64_t end = at(cu_seqlens, n + 1, num_tokens, pools.status);
    add_sequence(0, begin, std::max(begin, end));
  }
  pools.chunk_offsets.push_back(mean);
  if (!chunk_size) pools.chunk_offsets.clear();
  return pools;
}

std::string to_string(const PoolingCase& c) {
  std::string text = std::string(ejk::name(c.dtype));
  text += c.packed ? fmt::format(" packed ({})", fmt::join(c.lengths, ","))
                   : fmt::format(" b={} t={}", c.batch, c.num_tokens);
  if (c.chunk_size) text += fmt::format(" heads={} chunk={}", c.num_heads, *c.chunk_size);
  text += fmt::format(" d={}", c.dim);
  if (c.masked) text += fmt::format(" mask={:.2g}", c.mask_density);
  if (c.unowned_rows > 0) text += fmt::format(" unowned={}", c.unowned_rows);
  if (c.data != PoolingData::normal) text += c.data == PoolingData::huge ? " huge" : " integers";
  if (c.random_layouts) text += " strided";
  if (c.hostile) text += " hostile";
  return text;
}

Problem make_pooling_problem(const PoolingCase& description) {
  Problem problem = Builder(description).build();
  problem.replay = "--case=" + description.name;
  return problem;
}

// ---- random problems ----

namespace {

struct Limits {
  double elements;
  int64_t length, dim, count;
};
Limits limits_of(Size size) {
  if (size == Size::tiny) return {.elements = 300, .length = 7, .dim = 5, .count = 3};
  if (size == Size::small) return {.elements = 2e4, .length = 200, .dim = 100, .count = 6};
  return {.elements = 4e5, .length = 9000, .dim = 1500, .count = 40};
}

}  // namespace

PoolingCase random_pooling_case(const RandomRequest& request) {
  Random random(request.seed);
  const Limits limits = limits_of(request.size);
  PoolingCase c = {.hostile = request.hostile, .seed = request.seed};
  c.dtype = random.pick({DType::f32, DType::f32, DType::f32, DType::bf16, DType::bf16, DType::bf16, DType::f16});
  if (random.chance(0.06)) c.dtype = DType::f64;
  if (request.dtype) c.dtype = *request.dtype;
  if (random.chance(0.08) && !request.differentiable) c.data = random.pick({PoolingData::huge, PoolingData::integers});

  c.dim = random.chance(0.5) ? random_length(random, limits.dim, false) : random.log_uniform(1, limits.dim);
  c.packed = request.hostile || random.chance(0.5);
  if (random.chance(0.5)) {
    c.chunk_size = random.chance(0.05) ? INT64_MAX : random_length(random, limits.length, false);
    c.num_heads = random.pick<int64_t>({1, 1, 2, 3, 8});
  }
  double left = limits.elements / static_cast<double>(c.dim * c.num_heads);
  auto length = [&] {
    const auto most = static_cast<int64_t>(std::min(left, static_cast<double>(limits.length)));
    const int64_t drawn = most < 1 ? 0 : random_length(random, most);
    left -= static_cast<double>(drawn);
    return drawn;
  };
  if (c.packed) {
    for (int64_t n = random.between(0, limits.count); n > 0; --n) c.lengths.push_back(length());
    if (random.chance(0.3)) c.unowned_rows = random.between(1, 3);
  } else {
    c.num_tokens = length();
    c.batch = random.chance(0.03) ? 0 : random.between(1, 4);
    c.masked = !c.chunk_size && random.chance(0.6);
    c.mask_density = random.pick({0.0, 0.02, 0.5, 0.9, 1.0});
  }
  c.random_layouts = random.chance(0.4);
  return c;
}

}  // namespace ejk::testing
