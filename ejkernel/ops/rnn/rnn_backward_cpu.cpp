// The gradient of rnn on the CPU. The forward runs once more and keeps gates and states of every step; without a
// product where its gates are given. Back through
// time, a step is a small product of the later step's gate gradients with the recurrent weights, split into blocks of
// units as the forward's is; gate gradients take the gates' places. What the weights and the input get of them are
// large products over all steps at once, by grouped_matmul's kernel.
#include <algorithm>
#include <array>
#include <vector>

#include "ejkernel/ops/rnn/rnn.h"
#include "ejkernel/ops/rnn/rnn_cpu_internal.h"

namespace ejk {
namespace rnns {
namespace {

/// Slots whose gradients are those of gates in the same order: of a GRU's input the last slot is that of n.
struct Span {
  int64_t slot, gate, count;
};
constexpr std::array<Span, 2> kGruInput = {Span{0, 0, 2}, Span{3, 2, 1}};

class Backward {
 public:
  Backward(const Call<RnnBackward>& call, const Problem& p, cpu::Carver& carver)
      : p_(p),
        d_out_(view_of(call.inputs.d_out)),
        d_finals_{view_of(call.inputs.d_final_hidden), view_of(call.inputs.d_final_cell)},
        gates_(call.inputs.gates),
        gradients_(make_gradients(call.outputs, call.params)),
        is_wanted_(is_any_present(call.outputs)),
        schedule_(p, carver) {
    const int64_t rows = num_rows(), states = p.batch * p.hidden_size;
    for (int64_t d = 0; d < p.num_directions; ++d) {
      PackedWeights& packed = packed_[static_cast<size_t>(d)];
      packed = {carver.take<float>(packed_floats(p)), carver.take<float>(bias_floats(p)), p.hidden_size};
      d_c_[d] = p.is_lstm() ? carver.take<float>(states) : nullptr;
      d_h_past_[d] = p.cell_type == CellType::gru ? carver.take<float>(states) : nullptr;
      d_inputs_[d] = carver.take<float>(rows * std::max(p.input_size, p.num_layers > 1 ? p.layer_size() : 0));
    }
    sequence_ = p.num_layers > 1 ? carver.take<float>(rows * p.layer_size()) : nullptr;
    carver_at_kept_ = carver;
    for (int64_t state = 0; state < p.num_states(); ++state) keep(carver, state);
  }
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;

  /// The largest products of a layer: the inputs' sums, the weights' gradients and the inputs'.
  std::vector<gmm::Product> products() {
    std::vector<gmm::Product> all;
    for (int64_t layer = 0; layer < std::min<int64_t>(p_.num_layers, 2); ++layer) {
      const Kept kept = of_state(layer * p_.num_directions);
      all.push_back(input_product(kept.direction, kept.input, num_rows()));
      for_each_product(kept, 0, num_rows(), [&](const gmm::Product& product) { all.push_back(product); });
    }
    return all;
  }

  void run(const gmm::CpuConfig& config, std::span<std::byte> scratch, uint32_t* status) {
    schedule_.fill(p_, status);
    if (!is_wanted_) return;
    const CpuRun engine = {.p = p_, .schedule = schedule_, .config = config, .scratch = scratch};
    run_forward(engine);
    for (int64_t layer = p_.num_layers - 1; layer >= 0; --layer) run_layer(engine, layer);
  }

 private:
  /// What the forward keeps of a state, all rows of all steps.
  struct Kept {
    Direction direction;
    InputRows input;
  };

  static bool is_any_present(const RnnBackward::Outputs& outputs) {
    for (const Tensor& t : to_array(outputs))
      if (t.present()) return true;
    return false;
  }
  int64_t num_rows() const { return p_.batch * p_.seq_len; }
  size_t directions() const { return static_cast<size_t>(p_.num_directions); }

  Kept keep(cpu::Carver& carver, int64_t state) {
    const int64_t layer = state / p_.num_directions, rows = num_rows();
    Kept kept;
    Direction& d = kept.direction;
    d = {.state = state, .direction = state % p_.num_directions, .p = &p_, .schedule = &schedule_};
    d.packed = packed_[static_cast<size_t>(d.direction)];
    d.keeps_gates = true;
    d.given = gates_of(gates_, state);
    d.gates = carver.take<float>(rows * d.gate_stride());
    d.h = {carver.take<float>(rows * p_.hidden_size), p_.hidden_size};
    if (p_.is_lstm()) d.c = {carver.take<float>(rows * p_.hidden_size), p_.hidden_size};
    if (layer + 1 < p_.num_layers) d.out = sequence();
    kept.input = {.data = nullptr, .dtype = layer == 0 ? p_.dtype : DType::f32, .size = p_.input_of(layer)};
    kept.input.data = carver.take<float>(rows * kept.input.size);
    return kept;
  }
  Kept of_state(int64_t state) {
    cpu::Carver carver = carver_at_kept_;
    for (int64_t n = 0; n < state; ++n) keep(carver, n);
    return keep(carver, state);
  }
  /// Between layers: forward a layer's output, backward its cotangent.
  View sequence() const { return {sequence_, DType::f32, p_.seq_len * p_.layer_size(), p_.layer_size()}; }

  void run_forward(const CpuRun& engine) {
    for (int64_t layer = 0; layer < p_.num_layers; ++layer) {
      std::array<Direction, 2> forward;
      std::array<InputRows, 2> inputs;
      for (size_t d = 0; d < directions(); ++d) {
        const Kept kept = of_state(layer * p_.num_directions + static_cast<int64_t>(d));
        forward[d] = kept.direction, inputs[d] = kept.input;
      }
      engine.begin_layer({forward.data(), directions()});
      engine.run_layer({forward.data(), directions()}, layer == 0 ? p_.input : sequence(),
                       {inputs.data(), directions()}, 0, schedule_.num_steps());
    }
  }

  void run_layer(const CpuRun& engine, int64_t layer) {
    std::array<Kept, 2> kept;
    std::array<BackwardDirection, 2> backward;
    for (size_t d = 0; d < directions(); ++d) {
      const int64_t state = layer * p_.num_directions + static_cast<int64_t>(d);
      kept[d] = of_state(state);
      PackedWeights packed = packed_[d];
      packed.depth = p_.gate_rows();
      cpu::parallel_for(num_blocks(p_), [&](int64_t block) { pack_backward_block(p_, state, block, packed); });
      backward[d] = {.forward = &kept[d].direction,
                     .packed = packed,
                     .d_out = layer + 1 == p_.num_layers ? d_out_ : sequence(),
                     .d_final_hidden = d_finals_[0],
                     .d_final_cell = d_finals_[1],
                     .d_hidden = gradients_.hidden,
                     .d_cell = gradients_.cell,
                     .d_c = d_c_[d],
                     .d_h_past = d_h_past_[d]};
    }
    const int64_t steps = schedule_.num_steps();
    engine.for_each_block(steps + 1, [&](int64_t d, int64_t n, int64_t block, float* tile) {
      run_block_back(backward[static_cast<size_t>(d)], steps - 1 - n, block, tile);
    });
    for (size_t d = 0; d < directions(); ++d) {
      for_each_product(kept[d], static_cast<int64_t>(d), schedule_.num_rows(),
                       [&](const gmm::Product& product) { engine.multiply(product); });
      sum_biases(kept[d].direction);
    }
    if (layer > 0) return scatter(sequence(), p_.layer_size());
    if (gradients_.input.present()) scatter(gradients_.input, p_.input_size);
  }

  /// Of a state's gate gradients with what its gates were made of.
  template <class Visit>
  void for_each_product(const Kept& kept, int64_t direction, int64_t rows, Visit visit) const {
    const Direction& d = kept.direction;
    const int64_t hidden_size = p_.hidden_size, inputs = kept.input.size;
    const gmm::Matrix x = {.data = kept.input.data, .dtype = kept.input.dtype, .row = inputs, .column = 1};
    const gmm::Matrix h = {.data = d.h.data, .dtype = DType::f32, .row = hidden_size, .column = 1};
    const gmm::Matrix d_x = {.data = d_inputs_[direction], .dtype = DType::f32, .row = inputs, .column = 1};
    const View w = p_.weights.input_weights(d.state), d_w = gradients_.weights.input_weights(d.state);
    const View& d_hh = gradients_.weights.hh;
    if (d_hh.present())
      visit(product_of(transposed(of_slot(d, 0)), h, matrix_of(d_hh, d.state * d_hh.outer), p_.gate_rows(), rows,
                       hidden_size));
    for (const Span& span : input_spans()) {
      const gmm::Matrix gates = of_slot(d, span.slot);
      const int64_t first = span.gate * hidden_size, count = span.count * hidden_size;
      if (d_w.present())
        visit(product_of(transposed(gates), x, matrix_of(d_w, first * d_w.inner), count, rows, inputs));
      if (d.state < p_.num_directions && !gradients_.input.present()) continue;
      gmm::Product of_input = product_of(gates, matrix_of(w, first * w.inner), d_x, rows, count, inputs);
      if (span.gate > 0) of_input.existing = d_x;  // what the span before gave
      visit(of_input);
    }
  }
  static gmm::Matrix of_slot(const Direction& d, int64_t slot) {
    float* gates = d.gates == nullptr ? nullptr : d.gates + slot * d.p->hidden_size;
    return {.data = gates, .dtype = DType::f32, .row = d.gate_stride(), .column = 1};
  }
  std::span<const Span> input_spans() const {
    return p_.cell_type == CellType::gru ? std::span<const Span>(kGruInput) : std::span<const Span>(&all_, 1);
  }

  void sum_biases(const Direction& d) const {
    const int64_t hidden_size = p_.hidden_size;
    const auto sum = [&](const View& to, const Span& span) {
      if (to.present())
        sum_columns(d.gates + span.slot * hidden_size, d.gate_stride(), schedule_.num_rows(), span.count * hidden_size,
                    to, to.offset(0, d.state, span.gate * hidden_size));
    };
    for (const Span& span : input_spans()) sum(gradients_.weights.bias_ih, span);
    sum(gradients_.weights.bias_hh, all_);
  }

  /// The inputs' gradients back to their sequences, summed over the directions; 0 past a sequence's length.
  void scatter(const View& to, int64_t size) const {
    cpu::parallel_for(p_.batch, [&](int64_t row) {
      const int64_t b = schedule_.sequence(row), length = schedule_.length(row);
      for (int64_t t = 0; t < p_.seq_len; ++t) {
        const auto of_step = [&](int64_t d, int64_t step) {
          return d_inputs_[d] + (schedule_.first_row(step) + row) * size;
        };
        const float* forward = t < length ? of_step(0, t) : nullptr;
        const float* backward = t < length && p_.num_directions == 2 ? of_step(1, length - 1 - t) : nullptr;
        store_sum(forward, backward, size, to, to.offset(b, t, 0));
      }
    });
  }

  const Problem& p_;
  const View d_out_, d_finals_[2];
  const Tensor gates_;
  const Gradients gradients_;
  const bool is_wanted_;
  Schedule schedule_;
  cpu::Carver carver_at_kept_;  ///< where what is kept of the first state lies
  const Span all_ = {0, 0, num_gates(p_.cell_type)};
  std::array<PackedWeights, 2> packed_;
  float *d_c_[2] = {}, *d_h_past_[2] = {}, *d_inputs_[2] = {}, *sequence_ = nullptr;
};

}  // namespace
}  // namespace rnns

namespace {

struct BackwardCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = gmm::CpuConfig;
  using BackwardCall = Call<RnnBackward>;

  struct Plan {
    std::vector<gmm::Product> products;
    size_t memory;
  };
  static Plan plan(const BackwardCall& call) {
    const rnns::Problem p = problem_of(call);
    cpu::Carver carver;
    rnns::Backward backward(call, p, carver);
    return {backward.products(), carver.used()};
  }
  static rnns::Problem problem_of(const BackwardCall& call) { return rnns::make_problem(call.inputs, call.params); }

  static Support supports(const BackwardCall& call, const DeviceProperties&) {
    return rnns::supports_cpu(problem_of(call));
  }
  static Support runs_here(const Config& config, const DeviceProperties&) { return gmm::runs_here(config); }
  static Config heuristic(const BackwardCall& call, const DeviceProperties& device) {
    return gmm::cpu_heuristic(plan(call).products[0], device);
  }
  static std::vector<Config> candidates(const BackwardCall& call, const DeviceProperties&) {
    return gmm::cpu_candidates(plan(call).products[0]);
  }
  /// Of the first layer and of one above, or of that alone; there and back.
  static Cost cost(const BackwardCall& call, const Config& config, const DeviceProperties& device) {
    const rnns::Problem p = problem_of(call);
    const double layers = static_cast<double>(std::min<int64_t>(p.num_layers, 2));
    const double each = 2 * rnns::recurrent_flops(p, p.batch * p.seq_len);
    return rnns::cpu_cost(plan(call).products, config, layers * each, device);
  }
  static size_t workspace_bytes(const BackwardCall& call, const Config& config, const DeviceProperties& device) {
    const Plan plan = BackwardCpu::plan(call);
    return plan.memory + rnns::scratch_bytes(problem_of(call), plan.products, config, device);
  }
  static void run(const BackwardCall& call, const Config& config, const RunContext& context) {
    const rnns::CallThreads threads(RnnBackward::work(call));
    const rnns::Problem p = problem_of(call);
    cpu::Carver carver(context.workspace.data());
    rnns::Backward backward(call, p, carver);
    backward.run(config, context.workspace.subspan(carver.used()), context.status);
  }
};

}  // namespace

const KernelInfo& rnn_kernels::backward_cpu() {
  static const KernelInfo kernel = make_kernel<RnnBackward, BackwardCpu>();
  return kernel;
}

}  // namespace ejk
