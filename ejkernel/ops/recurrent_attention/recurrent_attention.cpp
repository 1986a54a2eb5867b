#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"

#include <cmath>
#include <string>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_internal.h"

namespace ejk {
namespace {

void check_heads(std::string_view op, const Dims& dims) {
  const int64_t q_heads = dims["num_q_heads"], kv_heads = dims["num_kv_heads"];
  if (q_heads < 1) throw_invalid(op, "query num_q_heads", "be at least 1", std::to_string(q_heads), "pass a head");
  if (kv_heads < 1) throw_invalid(op, "key num_kv_heads", "be at least 1", std::to_string(kv_heads), "pass a head");
  if (q_heads % kv_heads != 0)
    throw_invalid(op, "query num_q_heads", "be a multiple of key num_kv_heads " + std::to_string(kv_heads),
                  std::to_string(q_heads), "every kv head serves the same number of query heads");
  for (const char* dim : {"key_dim", "value_dim"})
    if (dims[dim] < 1) throw_invalid(op, dim, "be at least 1", std::to_string(dims[dim]), "pass a column");
}

/// Kernels keep several states per sequence and head: their sizes must be far from overflowing.
void check_states(std::string_view op, const Dims& dims) {
  constexpr int64_t kMost = int64_t{1} << 38;
  const Dims::Entry* batch = dims.find("batch");
  const Shape states = {batch != nullptr ? batch->value : dims["num_seqs"], dims["num_q_heads"], dims["key_dim"],
                        dims["value_dim"]};
  if (states.num_elements() > kMost)
    throw_invalid(op, "the states", "have at most 2^38 elements", to_string(states), "split the batch or the heads");
}

void check_state_dtype(std::string_view op, const RecurrentAttention::Params& params) {
  if (params.state_dtype && (set_of(*params.state_dtype) & kFloat) == 0)
    throw_invalid(op, "state_dtype", "be f64, f32, f16 or bf16", name(*params.state_dtype),
                  "convert the state yourself");
}

/// Arithmetic of `flops` per element of a state, once for each token.
Work work_of(const recurrence::Problem& p, double flops, double bytes) {
  const double updates =
      static_cast<double>(p.num_batches()) * static_cast<double>(p.num_rows) * static_cast<double>(p.num_q_heads);
  return {.flops = flops * updates * static_cast<double>(p.state_size()), .bytes = bytes};
}

}  // namespace

void RecurrentAttention::check(const Inputs&, const Params& params, Dims& dims) {
  recurrence::check(kName, params, dims);
}

/// A multiplication and an addition for the update, and as many for the output.
Work RecurrentAttention::work(const Call<RecurrentAttention>& call) {
  return work_of(recurrence::make_problem(call.inputs, call.params), 4,
                 bytes_of(to_array(call.inputs)) + bytes_of(to_array(call.outputs)));
}

std::span<const KernelInfo* const> RecurrentAttention::kernels() {
  using namespace recurrent_attention_kernels;
  static const KernelInfo* const list[] = {&cuda_reference(), &cpu(), &reference()};
  return list;
}

void RecurrentAttentionBackward::check(const Inputs&, const Params& params, Dims& dims) {
  recurrence::check(kName, params, dims);
}

/// As many for the state once more and for its gradient, and for the gradients of query, key and value.
Work RecurrentAttentionBackward::work(const Call<RecurrentAttentionBackward>& call) {
  return work_of(recurrence::make_problem(call.inputs, call.params), 10,
                 bytes_of(to_array(call.inputs)) + bytes_of(to_array(call.outputs)));
}

std::span<const KernelInfo* const> RecurrentAttentionBackward::kernels() {
  using namespace recurrent_attention_kernels;
  static const KernelInfo* const list[] = {&backward_cuda_reference(), &backward_cpu(), &backward_reference()};
  return list;
}

namespace recurrence {

void check(std::string_view op, const RecurrentAttention::Params& params, const Dims& dims) {
  check_heads(op, dims);
  check_states(op, dims);
  check_state_dtype(op, params);
}

Problem make_problem(const RecurrentAttention::Inputs& in, const RecurrentAttention::Params& params) {
  Problem p;
  p.in = in;
  p.num_sequences = p.packed() ? in.cu_seqlens.shape[0] - 1 : in.query.shape[0];
  p.num_rows = in.query.shape[-3];
  p.num_q_heads = in.query.shape[-2];
  p.num_kv_heads = in.key.shape[-2];
  p.key_dim = in.query.shape[-1];
  p.value_dim = in.value.shape[-1];
  p.scale = params.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(p.key_dim)));
  p.reverse = params.reverse;
  return p;
}

Rows Problem::rows_of(const Tensor& t) const {
  if (!t.present()) return {};
  const int row = packed() ? 0 : 1;
  return {.batch = packed() ? 0 : t.strides[0], .row = t.strides[row], .head = t.strides[row + 1]};
}

States Problem::states_of(const Tensor& t) const {
  if (!t.present()) return {};
  return {.sequence = t.strides[0], .head = t.strides[1], .key = t.strides[2]};
}

}  // namespace recurrence
}  // namespace ejk
