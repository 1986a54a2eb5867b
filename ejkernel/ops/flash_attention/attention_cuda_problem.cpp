// attn::Problem as device code gets it.
#include "ejkernel/ops/flash_attention/attention_cuda_reference_internal.h"

namespace ejk::attn {

cuda::TensorRef tensor_ref(const Tensor& t, int first, int second, int third) {
  if (!t.present()) return {};
  const auto stride = [&t](int axis) { return axis < 0 || t.shape[axis] == 1 ? 0 : t.strides[axis]; };
  return {t.data, static_cast<cuda::Number>(t.dtype), {stride(first), stride(second), stride(third)}};
}

namespace {

/// [batch, row, head, dim], or packed [row, head, dim].
cuda::TensorRef rows_ref(const Tensor& t) { return t.rank() == 3 ? tensor_ref(t, -1, 0, 1) : tensor_ref(t, 0, 1, 2); }
/// [batch, head, row], or packed [head, row], whatever lies without gaps.
cuda::TensorRef stats_ref(const Tensor& t) { return t.rank() == 2 ? tensor_ref(t, 1, -1, 0) : tensor_ref(t, 2, 0, 1); }
/// [head, sink], or [sink] for all heads.
cuda::TensorRef sinks_ref(const Tensor& t) { return tensor_ref(t, -1, -1, t.rank() == 2 ? 0 : -1); }
/// One number, [head], [batch, block of tokens, head], or [page, slot, head, group of elements].
cuda::TensorRef scale_ref(const Tensor& t) {
  return t.rank() >= 3 ? tensor_ref(t, 0, 1, 2) : tensor_ref(t, -1, -1, t.rank() == 1 ? 0 : -1);
}
cuda::SegmentIds segment_ids(const Tensor& t) {
  return t.present() ? cuda::SegmentIds{t.as<const int>(), t.strides[0]} : cuda::SegmentIds{};
}

}  // namespace

cuda::AttentionProblem cuda_problem(const Problem& p, uint32_t* status) {
  cuda::AttentionProblem to;
  to.query = rows_ref(p.query), to.key = rows_ref(p.key), to.value = rows_ref(p.value);
  to.bias = tensor_ref(p.bias, 0, 1, 2), to.mask = tensor_ref(p.mask, 0, 1, 2);
  to.sinks = sinks_ref(p.sinks);
  to.q_scale = scale_ref(p.q_scale), to.k_scale = scale_ref(p.k_scale), to.v_scale = scale_ref(p.v_scale);
  to.q_segments = segment_ids(p.q_segments), to.kv_segments = segment_ids(p.kv_segments);
  to.cu_seqlens_q = p.cu_seqlens_q.as<const int>(), to.cu_seqlens_k = p.cu_seqlens_k.as<const int>();
  to.used_q = p.used_q.as<const int>(), to.used_k = p.used_k.as<const int>();
  to.dropout_seed = p.dropout_seed.as<const uint32_t>();
  to.status = status;

  to.num_sequences = p.num_sequences;
  to.q_rows = p.q_rows, to.k_rows = p.k_rows;
  to.num_q_heads = p.num_q_heads, to.num_kv_heads = p.num_kv_heads;
  to.head_dim = p.head_dim, to.value_dim = p.value_dim, to.num_sinks = p.num_sinks;
  to.scale = p.scale, to.soft_cap = p.soft_cap;
  to.window_left = p.window.left, to.window_right = p.window.right, to.sink_tokens = p.sink_tokens;
  to.max_q = p.max_q, to.max_k = p.max_k;
  to.keep_scale = p.keep_scale, to.dropout_threshold = p.dropout_threshold;
  to.causal = p.causal, to.bottom_right = p.bottom_right, to.normalize = p.normalize;
  return to;
}

cuda::AttentionResults cuda_results(const ForwardResults& to) {
  return {.out = rows_ref(to.out), .lse = stats_ref(to.lse), .weights = tensor_ref(to.weights, 0, 1, 2)};
}

cuda::AttentionGradients cuda_gradients(const Problem& p, const BackwardInputs& in,
                                        const FlashAttentionBackward::Outputs& to, std::byte* workspace) {
  const bool shared_sinks = p.sinks.rank() == 1;
  return {.out = rows_ref(in.out),
          .d_out = rows_ref(in.d_out),
          .lse = stats_ref(in.lse),
          .d_lse = stats_ref(in.d_lse),
          .d_weights = tensor_ref(in.d_weights, 0, 1, 2),
          .query = rows_ref(to.query),
          .key = rows_ref(to.key),
          .value = rows_ref(to.value),
          .bias = tensor_ref(to.bias, 0, 1, 2),
          .sinks = sinks_ref(to.softmax_aux),
          .bias_batches = p.bias.present() ? p.bias.shape[0] : 0,
          .bias_heads = p.bias.present() ? p.bias.shape[1] : 0,
          .bias_rows = p.bias.present() ? p.bias.shape[2] : 0,
          .sink_heads = shared_sinks ? 1 : p.num_q_heads,
          .rows = reinterpret_cast<cuda::AttentionRow*>(workspace)};
}

}  // namespace ejk::attn
