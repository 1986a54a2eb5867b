// The host half of `cuda_reference`: rnn and its gradient in double, for every dtype and any strides.
#include <algorithm>

#include "ejkernel/ops/rnn/rnn.h"
#include "ejkernel/ops/rnn/rnn_cuda_internal.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cuda/program.h"

namespace ejk {
namespace rnns {
namespace {

cuda::RnnView view(const View& v) { return {v.data, static_cast<cuda::Number>(v.dtype), v.outer, v.inner}; }
cuda::RnnWeights weights(const Weights& w) {
  return {view(w.ih), view(w.ih_upper), view(w.hh), view(w.bias_ih), view(w.bias_hh)};
}

cuda::RnnProblem common(const Problem& p, cpu::Carver& carver) {
  cuda::RnnProblem to;
  to.cell = static_cast<cuda::RnnCell>(p.cell_type);
  to.activation = static_cast<cuda::RnnActivation>(p.activation);
  to.batch = p.batch, to.seq_len = p.seq_len, to.input_size = p.input_size, to.hidden_size = p.hidden_size;
  to.num_layers = p.num_layers, to.num_directions = p.num_directions;
  to.input = view(p.input), to.hidden = view(p.hidden), to.initial_cell = view(p.cell);
  to.weights = weights(p.weights);
  to.lengths = p.lengths.as<const int>();
  const int64_t steps = p.num_states() * p.batch * p.seq_len;
  to.sequences = carver.take<double>((p.num_layers + 1) * p.batch * p.seq_len * to.width());
  to.gates = carver.take<double>(steps * 4 * p.hidden_size);
  to.states = carver.take<double>(steps * 2 * p.hidden_size);
  to.lasts = carver.take<double>(p.num_states() * p.batch * 2 * p.hidden_size);
  return to;
}

cuda::RnnProblem make(const Call<Rnn>& call, cpu::Carver& carver) {
  cuda::RnnProblem to = common(make_problem(call.inputs, call.params), carver);
  to.out = view(view_of(call.outputs.out));
  to.final_hidden = view(view_of(call.outputs.final_hidden));
  to.final_cell = view(view_of(call.outputs.final_cell));
  to.kept = view(gates_of(call.outputs.gates, 0));
  if (call.outputs.gates.present()) to.kept_state = call.outputs.gates.strides[0];
  return to;
}

cuda::RnnProblem make(const Call<RnnBackward>& call, cpu::Carver& carver) {
  const Problem p = make_problem(call.inputs, call.params);
  const Gradients gradients = make_gradients(call.outputs, call.params);
  cuda::RnnProblem to = common(p, carver);
  to.d_out = view(view_of(call.inputs.d_out));
  to.d_final_hidden = view(view_of(call.inputs.d_final_hidden));
  to.d_final_cell = view(view_of(call.inputs.d_final_cell));
  to.d_input = view(gradients.input), to.d_hidden = view(gradients.hidden), to.d_cell = view(gradients.cell);
  to.d_weights = weights(gradients.weights);
  to.d_gates = carver.take<double>(p.num_states() * p.batch * p.seq_len * 2 * p.gate_rows());
  to.d_above = carver.take<double>(p.batch * p.seq_len * to.width());
  to.d_below = carver.take<double>(p.batch * p.seq_len * to.width());
  to.d_states = carver.take<double>(p.batch * 3 * p.hidden_size);
  return to;
}

template <class Op>
size_t workspace(const Call<Op>& call) {
  cpu::Carver carver;
  make(call, carver);
  return carver.used();
}

template <class Op>
cuda::RnnProblem problem(const Call<Op>& call, std::byte* memory, uint32_t* status) {
  cpu::Carver carver(memory);
  cuda::RnnProblem to = make(call, carver);
  to.status = status;
  return to;
}

}  // namespace

size_t cuda_workspace(const Call<Rnn>& call) { return workspace(call); }
size_t cuda_workspace(const Call<RnnBackward>& call) { return workspace(call); }
cuda::RnnProblem cuda_problem(const Call<Rnn>& call, std::byte* memory, uint32_t* status) {
  return problem(call, memory, status);
}
cuda::RnnProblem cuda_problem(const Call<RnnBackward>& call, std::byte* memory, uint32_t* status) {
  return problem(call, memory, status);
}

}  // namespace rnns

namespace {

struct Programs {
  std::shared_ptr<const cuda::Program> run, sum_weights;
};

template <class Op>
struct CudaReference {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;
  static constexpr bool kBackward = std::is_same_v<Op, RnnBackward>;

  static size_t workspace_bytes(const Call<Op>& call, const NoConfig&, const DeviceProperties&) {
    return rnns::cuda_workspace(call);
  }

  static std::shared_ptr<const void> prepare(const Call<Op>&, const DeviceProperties& device) {
    const auto load = [&](const char* instance) {
      return cuda::load_program(
          {.file = "ejkernel/ops/rnn/rnn_cuda_reference.cu", .instance = instance, .may_spill = true}, device);
    };
    Programs programs = {.run = load(kBackward ? "ejk::cuda::rnn_backward_reference" : "ejk::cuda::rnn_reference"),
                         .sum_weights = nullptr};
    if (kBackward) programs.sum_weights = load("ejk::cuda::rnn_weights_reference");
    return std::make_shared<const Programs>(std::move(programs));
  }

  static void run(const Call<Op>& call, const RunContext& context) {
    const auto& programs = *static_cast<const Programs*>(context.code);
    const cuda::RnnProblem problem = rnns::cuda_problem(call, context.workspace.data(), context.status);
    if (problem.batch > 0) launch(*programs.run, context, problem.batch, problem);
    if (!kBackward) return;
    const int64_t elements = problem.num_states() * problem.gate_rows() * (problem.width() + problem.hidden_size + 2);
    if (elements > 0) launch(*programs.sum_weights, context, cpu::ceil_div(elements, cuda::kRnnThreads), problem);
  }

  static void launch(const cuda::Program& program, const RunContext& context, int64_t blocks,
                     const cuda::RnnProblem& problem) {
    cuda::launch(program, context, {.x = static_cast<unsigned>(std::min<int64_t>(blocks, INT32_MAX))},
                 {.x = cuda::kRnnThreads}, 0, problem);
  }
};

}  // namespace

const KernelInfo& rnn_kernels::cuda_reference() {
  static const KernelInfo kernel = make_kernel<Rnn, CudaReference<Rnn>>();
  return kernel;
}

const KernelInfo& rnn_kernels::backward_cuda_reference() {
  static const KernelInfo kernel = make_kernel<RnnBackward, CudaReference<RnnBackward>>();
  return kernel;
}

}  // namespace ejk
