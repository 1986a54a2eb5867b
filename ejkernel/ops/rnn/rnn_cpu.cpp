// rnn on the CPU. Of each layer and direction the sums over the input are one large product, some steps at a time, by
// grouped_matmul's kernel; what remains of a step, the small product with the states before it and the cell's
// functions, is split into blocks of units, whose threads meet after each step.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "ejkernel/ops/rnn/rnn.h"
#include "ejkernel/ops/rnn/rnn_cpu_internal.h"
#include "ejkernel/platform/cpu/parallel_steps.h"

namespace ejk {
namespace rnns {
namespace {

/// Multiply-adds of a step below which threads cost more than they bring.
constexpr int64_t kSharedStep = 32 * 1024;

}  // namespace

Schedule::Schedule(const Problem& p, cpu::Carver& carver)
    : order_(carver.take<int64_t>(p.batch)),
      lengths_(carver.take<int64_t>(p.batch)),
      first_(carver.take<int64_t>(p.seq_len + 1)) {}

void Schedule::fill(const Problem& p, uint32_t* status) {
  for (int64_t b = 0; b < p.batch; ++b) order_[b] = b, p.length(b, status);
  const auto length = [&](int64_t b) { return p.length(b, nullptr); };
  std::sort(order_, order_ + p.batch,
            [&](int64_t a, int64_t b) { return length(a) != length(b) ? length(a) > length(b) : a < b; });
  for (int64_t row = 0; row < p.batch; ++row) lengths_[row] = length(order_[row]);
  num_steps_ = p.batch > 0 ? lengths_[0] : 0;
  first_[0] = 0;
  int64_t active = p.batch;
  for (int64_t step = 0; step < num_steps_; ++step) {
    while (lengths_[active - 1] <= step) --active;
    first_[step + 1] = first_[step] + active;
  }
}

int64_t packed_floats(const Problem& p) { return num_blocks(p) * kUnits * p.gates() * p.hidden_size; }
int64_t bias_floats(const Problem& p) { return num_blocks(p) * kUnits * kMaxGates; }

Support supports_cpu(const Problem& p) {
  if (p.dtype == DType::f64) return Support::no("input must not be f64: this kernel keeps states in float32");
  return Support::yes();
}

gmm::Matrix matrix_of(const View& w, int64_t offset) {
  gmm::Matrix m = {.data = w.data, .dtype = w.dtype, .row = w.inner, .column = 1};
  if (w.present()) m.data = w.address(offset);
  return m;
}
gmm::Matrix transposed(gmm::Matrix m) {
  std::swap(m.row, m.column);
  return m;
}

gmm::Product product_of(const gmm::Matrix& a, const gmm::Matrix& b, const gmm::Matrix& out, int64_t rows, int64_t depth,
                        int64_t columns) {
  gmm::Product product;
  product.num_groups = 1;
  product.rows = rows, product.depth = depth, product.columns = columns;
  product.a.matrix = a, product.b.matrix = b, product.out = out;
  return product;
}

gmm::Product input_product(const Direction& d, const InputRows& rows, int64_t num_rows) {
  const gmm::Matrix a = {.data = rows.data, .dtype = rows.dtype, .row = rows.size, .column = 1};
  const gmm::Matrix out = {.data = d.gates, .dtype = DType::f32, .row = d.gate_stride(), .column = 1};
  return product_of(a, transposed(matrix_of(d.p->weights.input_weights(d.state), 0)), out, num_rows, rows.size,
                    d.p->gate_rows());
}

size_t scratch_bytes(const Problem& p, std::span<const gmm::Product> products, const gmm::CpuConfig& config,
                     const DeviceProperties& device) {
  const int64_t threads = std::max<int64_t>(device.num_units, cpu::num_threads());
  const int64_t workers = std::clamp<int64_t>(p.num_directions * num_blocks(p), 1, threads);
  size_t bytes = static_cast<size_t>(workers * tile_floats()) * sizeof(float);
  for (const gmm::Product& product : products) bytes = std::max(bytes, gmm::cpu_workspace(product, config, device));
  return bytes;
}

Cost cpu_cost(std::span<const gmm::Product> products, const gmm::CpuConfig& config, double recurrent_flops,
              const DeviceProperties& device) {
  const double threads = std::max(1, device.num_units);
  Cost cost = {.tasks = threads, .task_flops = recurrent_flops / threads};
  for (const gmm::Product& product : products) {
    const Cost one = gmm::cpu_cost(product, config);
    cost.task_flops += std::ceil(one.tasks / threads) * one.task_flops;
  }
  return cost;
}

double recurrent_flops(const Problem& p, int64_t rows) {
  return 2.0 * static_cast<double>(rows * p.gate_rows() * p.hidden_size);
}

void CpuRun::multiply(const gmm::Product& product) const {
  gmm::multiply_cpu(product, config, RunContext{.workspace = scratch});
}

void CpuRun::for_each_block(int64_t num_steps, cpu::FunctionRef<void(int64_t, int64_t, int64_t, float*)> body) const {
  float* tiles = reinterpret_cast<float*>(scratch.data());
  const size_t tile_bytes = static_cast<size_t>(tile_floats()) * sizeof(float);
  const int64_t of_step = p.num_directions * p.batch * p.gate_rows() * p.hidden_size;
  cpu::parallel_steps(
      {.num_chains = p.num_directions, .num_steps = num_steps, .num_tasks = num_blocks(p)},
      [&](int64_t direction, int64_t step, int64_t block, int worker) {
        body(direction, step, block, tiles + worker * tile_floats());
      },
      of_step < kSharedStep ? 1 : static_cast<int>(scratch.size() / tile_bytes));
}

namespace {

/// Copies rows of steps [first, past) of a layer's input.
void gather(const View& from, const Direction& d, int64_t first, int64_t past, const InputRows& to) {
  const Schedule& schedule = *d.schedule;
  const int64_t element = bits(to.dtype) / 8, row_bytes = to.size * element;
  cpu::parallel_for(past - first, [&](int64_t n) {
    const int64_t step = first + n;
    std::byte* row =
        static_cast<std::byte*>(to.data) + (schedule.first_row(step) - schedule.first_row(first)) * row_bytes;
    for (int64_t r = 0; r < schedule.num_active(step); ++r, row += row_bytes) {
      const int64_t offset = from.offset(schedule.sequence(r), schedule.time(d.direction, r, step), 0);
      if (row_bytes > 0)
        std::memcpy(row, static_cast<const std::byte*>(from.data) + offset * element, static_cast<size_t>(row_bytes));
    }
  });
}

void load_states(const Direction& d, const View& initial, const StateRows& to) {
  if (to.data == nullptr) return;
  const int64_t hidden_size = to.hidden_size;
  float* row = to.at(*d.schedule, 0);
  for (int64_t r = 0; r < d.schedule->num_active(0); ++r, row += hidden_size) {
    if (initial.present())
      copy_as_floats(initial, initial.offset(d.state, d.schedule->sequence(r), 0), hidden_size, row);
    else
      std::fill_n(row, hidden_size, 0.0f);
  }
}

}  // namespace

void CpuRun::begin_layer(const std::span<Direction>& directions) const {
  for (const Direction& d : directions) {
    if (!d.given.present())
      cpu::parallel_for(num_blocks(p), [&](int64_t block) { pack_block(p, d.state, block, d.packed); });
    if (schedule.num_steps() == 0) continue;
    load_states(d, p.hidden, d.h);
    load_states(d, p.cell, d.c);
  }
}

void CpuRun::run_layer(const std::span<Direction>& directions, const View& input, const std::span<InputRows>& rows,
                       int64_t first, int64_t past) const {
  for (size_t n = 0; n < directions.size(); ++n) {
    directions[n].first_step = first;
    gather(input, directions[n], first, past, rows[n]);
    if (directions[n].given.present()) continue;
    multiply(input_product(directions[n], rows[n], schedule.first_row(past) - schedule.first_row(first)));
  }
  for_each_block(past - first, [&](int64_t n, int64_t step, int64_t block, float* tile) {
    run_block(directions[static_cast<size_t>(n)], first + step, block, tile);
  });
}

namespace {

/// Steps that the sums over the input are computed for at once: enough rows for a product at full speed, few enough
/// for its result to be in cache when the steps come.
constexpr int64_t kChunkRows = 1024;
int64_t chunk_steps(const Problem& p) {
  return std::clamp<int64_t>(kChunkRows / std::max<int64_t>(p.batch, 1), 1, std::max<int64_t>(p.seq_len, 1));
}

class Forward {
 public:
  Forward(const Call<Rnn>& call, const Problem& p, cpu::Carver& carver)
      : p_(p),
        out_(view_of(call.outputs.out)),
        finals_{view_of(call.outputs.final_hidden), view_of(call.outputs.final_cell)},
        gates_(call.outputs.gates),
        schedule_(p, carver) {
    const int64_t rows = chunk_steps(p) * p.batch, input = std::max(p.input_size, p.layer_size());
    for (int64_t d = 0; d < p.num_directions; ++d) {
      Direction& direction = directions_[static_cast<size_t>(d)];
      direction = {.state = d, .direction = d, .p = &p_, .schedule = &schedule_};
      direction.packed = {carver.take<float>(packed_floats(p)), carver.take<float>(bias_floats(p)), p.hidden_size};
      direction.gates = carver.take<float>(rows * direction.gate_stride());
      direction.h = {carver.take<float>(2 * p.batch * p.hidden_size), p.hidden_size, p.batch};
      if (p.is_lstm()) direction.c = {carver.take<float>(2 * p.batch * p.hidden_size), p.hidden_size, p.batch};
      inputs_[static_cast<size_t>(d)].data = carver.take<float>(rows * input);
    }
    for (float*& sequence : sequences_)
      if (p.num_layers > 1) sequence = carver.take<float>(p.batch * p.seq_len * p.layer_size());
  }
  // Its directions point into it.
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;

  /// The largest products of the call: of the first layer, and of those above.
  std::array<gmm::Product, 2> products() {
    const int64_t rows = chunk_steps(p_) * p_.batch;
    set_layer(0);
    const gmm::Product first = input_product(directions_[0], inputs_[0], rows);
    if (p_.num_layers == 1) return {first, first};
    set_layer(1);
    return {first, input_product(directions_[0], inputs_[0], rows)};
  }

  void run(const gmm::CpuConfig& config, std::span<std::byte> scratch, uint32_t* status) {
    schedule_.fill(p_, status);
    if (!out_.present() && !finals_[0].present() && !finals_[1].present() && !gates_.present()) return;
    clear_padding(out_, p_.layer_size());
    for (int64_t state = 0; state < p_.num_states(); ++state) clear_padding(gates_of(gates_, state), p_.kept_size());
    finish_empty();
    const CpuRun engine = {.p = p_, .schedule = schedule_, .config = config, .scratch = scratch};
    for (int64_t layer = 0; layer < p_.num_layers; ++layer) {
      set_layer(layer);
      engine.begin_layer(directions());
      const View input = layer == 0 ? p_.input : sequence(layer - 1);
      for (int64_t step = 0; step < schedule_.num_steps(); step += chunk_steps(p_))
        engine.run_layer(directions(), input, {inputs_.data(), directions().size()}, step,
                         std::min(step + chunk_steps(p_), schedule_.num_steps()));
    }
  }

 private:
  std::span<Direction> directions() { return {directions_.data(), static_cast<size_t>(p_.num_directions)}; }
  /// What a layer hands to the next one.
  View sequence(int64_t layer) const {
    return {sequences_[layer % 2], DType::f32, p_.seq_len * p_.layer_size(), p_.layer_size()};
  }
  void set_layer(int64_t layer) {
    for (size_t n = 0; n < directions().size(); ++n) {
      Direction& d = directions_[n];
      d.state = layer * p_.num_directions + d.direction;
      d.out = layer + 1 == p_.num_layers ? out_ : sequence(layer);
      d.kept = gates_of(gates_, d.state);
      d.final_hidden = finals_[0], d.final_cell = finals_[1];
      inputs_[n].dtype = layer == 0 ? p_.dtype : DType::f32;
      inputs_[n].size = p_.input_of(layer);
    }
  }

  /// Zeros past the lengths in a [batch, seq_len, size].
  void clear_padding(const View& view, int64_t size) const {
    if (!view.present()) return;
    const int64_t element = bits(view.dtype) / 8;
    for (int64_t row = 0; row < p_.batch; ++row)
      for (int64_t t = schedule_.length(row); t < p_.seq_len; ++t)
        std::memset(static_cast<std::byte*>(view.data) + view.offset(schedule_.sequence(row), t, 0) * element, 0,
                    static_cast<size_t>(size * element));
  }
  /// The final state of a sequence without steps is its initial one.
  void finish_empty() const {
    for (int64_t row = schedule_.num_active(0); row < p_.batch; ++row)
      for (int64_t state = 0; state < p_.num_states(); ++state)
        for (int64_t j = 0; j < p_.hidden_size; ++j) {
          const int64_t b = schedule_.sequence(row);
          finals_[0].set(state, b, j, p_.hidden.at(state, b, j));
          finals_[1].set(state, b, j, p_.cell.at(state, b, j));
        }
  }

  const Problem& p_;
  const View out_, finals_[2];
  const Tensor gates_;
  Schedule schedule_;
  std::array<Direction, 2> directions_;
  std::array<InputRows, 2> inputs_;
  float* sequences_[2] = {};
};

}  // namespace
}  // namespace rnns

namespace {

struct RnnCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = gmm::CpuConfig;

  /// What a question about a call needs: its products, and how much memory lies before their scratch.
  struct Plan {
    std::array<gmm::Product, 2> products;
    size_t memory;
  };
  static Plan plan(const Call<Rnn>& call) {
    const rnns::Problem p = rnns::make_problem(call.inputs, call.params);
    cpu::Carver carver;
    rnns::Forward forward(call, p, carver);
    return {forward.products(), carver.used()};
  }

  static Support supports(const Call<Rnn>& call, const DeviceProperties&) {
    return rnns::supports_cpu(rnns::make_problem(call.inputs, call.params));
  }
  static Support runs_here(const Config& config, const DeviceProperties&) { return gmm::runs_here(config); }
  static Config heuristic(const Call<Rnn>& call, const DeviceProperties& device) {
    return gmm::cpu_heuristic(plan(call).products[0], device);
  }
  static std::vector<Config> candidates(const Call<Rnn>& call, const DeviceProperties&) {
    return gmm::cpu_candidates(plan(call).products[0]);
  }
  /// Of a chunk of steps: of the first layer, and of one above.
  static Cost cost(const Call<Rnn>& call, const Config& config, const DeviceProperties& device) {
    const rnns::Problem p = rnns::make_problem(call.inputs, call.params);
    return rnns::cpu_cost(plan(call).products, config, 2 * rnns::recurrent_flops(p, rnns::chunk_steps(p) * p.batch),
                          device);
  }
  static size_t workspace_bytes(const Call<Rnn>& call, const Config& config, const DeviceProperties& device) {
    const Plan plan = RnnCpu::plan(call);
    return plan.memory +
           rnns::scratch_bytes(rnns::make_problem(call.inputs, call.params), plan.products, config, device);
  }
  static void run(const Call<Rnn>& call, const Config& config, const RunContext& context) {
    const rnns::CallThreads threads(Rnn::work(call));
    const rnns::Problem p = rnns::make_problem(call.inputs, call.params);
    cpu::Carver carver(context.workspace.data());
    rnns::Forward forward(call, p, carver);
    forward.run(config, context.workspace.subspan(carver.used()), context.status);
  }
};

}  // namespace

const KernelInfo& rnn_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<Rnn, RnnCpu>();
  return kernel;
}

}  // namespace ejk
