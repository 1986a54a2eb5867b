// The host half of `cuda_reference`: grouped_matmul and its gradients in double, for every dtype and any strides.
#include <algorithm>
#include <array>

#include "ejkernel/ops/grouped_matmul/grouped_matmul.h"
#include "ejkernel/ops/grouped_matmul/grouped_matmul_cuda_internal.h"
#include "ejkernel/platform/cuda/program.h"

namespace ejk {
namespace gmm {
namespace {

cuda::MatrixRef matrix_ref(const Matrix& m) {
  return {m.data, static_cast<cuda::Number>(m.dtype), {m.batch, m.group, m.row, m.column}};
}

template <class To, class From>
To grid_ref(const From& grid) {
  return {grid.data, {grid.group, grid.row, grid.column}, grid.block_rows, grid.block_columns};
}

cuda::OperandRef operand_ref(const Operand& x) {
  return {matrix_ref(x.matrix), grid_ref<cuda::ScaleRef>(x.scale), grid_ref<cuda::MaskRef>(x.mask)};
}

}  // namespace

size_t offset_bytes(const Product& p) {
  return (static_cast<size_t>(p.num_offsets()) * sizeof(int64_t) + 63) / 64 * 64;
}

cuda::MatmulProblem cuda_problem(const Product& p, std::byte* workspace, uint32_t* status) {
  cuda::MatmulProblem to;
  to.num_batches = p.num_batches, to.num_groups = p.num_groups;
  to.rows = p.rows, to.depth = p.depth, to.columns = p.columns;
  to.ragged = static_cast<cuda::RaggedAxis>(p.ragged);
  if (p.ragged != Ragged::none) {
    to.group_sizes = p.group_sizes.as<const int>();
    to.num_all_groups = p.group_sizes.shape[0];
    to.offsets = reinterpret_cast<cuda::int64*>(workspace);
  }
  to.group_offset = p.group_offset;
  to.a = operand_ref(p.a), to.b = operand_ref(p.b);
  to.existing = matrix_ref(p.existing), to.out = matrix_ref(p.out);
  to.out_mask = grid_ref<cuda::MaskRef>(p.out_mask);
  to.status = status;
  return to;
}

}  // namespace gmm

namespace {

using gmm::Product;

struct Programs {
  std::shared_ptr<const cuda::Program> survey, multiply;
};

std::array<Product, 1> products_of(const Call<GroupedMatmul>& call) { return {gmm::out_product(call)}; }
std::array<Product, 1> products_of(const Call<TransposedGroupedMatmul>& call) { return {gmm::out_product(call)}; }
std::array<Product, 3> products_of(const Call<GroupedMatmulBackward>& call) {
  return {gmm::lhs_product(call), gmm::rhs_product(call), gmm::existing_out_product(call)};
}

template <class Op>
struct CudaReference {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;

  static size_t workspace_bytes(const Call<Op>& call, const NoConfig&, const DeviceProperties&) {
    size_t bytes = 0;
    for (const Product& p : products_of(call)) bytes = std::max(bytes, gmm::offset_bytes(p));
    return bytes;
  }

  static std::shared_ptr<const void> prepare(const Call<Op>& call, const DeviceProperties& device) {
    const auto load = [&](const char* instance) {
      return cuda::load_program({.file = "ejkernel/ops/grouped_matmul/grouped_matmul_cuda_reference.cu",
                                 .instance = instance,
                                 .may_spill = true},
                                device);
    };
    Programs programs;
    if (products_of(call).front().ragged != gmm::Ragged::none)
      programs.survey = load("ejk::cuda::grouped_matmul_survey");
    programs.multiply = load("ejk::cuda::grouped_matmul_reference");
    return std::make_shared<const Programs>(std::move(programs));
  }

  static void run(const Call<Op>& call, const RunContext& context) {
    const auto& programs = *static_cast<const Programs*>(context.code);
    bool is_first = true;  // all products have the same faults
    for (const Product& p : products_of(call)) {
      const cuda::MatmulProblem problem =
          gmm::cuda_problem(p, context.workspace.data(), is_first ? context.status : nullptr);
      const bool is_ragged = p.ragged != gmm::Ragged::none;
      if (is_ragged && (p.is_wanted || problem.status != nullptr))
        cuda::launch(*programs.survey, context, {.x = 1}, {.x = cuda::kMatmulSurveyThreads}, 0, problem);
      is_first = false;
      if (!p.is_wanted) continue;
      const int64_t elements = p.num_batches * (p.ragged == gmm::Ragged::rows ? 1 : p.num_groups) * p.rows * p.columns;
      const int64_t blocks =
          std::min<int64_t>((elements + cuda::kMatmulReferenceThreads - 1) / cuda::kMatmulReferenceThreads, INT32_MAX);
      cuda::launch(*programs.multiply, context, {.x = static_cast<unsigned>(blocks)},
                   {.x = cuda::kMatmulReferenceThreads}, 0, problem);
    }
  }
};

}  // namespace

const KernelInfo& grouped_matmul_kernels::cuda_reference() {
  static const KernelInfo kernel = make_kernel<GroupedMatmul, CudaReference<GroupedMatmul>>();
  return kernel;
}

const KernelInfo& grouped_matmul_kernels::transposed_cuda_reference() {
  static const KernelInfo kernel = make_kernel<TransposedGroupedMatmul, CudaReference<TransposedGroupedMatmul>>();
  return kernel;
}

const KernelInfo& grouped_matmul_kernels::backward_cuda_reference() {
  static const KernelInfo kernel = make_kernel<GroupedMatmulBackward, CudaReference<GroupedMatmulBackward>>();
  return kernel;
}

}  // namespace ejk
