// pooling::Problem as device code gets it, and the launch that comes before the others.
#include <algorithm>

#include "ejkernel/ops/mean_pooling/mean_pooling_cuda_internal.h"

namespace ejk::pooling {
namespace {

/// What the survey leaves, by its place in the workspace.
struct SurveyLayout {
  size_t counts, overlapping, bytes;

  explicit SurveyLayout(const Problem& p) {
    const auto numbers = [](int64_t count) { return static_cast<size_t>(count) * sizeof(int64_t); };
    counts = numbers(SequenceMap::size(p));
    overlapping = counts + numbers(p.mask.present() ? p.num_batches : 0);
    bytes = (overlapping + sizeof(int) + 63) / 64 * 64;
  }
};

/// [batch, row, head, dim]; the stride of an axis with one element does not matter.
cuda::TensorRef tensor_ref(const Tensor& t, const Problem& p, int64_t num_rows, const Layout& layout) {
  if (!t.present()) return {};
  return {t.data,
          static_cast<cuda::Number>(t.dtype),
          {p.num_batches == 1 ? 0 : layout.batch, num_rows == 1 ? 0 : layout.row, p.num_heads == 1 ? 0 : layout.head}};
}

}  // namespace

CudaCall cuda_call(const Call<MeanPooling>& call) {
  CudaCall c = {make_problem(call.inputs, call.params), call.inputs.x, call.outputs.out, call.outputs.chunk_offsets};
  if (c.out.present()) c.p.merge_heads(c.x, c.out);
  return c;
}

CudaCall cuda_call(const Call<MeanPoolingBackward>& call) {
  CudaCall c = {make_problem(call.inputs, call.params), call.outputs.x, call.inputs.d_out, {}, true};
  if (c.x.present()) c.p.merge_heads(c.x, c.out);
  return c;
}

size_t survey_bytes(const CudaCall& call) { return SurveyLayout(call.p).bytes; }

cuda::PoolingProblem cuda_problem(const CudaCall& call, std::byte* workspace, uint32_t* status) {
  const Problem& p = call.p;
  const SurveyLayout survey(p);
  cuda::PoolingProblem to;
  to.x = tensor_ref(call.x, p, p.num_tokens, p.rows_of(call.x));
  to.out = tensor_ref(call.out, p, p.num_means, p.means_of(call.out));
  to.mask = p.mask.as<const unsigned char>();
  to.mask_batch_stride = p.mask.present() ? p.mask.strides[0] : 0;
  to.cu_seqlens = p.cu_seqlens.as<const int>();
  to.chunk_offsets = call.chunk_offsets.as<int>();
  to.status = status;
  to.num_batches = p.num_batches, to.num_tokens = p.num_tokens, to.num_heads = p.num_heads, to.dim = p.dim;
  to.num_sequences = p.num_sequences, to.num_means = p.num_means;
  // A longer chunk holds no more; without rows there is none to be cut.
  to.chunk_size = p.chunked() ? std::clamp<int64_t>(p.num_tokens, 1, p.chunk_size) : 0;
  if (p.packed() && p.chunked()) to.first_means = reinterpret_cast<cuda::int64*>(workspace);
  if (p.mask.present()) to.counts = reinterpret_cast<cuda::int64*>(workspace + survey.counts);
  if (p.packed()) to.overlapping = reinterpret_cast<int*>(workspace + survey.overlapping);
  return to;
}

std::shared_ptr<const cuda::Program> prepare_survey(const CudaCall& call, const DeviceProperties& device) {
  if (!call.p.packed() && !call.p.mask.present()) return nullptr;
  return cuda::load_program(
      {.file = "ejkernel/ops/mean_pooling/mean_pooling_survey.cu", .instance = "ejk::cuda::mean_pooling_survey"},
      device);
}

void run_survey(const std::shared_ptr<const cuda::Program>& program, const CudaCall& call,
                const cuda::PoolingProblem& problem, const RunContext& context) {
  const Problem& p = call.p;
  // Forward, whole packed sequences need no survey: then it is for the faults only.
  const bool wanted = p.mask.present() || (p.packed() && (call.backward || p.chunked() || context.status != nullptr));
  if (!wanted) return;
  const auto blocks = static_cast<unsigned>(p.packed() ? 1 : p.num_batches);
  cuda::launch(*program, context, {.x = blocks}, {.x = cuda::kPoolingSurveyThreads}, 0, problem);
}

}  // namespace ejk::pooling
