#include "ejkernel/ops/flash_attention/flash_attention.h"

#include <string>

#include "ejkernel/core/error.h"
#include "ejkernel/core/log.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/ops/flash_attention/attention_problem.h"

namespace ejk {
namespace {

constexpr int64_t kMaxHeadDim = 512;
constexpr int64_t kScaleBlock = 128;  // tokens that share an 8-bit scale

void require(bool ok, std::string_view op, std::string_view argument, std::string_view expected, const std::string& got,
             std::string_view fix) {
  if (!ok) throw_invalid(op, argument, expected, got, fix);
}

void check_heads(std::string_view op, const Dims& dims) {
  const int64_t q_heads = dims["num_q_heads"], kv_heads = dims["num_kv_heads"];
  require(q_heads >= 1, op, "query num_q_heads", "be at least 1", std::to_string(q_heads), "pass at least one head");
  require(kv_heads >= 1, op, "key num_kv_heads", "be at least 1", std::to_string(kv_heads), "pass at least one head");
  require(q_heads % kv_heads == 0, op, "query num_q_heads",
          "be a multiple of key num_kv_heads " + std::to_string(kv_heads), std::to_string(q_heads),
          "every kv head serves the same number of query heads");
  for (const char* name : {"head_dim", "value_dim"})
    require(dims[name] >= 1 && dims[name] <= kMaxHeadDim, op, name, "be 1 to 512", std::to_string(dims[name]),
            "split larger heads");
}

void check_segments(std::string_view op, const FlashAttention::Inputs& in) {
  if (!in.q_segment_ids.present() && in.kv_segment_ids.present())
    throw_invalid(op, "q_segment_ids", "be given with kv_segment_ids", "nothing",
                  "pass the ids of the queries as well");
  if (!in.q_segment_ids.present() || in.kv_segment_ids.present()) return;
  const int64_t q_len = in.query.shape[1], kv_len = in.key.shape[1];
  require(q_len == kv_len, op, "kv_segment_ids", "be given when q_len and kv_len differ",
          "nothing (q_len " + std::to_string(q_len) + ", kv_len " + std::to_string(kv_len) + ")",
          "pass the ids of the keys");
}

void check_scale(std::string_view op, std::string_view name, const Tensor& scale, const Tensor& of) {
  if (!scale.present()) return;
  require(bits(of.dtype) <= 8, op, name, "be left out unless its tensor is 8-bit",
          std::string(ejk::name(of.dtype)) + " data", "scale the tensor itself");
  if (scale.rank() != 3) return;
  const int64_t blocks = (of.shape[1] + kScaleBlock - 1) / kScaleBlock;
  require(scale.shape[1] == blocks, op, name, "have one block per 128 tokens, " + std::to_string(blocks),
          std::to_string(scale.shape[1]), "compute the scales per block of 128 tokens");
}

/// (query, key) pairs over all heads.
double pair_work(const FlashAttention::Inputs& in, const FlashAttention::Params& params) {
  return attn::visible_pairs(in, params) * static_cast<double>(in.query.shape[-2]);
}

}  // namespace

void attn::check(std::string_view op, const FlashAttention::Inputs& in, const FlashAttention::Params& params,
                 const Dims& dims) {
  check_heads(op, dims);
  check_segments(op, in);
  check_scale(op, "q_scale", in.q_scale, in.query);
  check_scale(op, "k_scale", in.k_scale, in.key);
  check_scale(op, "v_scale", in.v_scale, in.value);
  const bool packed = in.cu_seqlens_q.present();
  require(packed || !params.max_seqlen_q, op, "max_seqlen_q", "be left out in the batched form", "a value",
          "it belongs to packed calls");
  require(packed || !params.max_seqlen_k, op, "max_seqlen_k", "be left out in the batched form", "a value",
          "it belongs to packed calls");
  if (params.out_dtype)
    require((set_of(*params.out_dtype) & kFloat) != 0, op, "out_dtype", "be f64, f32, f16 or bf16",
            std::string(name(*params.out_dtype)), "convert the result yourself");
  const Tensor& sinks = in.softmax_aux;
  if (sinks.present() && sinks.rank() == 1 && sinks.shape[0] == dims["num_q_heads"] && sinks.shape[0] > 1)
    log_once("softmax_aux rank", LogLevel::warning,
             "softmax_aux of rank 1 is shared by all heads; one sink per head has shape [num_q_heads, 1]");
}

Work attn::forward_work(const FlashAttention::Inputs& in, const FlashAttention::Params& params) {
  const double per_pair = 2.0 * static_cast<double>(in.query.shape[-1] + in.value.shape[-1]);
  return {.flops = pair_work(in, params) * per_pair, .bytes = bytes_of(to_array(in))};
}

Work attn::backward_work(const FlashAttention::Inputs& in, const FlashAttention::Params& params) {
  // S, dQ and dK cost head_dim each; dP and dV value_dim each.
  const double per_pair = 2.0 * static_cast<double>(3 * in.query.shape[-1] + 2 * in.value.shape[-1]);
  return {.flops = pair_work(in, params) * per_pair, .bytes = bytes_of(to_array(in))};
}

void FlashAttention::check(const Inputs& in, const Params& params, Dims& dims) { attn::check(kName, in, params, dims); }

Work FlashAttention::work(const Call<FlashAttention>& call) {
  Work work = attn::forward_work(call.inputs, call.params);
  work.bytes += bytes_of(to_array(call.outputs));
  return work;
}

std::span<const KernelInfo* const> FlashAttention::kernels() {
  using namespace flash_attention_kernels;
  static const KernelInfo* const list[] = {&cuda_sm90(), &cuda_sm80(), &cuda_reference(), &cpu(), &reference()};
  return list;
}

void FlashAttentionBackward::check(const Inputs& in, const Params& params, Dims& dims) {
  attn::check(kName, in, params, dims);
  require(bits(in.query.dtype) >= 16, kName, "query dtype", "be f64, f32, f16 or bf16",
          std::string(name(in.query.dtype)), "8-bit codes have no gradient: differentiate the dequantised tensors");
  require(params.normalize_output, kName, "normalize_output", "be true", "false",
          "only the forward returns unnormalised sums");
}

Work FlashAttentionBackward::work(const Call<FlashAttentionBackward>& call) {
  const auto& in = call.inputs;
  Work work = attn::backward_work(in, call.params);
  work.bytes += bytes_of(std::array{in.out, in.lse, in.d_out, in.d_lse}) + bytes_of(to_array(call.outputs));
  return work;
}

std::span<const KernelInfo* const> FlashAttentionBackward::kernels() {
  using namespace flash_attention_kernels;
  static const KernelInfo* const list[] = {&backward_cuda_sm90(), &backward_cuda_reference(), &backward_cpu(),
                                           &backward_reference()};
  return list;
}

}  // namespace ejk
