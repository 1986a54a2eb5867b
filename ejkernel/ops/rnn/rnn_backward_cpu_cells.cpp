// The vectorised pieces of rnn's gradient on the CPU: a block of units at one step on the way back.
//
// The gradient of the state after a step is one small product of the later step's gates' gradients with packed weights;
// the cell's slopes follow while it is in cache. Sums run as rnn_cpu_cells.cpp says.
#include <algorithm>

#include "ejkernel/ops/rnn/rnn_cpu_internal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/rnn/rnn_backward_cpu_cells.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h:
#include "ejkernel/platform/cpu/gemm-inl.h"
// And after that:
#include "ejkernel/ops/rnn/rnn_cells-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::rnns::HWY_NAMESPACE {
namespace {

/// 1 - y^2 and y (1 - y): slopes of tanh and sigmoid where they have the value y.
HWY_INLINE FloatV slope_of_tanh(FloatV y) { return hn::NegMulAdd(y, y, constant(1)); }
HWY_INLINE FloatV slope_of_sigmoid(FloatV y) { return hn::Mul(y, hn::Sub(constant(1), y)); }
/// d times the slope where the activation has the value y.
HWY_INLINE FloatV times_slope(CellActivation activation, FloatV y, FloatV d) {
  switch (activation) {
    case CellActivation::tanh:
      return hn::Mul(d, slope_of_tanh(y));
    case CellActivation::relu:
      return hn::IfThenElse(hn::IsNaN(y), y, hn::IfThenElseZero(hn::Gt(y, hn::Zero(FloatTag())), d));
    case CellActivation::sigmoid:
      return hn::Mul(d, slope_of_sigmoid(y));
    default:
      return d;
  }
}

void pack_backward(const Problem& p, int64_t state, int64_t block, const PackedWeights& to) {
  const View& w = p.weights.hh;
  const int64_t first = block * kUnits, units = std::min(kUnits, p.hidden_size - first);
  float* of_block = to.weights + block * kUnits * to.depth;
  HWY_ALIGN float row[kUnits] = {};
  for (int64_t k = 0; k < to.depth; ++k) {
    load_row(w.data, w.dtype, w.offset(state, k, first), units, row);
    for (int64_t n = 0; n < kUnits; n += strip_columns())
      std::copy_n(row + n, strip_columns(), of_block + n * to.depth + k * strip_columns());
  }
}

/// A block of units in some rows of a step of the backward. Gates of the step become their gradients in place: of a GRU
/// those of r and z, then of n as the state's share of it gets it and, in the last slot, as the input's does.
class BackwardTile {
 public:
  BackwardTile(const BackwardDirection& b, int64_t step, int64_t block, float* memory)
      : b_(b),
        d_(*b.forward),
        p_(*d_.p),
        step_(step),
        first_(block * kUnits),
        units_(std::min(kUnits, p_.hidden_size - first_)),
        weights_(b.packed.weights + block * kUnits * b.packed.depth),
        d_h_(memory),
        other_(memory + kRows * kUnits) {}

  void run(int64_t row, int64_t rows) const {
    const int64_t later = std::clamp<int64_t>(d_.schedule->num_active(step_ + 1) - row, 0, rows);
    if (later > 0)
      multiply<false>(d_.gates_at(step_ + 1) + row * d_.gate_stride(), d_.gate_stride(), later, weights_,
                      b_.packed.depth, kUnits, d_h_);
    for (int64_t r = 0; r < rows; ++r) {
      collect(row + r, r, r < later);
      if (step_ < 0) {
        finish(row + r, r);
        continue;
      }
      add_output(row + r, r);
      for (int64_t v = 0; v < units_; v += lanes()) differentiate(row + r, r, v);
    }
  }

 private:
  float* of_row(float* states, int64_t row) const { return states + row * p_.hidden_size + first_; }
  void load(const View& from, int64_t i, int64_t j, int64_t k, float* to) const {
    if (from.present())
      load_row(from.data, from.dtype, from.offset(i, j, k), units_, to);
    else
      std::fill_n(to, units_, 0.0f);
  }

  /// The gradient of h after the step, from the next step or from the final state's cotangent.
  void collect(int64_t row, int64_t r, bool has_later) const {
    const int64_t b = d_.schedule->sequence(row);
    float* d_h = d_h_ + r * kUnits;
    if (!has_later) {
      load(b_.d_final_hidden, d_.state, b, first_, d_h);
      if (b_.d_c != nullptr) load(b_.d_final_cell, d_.state, b, first_, of_row(b_.d_c, row));
    } else if (b_.d_h_past != nullptr) {
      const float* past = of_row(b_.d_h_past, row);
      for (int64_t i = 0; i < units_; ++i) d_h[i] += past[i];
    }
  }
  void finish(int64_t row, int64_t r) const {
    const int64_t b = d_.schedule->sequence(row);
    const auto store = [&](const float* from, const View& to) {
      if (to.present()) store_row(from, 1, units_, to.data, to.dtype, to.offset(d_.state, b, first_));
    };
    store(d_h_ + r * kUnits, b_.d_hidden);
    if (b_.d_c != nullptr) store(of_row(b_.d_c, row), b_.d_cell);
  }
  void add_output(int64_t row, int64_t r) const {
    if (!b_.d_out.present()) return;
    const Schedule& schedule = *d_.schedule;
    load(b_.d_out, schedule.sequence(row), schedule.time(d_.direction, row, step_),
         d_.direction * p_.hidden_size + first_, other_);
    for (int64_t i = 0; i < units_; ++i) d_h_[r * kUnits + i] += other_[i];
  }

  HWY_INLINE void differentiate(int64_t row, int64_t r, int64_t v) const {
    const int64_t left = units_ - v;
    float* gates = d_.gates_at(step_) + row * d_.gate_stride() + first_ + v;
    const auto gate = [&](int64_t g) HWY_ATTR { return load_part(gates + g * p_.hidden_size, left); };
    const auto set = [&](int64_t g, FloatV x) HWY_ATTR { store_part(x, gates + g * p_.hidden_size, left); };
    const auto before = [&](const StateRows& states) HWY_ATTR {
      return load_part(states.at(*d_.schedule, step_) + row * p_.hidden_size + first_ + v, left);
    };
    const FloatV one = constant(1), d_h = hn::Load(FloatTag(), d_h_ + r * kUnits + v);
    if (p_.cell_type == CellType::lstm) {
      const FloatV i = gate(0), f = gate(1), g = gate(2), o = gate(3), c_before = before(d_.c);
      FloatV slope;
      const FloatV tangent = tanh_any(hn::MulAdd(f, c_before, hn::Mul(i, g)), slope);
      float* kept = of_row(b_.d_c, row) + v;
      const FloatV d_c = hn::MulAdd(hn::Mul(d_h, o), slope, load_part(kept, left));
      set(0, hn::Mul(hn::Mul(d_c, g), slope_of_sigmoid(i)));
      set(1, hn::Mul(hn::Mul(d_c, c_before), slope_of_sigmoid(f)));
      set(2, hn::Mul(hn::Mul(d_c, i), slope_of_tanh(g)));
      set(3, hn::Mul(hn::Mul(d_h, tangent), slope_of_sigmoid(o)));
      store_part(hn::Mul(d_c, f), kept, left);
    } else if (p_.cell_type == CellType::gru) {
      const FloatV reset = gate(0), z = gate(1), n = gate(2), of_state = gate(3), h = before(d_.h);
      const FloatV d_n = hn::Mul(hn::Mul(d_h, hn::Sub(one, z)), slope_of_tanh(n));
      set(0, hn::Mul(hn::Mul(d_n, of_state), slope_of_sigmoid(reset)));
      set(1, hn::Mul(hn::Mul(d_h, hn::Sub(h, n)), slope_of_sigmoid(z)));
      set(2, hn::Mul(d_n, reset));
      set(3, d_n);
      store_part(hn::Mul(d_h, z), of_row(b_.d_h_past, row) + v, left);
    } else {
      set(0, times_slope(p_.activation, gate(0), d_h));
    }
  }

  const BackwardDirection& b_;
  const Direction& d_;
  const Problem& p_;
  const int64_t step_, first_, units_;
  const float* const weights_;
  float *const d_h_, *const other_;
};

void run_back(const BackwardDirection& d, int64_t step, int64_t block, float* memory) {
  const BackwardTile tile(d, step, block, memory);
  const int64_t rows = step < 0 ? d.forward->p->batch : d.forward->schedule->num_active(step);
  for (int64_t row = 0; row < rows; row += kRows) tile.run(row, std::min(kRows, rows - row));
}

}  // namespace
}  // namespace ejk::rnns::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::rnns {
namespace {

HWY_EXPORT(pack_backward);
HWY_EXPORT(run_back);

}  // namespace

void pack_backward_block(const Problem& p, int64_t state, int64_t block, const PackedWeights& to) {
  HWY_DYNAMIC_DISPATCH(pack_backward)(p, state, block, to);
}
void run_block_back(const BackwardDirection& d, int64_t step, int64_t block, float* tile) {
  HWY_DYNAMIC_DISPATCH(run_back)(d, step, block, tile);
}

}  // namespace ejk::rnns
#endif
