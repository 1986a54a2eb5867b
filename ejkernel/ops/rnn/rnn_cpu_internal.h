// What the CPU kernels of rnn share: how they cut a call into steps and blocks of units, and the vectorised pieces,
// which stand in rnn_cpu_cells.cpp and rnn_backward_cpu_cells.cpp.
//
// Sequences are taken in the order of their lengths, the longest first: those that a step still concerns are then the
// first rows. A step of a direction counts from where the direction begins, so all sequences begin together. Rows of
// all steps lie packed, step by step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ejkernel/ops/grouped_matmul/grouped_matmul_cpu_internal.h"
#include "ejkernel/ops/rnn/rnn_internal.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/parallel_for.h"

namespace ejk::rnns {

/// Hidden units that a task computes at a step: their weights of all gates stay in the second-level cache.
inline constexpr int64_t kUnits = 32;
/// Rows that it computes at a time: their sums stay in the first-level cache.
inline constexpr int64_t kRows = 32;
inline constexpr int64_t kMaxGates = 4;

inline int64_t num_blocks(const Problem& p) { return cpu::ceil_div(p.hidden_size, kUnits); }

/// Which sequences a step concerns.
class Schedule {
 public:
  Schedule(const Problem& p, cpu::Carver& carver);
  /// Reads the lengths, telling their faults.
  void fill(const Problem& p, uint32_t* status);

  int64_t num_steps() const { return num_steps_; }
  int64_t num_rows() const { return first_[num_steps_]; }
  /// The first row of a step; of num_steps(): past the last.
  int64_t first_row(int64_t step) const { return first_[step]; }
  int64_t num_active(int64_t step) const { return step < num_steps_ ? first_[step + 1] - first_[step] : 0; }
  int64_t sequence(int64_t row) const { return order_[row]; }
  int64_t length(int64_t row) const { return lengths_[row]; }
  /// Where in its sequence a row's step is.
  int64_t time(int64_t direction, int64_t row, int64_t step) const {
    return direction == 0 ? step : lengths_[row] - 1 - step;
  }

 private:
  int64_t* order_;    ///< row -> sequence
  int64_t* lengths_;  ///< of rows, falling
  int64_t* first_;
  int64_t num_steps_ = 0;
};

/// A state's recurrent weights as tasks read them: for each block of units strips of columns, [k][column].
struct PackedWeights {
  float* weights;  ///< [block][columns of a block x depth]
  float* bias;     ///< [block][4][kUnits]; lstm: of the gates; gru: of r and z, b_hn, b_in; rnn: one
  int64_t depth;
};

/// Where states lie: rows of every step, or of two steps in turn.
struct StateRows {
  float* data = nullptr;
  int64_t hidden_size = 0, ring = 0;  ///< ring: rows of each of two steps; 0: all steps are kept
  float* at(const Schedule& schedule, int64_t step) const {
    return data + (ring > 0 ? step % 2 * ring : schedule.first_row(step)) * hidden_size;
  }
};

/// A direction of a layer on its way through a sequence.
struct Direction {
  int64_t state = 0, direction = 0;  ///< the number among all states, and in the layer
  const Problem* p = nullptr;
  const Schedule* schedule = nullptr;
  PackedWeights packed = {};
  float* gates = nullptr;  ///< [row][slot][unit], from the first row of the chunk on: sums over the input, then gates
  int64_t first_step = 0;  ///< of the chunk
  bool keeps_gates =
      false;        ///< in place of the sums: of a GRU, there is then room for both gradients of n, which differ
  View given = {};  ///< the gates, where an earlier forward kept them: nothing is multiplied then
  View kept = {};   ///< where this one leaves them
  StateRows h = {}, c = {};  ///< before each step
  View out = {};             ///< [batch, seq_len, layer_size] of the layer
  View final_hidden = {}, final_cell = {};

  int64_t gate_stride() const { return p->kept_size(); }
  float* gates_at(int64_t step) const {
    return gates + (schedule->first_row(step) - schedule->first_row(first_step)) * gate_stride();
  }
};

/// The backward's half of one.
struct BackwardDirection {
  const Direction* forward = nullptr;
  PackedWeights packed = {};  ///< W_hh as the factor of the gates' gradients
  View d_out = {};            ///< of the layer's output
  View d_final_hidden = {}, d_final_cell = {};
  View d_hidden = {}, d_cell = {};
  float* d_c = nullptr;       ///< [batch][unit], of an lstm's cell between steps
  float* d_h_past = nullptr;  ///< [batch][unit], what reaches a gru's state past its gates
};

/// Scratch of one task, in floats.
int64_t tile_floats();

/// Packs a block of a state's W_hh and biases.
void pack_block(const Problem& p, int64_t state, int64_t block, const PackedWeights& to);
/// Packs a block of W_hh's columns.
void pack_backward_block(const Problem& p, int64_t state, int64_t block, const PackedWeights& to);
/// One step of a block of units.
void run_block(const Direction& d, int64_t step, int64_t block, float* tile);
/// One step back. Step -1 is what comes before the first: the initial states' gradients.
void run_block_back(const BackwardDirection& d, int64_t step, int64_t block, float* tile);
/// Sums of the first `count` columns of some rows, rounded once.
void sum_columns(const float* from, int64_t stride, int64_t rows, int64_t count, const View& to, int64_t offset);
/// Copies elements of any floating dtype as floats.
void copy_as_floats(const View& from, int64_t offset, int64_t count, float* to);
/// Stores the sum of two rows, rounded once; a null one counts as 0.
void store_sum(const float* a, const float* b, int64_t count, const View& to, int64_t offset);

/// A layer's input in one direction, packed as rows of steps: of the input's own dtype, or floats.
struct InputRows {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t size = 0;  ///< numbers in a row
};

/// While it lives, a small call has one thread: the many pieces of a network are each too short to wake another for.
class CallThreads {
 public:
  explicit CallThreads(const Work& work) {
    constexpr double kSharedFlops = 8e6;
    if (work.flops < kSharedFlops) alone_.emplace(1);
  }

 private:
  std::optional<cpu::ScopedMaxThreads> alone_;
};

/// What a running kernel hands to its pieces.
struct CpuRun {
  const Problem& p;
  const Schedule& schedule;
  gmm::CpuConfig config;         ///< of the large products
  std::span<std::byte> scratch;  ///< of those, or of tiles

  /// Multiplies by grouped_matmul's kernel.
  void multiply(const gmm::Product& product) const;
  /// Packs the recurrent weights of a layer's directions, puts their initial states where their first step reads them,
  /// and runs steps [first, past): the sums over the input at once, then the recurrence. `rows` has room for the rows
  /// of those steps of each direction.
  void begin_layer(const std::span<Direction>& directions) const;
  void run_layer(const std::span<Direction>& directions, const View& input, const std::span<InputRows>& rows,
                 int64_t first, int64_t past) const;
  /// One tile per thread that works: body(direction, step, block, tile) for num_steps steps.
  void for_each_block(int64_t num_steps, cpu::FunctionRef<void(int64_t, int64_t, int64_t, float*)> body) const;
};

/// Bytes of `scratch` that these products and all tiles need.
size_t scratch_bytes(const Problem& p, std::span<const gmm::Product> products, const gmm::CpuConfig& config,
                     const DeviceProperties& device);
/// What products cost, one after the other, each shared by all threads, and between them a recurrence of so many flops.
/// That is float32 whatever the config: counted so, the products' pairs of numbers never speak for one.
Cost cpu_cost(std::span<const gmm::Product> products, const gmm::CpuConfig& config, double recurrent_flops,
              const DeviceProperties& device);
/// Flops of the small products of `rows` rows of steps, in one direction of a layer.
double recurrent_flops(const Problem& p, int64_t rows);
/// a[rows, depth] times b[depth, columns] into out, without batch or groups.
gmm::Product product_of(const gmm::Matrix& a, const gmm::Matrix& b, const gmm::Matrix& out, int64_t rows, int64_t depth,
                        int64_t columns);
/// The sums over a layer's input, of `num_rows` rows of steps.
gmm::Product input_product(const Direction& d, const InputRows& rows, int64_t num_rows);
/// Element (row, column) of a weight matrix from an element on; its transpose.
gmm::Matrix matrix_of(const View& w, int64_t offset);
gmm::Matrix transposed(gmm::Matrix m);

/// Numbers of PackedWeights::weights and ::bias of one direction.
int64_t packed_floats(const Problem& p);
int64_t bias_floats(const Problem& p);
Support supports_cpu(const Problem& p);

}  // namespace ejk::rnns
