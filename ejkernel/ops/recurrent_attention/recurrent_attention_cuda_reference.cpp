// The host half of `cuda_reference`: recurrent_attention and its gradient in double, for every dtype and any strides.
#include <algorithm>
#include <cmath>
#include <memory>

#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_cuda_internal.h"
#include "ejkernel/platform/cuda/program.h"

namespace ejk {
namespace recurrence {
namespace {

/// What the blocks of the backward may keep together, unless a single one needs more.
constexpr int64_t kMostBlockBytes = int64_t{1} << 30;
constexpr int64_t kMostBlocks = 1024;

/// The stride of an axis with one element does not matter.
int64_t stride(const Tensor& t, int axis) { return t.shape[axis] == 1 ? 0 : t.strides[axis]; }

class Refs {
 public:
  explicit Refs(const Problem& p) : p_(p) {}

  /// [batch, row, head, …]
  cuda::TensorRef rows(const Tensor& t) const {
    if (!t.present()) return {};
    const int row = p_.packed() ? 0 : 1;
    return ref(t, {p_.packed() ? 0 : stride(t, 0), stride(t, row), stride(t, row + 1)});
  }
  /// [sequence, head, key, value]
  static cuda::TensorRef states(const Tensor& t) {
    return t.present() ? ref(t, {stride(t, 0), stride(t, 1), stride(t, 2)}) : cuda::TensorRef{};
  }
  /// [head], which is the last axis
  static cuda::TensorRef heads(const Tensor& t) { return t.present() ? ref(t, {0, 0, 0}) : cuda::TensorRef{}; }

 private:
  static cuda::TensorRef ref(const Tensor& t, std::array<int64_t, 3> strides) {
    return {t.data, static_cast<cuda::Number>(t.dtype), {strides[0], strides[1], strides[2]}};
  }

  const Problem& p_;
};

cuda::RecurrenceProblem inputs_of(const Problem& p, std::byte* memory, uint32_t* status) {
  const Refs refs(p);
  cuda::RecurrenceProblem to;
  to.query = refs.rows(p.in.query), to.key = refs.rows(p.in.key), to.value = refs.rows(p.in.value);
  to.g = refs.rows(p.in.g), to.gk = refs.rows(p.in.gk), to.gv = refs.rows(p.in.gv);
  to.g_gamma = Refs::heads(p.in.g_gamma), to.initial_state = Refs::states(p.in.initial_state);
  to.cu_seqlens = p.in.cu_seqlens.as<const int>();
  to.status = status;
  to.num_sequences = p.num_sequences, to.num_rows = p.num_rows;
  to.num_q_heads = p.num_q_heads, to.num_kv_heads = p.num_kv_heads;
  to.key_dim = p.key_dim, to.value_dim = p.value_dim;
  to.scale = p.scale, to.reverse = p.reverse;
  to.memory = reinterpret_cast<double*>(memory);
  return to;
}

}  // namespace

cuda::RecurrenceProblem cuda_problem(const Call<RecurrentAttention>& call, std::byte* memory, uint32_t* status) {
  const Problem p = make_problem(call.inputs, call.params);
  cuda::RecurrenceProblem to = inputs_of(p, memory, status);
  to.out = Refs(p).rows(call.outputs.out), to.final_state = Refs::states(call.outputs.final_state);
  return to;
}

cuda::RecurrenceProblem cuda_problem(const Call<RecurrentAttentionBackward>& call, std::byte* memory,
                                     uint32_t* status) {
  const Problem p = make_problem(call.inputs, call.params);
  const Refs refs(p);
  cuda::RecurrenceProblem to = inputs_of(p, memory, status);
  to.out = refs.rows(call.inputs.d_out), to.final_state = Refs::states(call.inputs.d_final_state);
  const auto& d = call.outputs;
  to.d_query = refs.rows(d.query), to.d_key = refs.rows(d.key), to.d_value = refs.rows(d.value);
  to.d_g = refs.rows(d.g), to.d_gk = refs.rows(d.gk), to.d_gv = refs.rows(d.gv);
  to.d_g_gamma = Refs::heads(d.g_gamma), to.d_initial_state = Refs::states(d.initial_state);
  to.segment = std::max<int64_t>(static_cast<int64_t>(std::sqrt(static_cast<double>(p.num_rows))), 1);
  const int64_t bytes = cuda::RecurrenceMemory(to).block_size * static_cast<int64_t>(sizeof(double));
  const int64_t most = std::max<int64_t>(std::min(kMostBlockBytes / bytes, kMostBlocks), 1);
  to.num_blocks = std::clamp<int64_t>(p.num_sequences * p.num_kv_heads, 1, most);
  return to;
}

size_t cuda_memory_bytes(const Call<RecurrentAttention>& call) {
  const Problem p = make_problem(call.inputs, call.params);
  return static_cast<size_t>(p.num_sequences * p.num_q_heads * p.state_size()) * sizeof(double);
}

size_t cuda_memory_bytes(const Call<RecurrentAttentionBackward>& call) {
  return static_cast<size_t>(cuda::RecurrenceMemory::size(cuda_problem(call, nullptr, nullptr))) * sizeof(double);
}

}  // namespace recurrence

namespace {

using Program = std::shared_ptr<const cuda::Program>;
struct Programs {
  Program clear, main, sum_g_gamma;
};

template <class Op>
struct CudaReference {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;
  static constexpr bool kBackward = std::is_same_v<Op, RecurrentAttentionBackward>;

  static size_t workspace_bytes(const Call<Op>& call, const NoConfig&, const DeviceProperties&) {
    return recurrence::cuda_memory_bytes(call);
  }

  static std::shared_ptr<const void> prepare(const Call<Op>& call, const DeviceProperties& device) {
    const auto load = [&](const char* instance) {
      return cuda::load_program({.file = "ejkernel/ops/recurrent_attention/recurrent_attention_cuda_reference.cu",
                                 .instance = std::string("ejk::cuda::recurrent_attention_") + instance,
                                 .may_spill = true},
                                device);
    };
    const bool packed = call.inputs.cu_seqlens.present(), summed = kBackward && call.inputs.g_gamma.present();
    return std::make_shared<const Programs>(
        Programs{.clear = packed ? load(kBackward ? "clear<true>" : "clear<false>") : nullptr,
                 .main = load(kBackward ? "reference<true>" : "reference<false>"),
                 .sum_g_gamma = summed ? load("sum_g_gamma") : nullptr});
  }

  static void run(const Call<Op>& call, const RunContext& context) {
    const auto& programs = *static_cast<const Programs*>(context.code);
    const cuda::RecurrenceProblem p = recurrence::cuda_problem(call, context.workspace.data(), context.status);
    const auto launch = [&](const Program& program, int64_t blocks) {
      if (blocks > 0)
        cuda::launch(*program, context, {.x = static_cast<unsigned>(std::min<int64_t>(blocks, INT32_MAX))},
                     {.x = cuda::kRecurrenceThreads}, 0, p);
    };
    const auto blocks_of = [](int64_t items) {
      return items / cuda::kRecurrenceThreads + (items % cuda::kRecurrenceThreads != 0 ? 1 : 0);
    };
    if (p.packed()) launch(programs.clear, blocks_of(std::max<int64_t>(p.num_rows * p.num_q_heads * p.key_dim, 1)));
    if (kBackward)
      launch(programs.main, p.num_sequences > 0 ? p.num_blocks : 0);
    else
      launch(programs.main, blocks_of(p.num_sequences * p.num_q_heads * p.value_dim));
    if (kBackward && p.d_g_gamma.present()) launch(programs.sum_g_gamma, blocks_of(p.num_q_heads));
  }
};

}  // namespace

const KernelInfo& recurrent_attention_kernels::cuda_reference() {
  static const KernelInfo kernel = make_kernel<RecurrentAttention, CudaReference<RecurrentAttention>>();
  return kernel;
}

const KernelInfo& recurrent_attention_kernels::backward_cuda_reference() {
  static const KernelInfo kernel = make_kernel<RecurrentAttentionBackward, CudaReference<RecurrentAttentionBackward>>();
  return kernel;
}

}  // namespace ejk
