// What the host halves of the Hopper attention kernels share: which calls they take, tensor maps, the order of tiles.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ejkernel/core/error.h"
#include "ejkernel/ops/flash_attention/attention_cuda_internal.h"
#include "ejkernel/platform/cuda/tensor_map.h"

namespace ejk::attn {

Support supports_sm90(const FlashAttention::Inputs& in, const FlashAttention::Params& params,
                      const DeviceProperties& device) {
  const auto no = [](std::string reason) { return Support::no(std::move(reason)); };
  if (device.compute_capability != 90) return no("it is written for compute capability 9.0 (Hopper)");
  if (in.query.dtype != DType::bf16 && in.query.dtype != DType::f16) return no("it takes bf16 and f16");
  if (in.cu_seqlens_q.present() || in.seqused_k.present()) return no("it takes fixed lengths");
  if (in.bias.present() || in.attention_mask.present() || in.q_segment_ids.present())
    return no("it takes no bias, boolean mask or segments");
  if (in.softmax_aux.present()) return no("it takes no sinks");
  if (!params.sliding_window.unbounded()) return no("it takes no window");
  if (params.logits_soft_cap) return no("it has no soft cap");
  if (params.dropout_prob > 0) return no("it has no dropout");
  if (!params.normalize_output) return no("it normalises its output");
  if (params.out_dtype && *params.out_dtype != in.query.dtype) return no("its output has the query's dtype");
  if (params.softmax_scale && !is_factor(*params.softmax_scale * std::numbers::log2e)) return no(kScaleIsFactor);
  const int64_t dim = in.query.shape[3];
  if (in.value.shape[3] != dim || (dim != 64 && dim != 128 && dim != 256))
    return no("its head_dim and value_dim are equal, and 64, 128 or 256");
  const Sm90Lengths lengths(in, params);
  if (lengths.num_rows == 0 || lengths.kv_len <= 0) return no("there is no key to see");
  constexpr int64_t kMostRows = INT32_MAX - 1024;  // rounded up to tiles, and with a diagonal, they still fit
  if (lengths.num_rows > kMostRows || in.key.shape[1] > kMostRows) return no("it counts rows with 32 bits");
  for (const Tensor* tensor : {&in.query, &in.key, &in.value})
    if (!fits_tensor_map(*tensor)) return no("TMA takes addresses and strides that are multiples of 16 bytes");
  return Support::yes();
}

Sm90Lengths::Sm90Lengths(const FlashAttention::Inputs& in, const FlashAttention::Params& params) {
  const int64_t q_len = in.query.shape[1];
  kv_len = in.key.shape[1];
  num_rows = in.query.shape[0] * q_len * in.query.shape[2];
  if (!params.causal) return;
  diagonal = params.causal_align == CausalAlign::bottom_right ? kv_len - q_len : 0;
  kv_len = std::min(kv_len, q_len + diagonal);
}

bool is_factor(double x) { return x > 0 && std::isnormal(static_cast<float>(x)); }

bool fits_tensor_map(const Tensor& t) {
  if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0) return false;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t bytes = t.strides[axis] * 2;
    if (t.shape[axis] > 1 && (bytes <= 0 || bytes % 16 != 0 || bytes >= int64_t{1} << 40)) return false;
  }
  return true;
}

void require_alignment(std::string_view operation, std::string_view argument, const Tensor& t) {
  if (!fits_tensor_map(t))
    throw_invalid(operation, argument, "start at a multiple of 16 bytes, as it did when the call was planned",
                  fmt::format("address {}", t.data), "plan with the tensor that will be run");
}

cuda::TensorMap tile_map(const Tensor& t, int64_t num_rows, int tile_rows) {
  const auto size = [&](int axis) { return static_cast<uint64_t>(t.shape[axis]); };
  // The stride of an axis with one element does not matter, but must be one that TMA takes.
  const auto stride = [&](int axis) { return t.shape[axis] > 1 ? static_cast<uint64_t>(t.strides[axis]) * 2 : 16; };
  const uint64_t sizes[] = {64, static_cast<uint64_t>(num_rows), size(3) / 64, size(2), size(0)};
  const uint64_t strides[] = {stride(1), 128, stride(2), stride(0)};
  const uint32_t box[] = {64, static_cast<uint32_t>(tile_rows), static_cast<uint32_t>(size(3) / 64), 1, 1};
  return cuda::make_tensor_map(t.data, t.dtype, sizes, strides, box, 128);
}

int heads_per_section(int64_t tiles_per_head, int64_t queries_per_kv_head, int num_units) {
  constexpr int64_t kShort = 16;  // tiles; with so few, pairs keep reads of keys spread evenly over time
  if (tiles_per_head <= kShort) return 0;
  // About two rounds of tiles: fewer heads do not balance, more do not stay in the cache.
  const int64_t heads = (num_units * 19 / 10 + tiles_per_head - 1) / tiles_per_head;
  return static_cast<int>((heads + queries_per_kv_head - 1) / queries_per_kv_head * queries_per_kv_head);
}

}  // namespace ejk::attn
