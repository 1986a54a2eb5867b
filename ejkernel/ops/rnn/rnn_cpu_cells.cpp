// The vectorised pieces of rnn's CPU kernels: a block of units at one step, and what surrounds the recurrence. The step
// back stands in rnn_backward_cpu_cells.cpp.
//
// The sums of a block over the states before the step are one small product with packed weights, begun with what the
// input gave; the cell's functions follow while the sums are in cache. Sums are float32 and run along the depth, so
// they do not depend on how rows and units are split.
#include <algorithm>
#include <limits>

#include "ejkernel/ops/rnn/rnn_cpu_internal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/rnn/rnn_cpu_cells.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h:
#include "ejkernel/platform/cpu/gemm-inl.h"
// And after that:
#include "ejkernel/ops/rnn/rnn_cells-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::rnns::HWY_NAMESPACE {
namespace {

HWY_INLINE FloatV sigmoid(FloatV x) {
  const FloatV one = constant(1);
  return hn::Div(one, hn::Add(one, exp_any(hn::Neg(x))));
}
HWY_INLINE FloatV tanh(FloatV x) {
  FloatV slope;
  return tanh_any(x, slope);
}
HWY_INLINE FloatV activate(CellActivation activation, FloatV x) {
  switch (activation) {
    case CellActivation::tanh:
      return tanh(x);
    case CellActivation::relu:
      return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(FloatTag())), x);  // NaN stays
    case CellActivation::sigmoid:
      return sigmoid(x);
    default:
      return x;
  }
}
// ---- packing ----

/// Stands for a column of zeros in place of a column's offset, which may be negative where strides are.
constexpr int64_t kZeros = std::numeric_limits<int64_t>::min();

/// Columns [0, columns) of a factor whose column n has its numbers one after the other from offset_of(n) on: in strips,
/// [strip][depth][column].
template <class Offset>
void pack_columns(const View& from, int64_t depth, int64_t columns, Offset offset_of, float* to) {
  constexpr int64_t kChunk = 64;
  HWY_ALIGN float lines[kMaxLanes * 2 * kChunk];
  for (int64_t n = 0; n < columns; n += strip_columns())
    for (int64_t k = 0; k < depth; k += kChunk) {
      const int64_t count = std::min(kChunk, depth - k);
      for (int64_t i = 0; i < strip_columns(); ++i) {
        const int64_t offset = offset_of(n + i);
        if (offset == kZeros)
          std::fill_n(lines + i * kChunk, count, 0.0f);
        else
          load_row(from.data, from.dtype, offset + k, count, lines + i * kChunk);
      }
      transpose(lines, kChunk, strip_columns(), count, to + n * depth + k * strip_columns(), strip_columns());
    }
}

void pack(const Problem& p, int64_t state, int64_t block, const PackedWeights& to) {
  const View& w = p.weights.hh;
  const int64_t first = block * kUnits, units = std::min(kUnits, p.hidden_size - first);
  const int64_t columns = p.gates() * kUnits;
  pack_columns(
      w, to.depth, columns,
      [&](int64_t n) {
        const int64_t unit = n % kUnits, row = n / kUnits * p.hidden_size + first + unit;
        return unit < units ? w.offset(state, row, 0) : kZeros;
      },
      to.weights + block * columns * to.depth);

  float* bias = to.bias + block * kMaxGates * kUnits;
  std::fill_n(bias, kMaxGates * kUnits, 0.0f);
  const auto add = [&](const View& from, int64_t gate, int64_t slot) {
    if (!from.present()) return;
    HWY_ALIGN float numbers[kUnits];
    load_row(from.data, from.dtype, from.offset(0, state, gate * p.hidden_size + first), units, numbers);
    for (int64_t i = 0; i < units; ++i) bias[slot * kUnits + i] += numbers[i];
  };
  for (int64_t g = 0; g < p.gates(); ++g) {
    const bool is_n = p.cell_type == CellType::gru && g == 2;
    add(p.weights.bias_ih, g, is_n ? 3 : g);
    add(p.weights.bias_hh, g, g);
  }
}

// ---- a step ----

/// A block of units in some rows of a step.
class Tile {
 public:
  Tile(const Direction& d, int64_t step, int64_t block, float* memory)
      : d_(d),
        p_(*d.p),
        step_(step),
        first_(block * kUnits),
        units_(std::min(kUnits, p_.hidden_size - first_)),
        columns_(p_.gates() * kUnits),
        weights_(d.packed.weights + block * columns_ * p_.hidden_size),
        bias_(d.packed.bias + block * kMaxGates * kUnits),
        sums_(memory),
        h_(memory + kRows * kMaxGates * kUnits),
        c_(h_ + kRows * kUnits) {}

  void run(int64_t row, int64_t rows) const {
    if (!d_.given.present()) {
      begin(row, rows);
      multiply<true>(d_.h.at(*d_.schedule, step_) + row * p_.hidden_size, p_.hidden_size, rows, weights_,
                     p_.hidden_size, columns_, sums_);
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t v = 0; v < units_; v += lanes()) run_cell(row + r, r, v);
      hand_on(row + r, r);
    }
  }

 private:
  float* gates(int64_t row) const { return d_.gates_at(step_) + row * d_.gate_stride() + first_; }

  /// The sums over the input, and biases. n of a GRU is begun with its bias alone: r scales it.
  void begin(int64_t row, int64_t rows) const {
    const int64_t from_input = p_.cell_type == CellType::gru ? 2 : p_.gates();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t g = 0; g < p_.gates(); ++g) {
        const float *x = gates(row + r) + g * p_.hidden_size, *bias = bias_ + g * kUnits;
        float* sums = sums_ + r * columns_ + g * kUnits;
        for (int64_t v = 0; v < kUnits; v += lanes()) {
          const FloatV of_input = g < from_input && v < units_ ? load_part(x + v, units_ - v) : hn::Zero(FloatTag());
          hn::Store(hn::Add(of_input, hn::Load(FloatTag(), bias + v)), FloatTag(), sums + v);
        }
      }
  }

  HWY_INLINE void run_cell(int64_t row, int64_t r, int64_t v) const {
    const FloatTag d;
    const int64_t left = units_ - v;
    float* packed = gates(row) + v;
    const float* given = place_in(d_.given, row, v);
    float* kept = place_in(d_.kept, row, v);
    const auto load = [&](int64_t g) HWY_ATTR { return load_part(given + g * p_.hidden_size, left); };
    const auto sum = [&](int64_t g) HWY_ATTR { return hn::Load(d, sums_ + r * columns_ + g * kUnits + v); };
    const auto before = [&](const StateRows& states) HWY_ATTR {
      return load_part(states.at(*d_.schedule, step_) + row * p_.hidden_size + first_ + v, left);
    };
    const auto keep = [&](int64_t g, FloatV x) HWY_ATTR {
      if (d_.keeps_gates) store_part(x, packed + g * p_.hidden_size, left);
      if (kept != nullptr) store_part(x, kept + g * p_.hidden_size, left);
    };
    FloatV h;
    if (p_.cell_type == CellType::lstm) {
      const FloatV i = given != nullptr ? load(0) : sigmoid(sum(0)), f = given != nullptr ? load(1) : sigmoid(sum(1));
      const FloatV g = given != nullptr ? load(2) : tanh(sum(2)), o = given != nullptr ? load(3) : sigmoid(sum(3));
      const FloatV c = hn::MulAdd(f, before(d_.c), hn::Mul(i, g));
      h = hn::Mul(o, tanh(c));
      hn::Store(c, d, c_ + r * kUnits + v);
      keep(0, i), keep(1, f), keep(2, g), keep(3, o);
    } else if (p_.cell_type == CellType::gru) {
      const FloatV reset = given != nullptr ? load(0) : sigmoid(sum(0)),
                   z = given != nullptr ? load(1) : sigmoid(sum(1));
      const FloatV of_state = given != nullptr ? load(3) : sum(2);
      const auto of_input = [&]() HWY_ATTR {
        return hn::Add(load_part(packed + 2 * p_.hidden_size, left), hn::Load(d, bias_ + 3 * kUnits + v));
      };
      const FloatV n = given != nullptr ? load(2) : tanh(hn::MulAdd(reset, of_state, of_input()));
      h = hn::MulAdd(z, before(d_.h), hn::NegMulAdd(z, n, n));
      keep(0, reset), keep(1, z), keep(2, n), keep(3, of_state);
    } else {
      h = given != nullptr ? load(0) : activate(p_.activation, sum(0));
      keep(0, h);
    }
    hn::Store(h, d, h_ + r * kUnits + v);
  }

  /// The first gate of a unit in gates that lie by sequences; null where there are none.
  float* place_in(const View& gates, int64_t row, int64_t v) const {
    if (!gates.present()) return nullptr;
    const int64_t t = d_.schedule->time(d_.direction, row, step_);
    return static_cast<float*>(gates.data) + gates.offset(d_.schedule->sequence(row), t, first_ + v);
  }

  /// To the next step, to the layer's output, and from a sequence's last step to the final states.
  void hand_on(int64_t row, int64_t r) const {
    const Schedule& schedule = *d_.schedule;
    const int64_t b = schedule.sequence(row), t = schedule.time(d_.direction, row, step_);
    const float *h = h_ + r * kUnits, *c = c_ + r * kUnits;
    const auto store = [&](const float* from, const View& view, int64_t i, int64_t j, int64_t k) {
      if (view.present()) store_row(from, 1, units_, view.data, view.dtype, view.offset(i, j, k));
    };
    store(h, d_.out, b, t, d_.direction * p_.hidden_size + first_);
    if (row < schedule.num_active(step_ + 1)) {
      std::copy_n(h, units_, d_.h.at(schedule, step_ + 1) + row * p_.hidden_size + first_);
      if (p_.is_lstm()) std::copy_n(c, units_, d_.c.at(schedule, step_ + 1) + row * p_.hidden_size + first_);
    } else {
      store(h, d_.final_hidden, d_.state, b, first_);
      if (p_.is_lstm()) store(c, d_.final_cell, d_.state, b, first_);
    }
  }

  const Direction& d_;
  const Problem& p_;
  const int64_t step_, first_, units_, columns_;
  const float *const weights_, *const bias_;
  float *const sums_, *const h_, *const c_;
};

void run(const Direction& d, int64_t step, int64_t block, float* memory) {
  const Tile tile(d, step, block, memory);
  const int64_t rows = d.schedule->num_active(step);
  for (int64_t row = 0; row < rows; row += kRows) tile.run(row, std::min(kRows, rows - row));
}

// ---- the rest ----

void sum(const float* from, int64_t stride, int64_t rows, int64_t count, const View& to, int64_t offset) {
  for (int64_t c = 0; c < count; c += kMaxLanes) {
    HWY_ALIGN float sums[kMaxLanes];
    const int64_t columns = std::min(kMaxLanes, count - c);
    for (int64_t v = 0; v < columns; v += lanes()) {
      FloatV all = hn::Zero(FloatTag());
      for (int64_t r = 0; r < rows; ++r) all = hn::Add(all, load_part(from + r * stride + c + v, columns - v));
      hn::Store(all, FloatTag(), sums + v);
    }
    store_row(sums, 1, columns, to.data, to.dtype, offset + c);
  }
}

void copy(const View& from, int64_t offset, int64_t count, float* to) {
  load_row(from.data, from.dtype, offset, count, to);
}

void store_two(const float* a, const float* b, int64_t count, const View& to, int64_t offset) {
  HWY_ALIGN float sums[kMaxLanes * 8];
  for (int64_t at = 0; at < count; at += kMaxLanes * 8) {
    const int64_t part = std::min(kMaxLanes * 8, count - at);
    for (int64_t i = 0; i < part; ++i) sums[i] = (a == nullptr ? 0 : a[at + i]) + (b == nullptr ? 0 : b[at + i]);
    store_row(sums, 1, part, to.data, to.dtype, offset + at);
  }
}

}  // namespace
}  // namespace ejk::rnns::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::rnns {
namespace {

HWY_EXPORT(pack);
HWY_EXPORT(run);
HWY_EXPORT(sum);
HWY_EXPORT(copy);
HWY_EXPORT(store_two);

}  // namespace

int64_t tile_floats() { return kRows * (kMaxGates + 2) * kUnits; }

void pack_block(const Problem& p, int64_t state, int64_t block, const PackedWeights& to) {
  HWY_DYNAMIC_DISPATCH(pack)(p, state, block, to);
}
void run_block(const Direction& d, int64_t step, int64_t block, float* tile) {
  HWY_DYNAMIC_DISPATCH(run)(d, step, block, tile);
}
void sum_columns(const float* from, int64_t stride, int64_t rows, int64_t count, const View& to, int64_t offset) {
  HWY_DYNAMIC_DISPATCH(sum)(from, stride, rows, count, to, offset);
}
void copy_as_floats(const View& from, int64_t offset, int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(copy)(from, offset, count, to);
}
void store_sum(const float* a, const float* b, int64_t count, const View& to, int64_t offset) {
  HWY_DYNAMIC_DISPATCH(store_two)(a, b, count, to, offset);
}

}  // namespace ejk::rnns
#endif
