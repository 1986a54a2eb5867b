#include "ejkernel/ops/mean_pooling/mean_pooling.h"

#include <string>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_internal.h"

namespace ejk {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Rows of out that chunks need: one per chunk, and when sequences are packed one more for the tail of each.
int64_t count_chunks(std::string_view op, int64_t num_tokens, int64_t chunk_size, int64_t num_tails) {
  int64_t total = 0;
  if (__builtin_add_overflow(divide_up(num_tokens, chunk_size), num_tails, &total))
    throw_invalid(op, "chunk_size", "cut x into at most 2^63 chunks", std::to_string(chunk_size), "use larger chunks");
  return total;
}

int64_t num_tails(const Tensor& cu_seqlens) { return cu_seqlens.present() ? cu_seqlens.shape[0] - 1 : 0; }

}  // namespace

void MeanPooling::check(const Inputs& in, const Params& params, Dims& dims) {
  if (!params.chunk_size) return;
  dims.bind("total_chunks", count_chunks(kName, dims["num_tokens"], *params.chunk_size, num_tails(in.cu_seqlens)));
}

Work MeanPooling::work(const Call<MeanPooling>& call) {
  return {.flops = static_cast<double>(call.inputs.x.num_elements()),
          .bytes = bytes_of(to_array(call.inputs)) + bytes_of(to_array(call.outputs))};
}

std::span<const KernelInfo* const> MeanPooling::kernels() {
  using namespace mean_pooling_kernels;
  static const KernelInfo* const list[] = {&cuda(), &cuda_reference(), &cpu(), &reference()};
  return list;
}

void MeanPoolingBackward::check(const Inputs& in, const Params& params, Dims& dims) {
  const Dims::Entry* of_mask = dims.find("num_tokens");
  if (of_mask == nullptr && !params.num_tokens)
    throw_invalid(kName, "num_tokens", "be given without a mask", "nothing", "pass the number of rows of x");
  const int64_t num_tokens = params.num_tokens.value_or(of_mask != nullptr ? of_mask->value : 0);
  if (of_mask == nullptr)
    dims.bind("num_tokens", num_tokens);
  else if (of_mask->value != num_tokens)
    throw_invalid(kName, "num_tokens", "equal mask num_tokens " + std::to_string(of_mask->value),
                  std::to_string(num_tokens), "pass the forward's mask, or leave num_tokens out");
  if (!params.chunk_size) return;
  const int64_t expected = count_chunks(kName, num_tokens, *params.chunk_size, num_tails(in.cu_seqlens));
  if (dims["total_chunks"] != expected)
    throw_invalid(kName, "d_out total_chunks", "equal the forward's " + std::to_string(expected),
                  std::to_string(dims["total_chunks"]), "pass the forward's num_tokens and chunk_size");
}

Work MeanPoolingBackward::work(const Call<MeanPoolingBackward>& call) {
  return {.flops = static_cast<double>(call.outputs.x.num_elements()),
          .bytes = bytes_of(to_array(call.inputs)) + bytes_of(to_array(call.outputs))};
}

std::span<const KernelInfo* const> MeanPoolingBackward::kernels() {
  using namespace mean_pooling_kernels;
  static const KernelInfo* const list[] = {&backward_cuda(), &backward_cuda_reference(), &backward_cpu(),
                                           &backward_reference()};
  return list;
}

namespace pooling {
namespace {

/// What both directions know, from the tensor that is one of x and d_out; `num_tokens` is set by then.
void resolve(Problem& p, const Tensor& given, const Tensor& mask, const Tensor& cu_seqlens,
             const std::optional<int64_t>& chunk_size) {
  p.mask = mask;
  p.cu_seqlens = cu_seqlens;
  p.chunk_size = chunk_size.value_or(0);
  p.num_batches = p.packed() ? 1 : given.shape[0];
  p.num_sequences = p.packed() ? cu_seqlens.shape[0] - 1 : p.num_batches;
  p.num_heads = p.chunked() ? given.shape[-2] : 1;
  p.dim = given.shape[-1];
  p.num_means = p.packed() ? p.num_sequences : 1;
  if (p.chunked()) p.num_means = divide_up(p.num_tokens, p.chunk_size) + num_tails(cu_seqlens);
}

}  // namespace

Problem make_problem(const MeanPooling::Inputs& in, const MeanPooling::Params& params) {
  Problem p;
  p.num_tokens = in.x.shape[in.cu_seqlens.present() ? 0 : 1];
  resolve(p, in.x, in.mask, in.cu_seqlens, params.chunk_size);
  return p;
}

Problem make_problem(const MeanPoolingBackward::Inputs& in, const MeanPoolingBackward::Params& params) {
  Problem p;
  p.num_tokens = params.num_tokens ? *params.num_tokens : in.mask.shape[1];
  resolve(p, in.d_out, in.mask, in.cu_seqlens, params.chunk_size);
  return p;
}

Sequence Problem::sequence(int64_t index, int64_t first_mean, uint32_t* status) const {
  if (!packed()) return {.batch = index, .begin = 0, .length = num_tokens, .first_mean = 0};
  const untrusted::Span span = untrusted::packed_span(cu_seqlens, index, num_tokens, status);
  return {.batch = 0, .begin = span.begin, .length = span.length, .first_mean = chunked() ? first_mean : index};
}

int64_t Problem::num_means_of(int64_t length) const { return chunked() ? divide_up(length, chunk_size) : 1; }

Group Problem::group(const Sequence& s, int64_t c) const {
  if (!chunked()) return {.batch = s.batch, .begin = s.begin, .length = s.length, .mean = s.first_mean};
  const int64_t from = c * chunk_size;
  return {.batch = s.batch,
          .begin = s.begin + from,
          .length = std::min(chunk_size, s.length - from),
          .mean = s.first_mean + c};
}

Group Problem::group_of_row(const Sequence& s, int64_t i) const { return group(s, chunked() ? i / chunk_size : 0); }

int64_t Problem::count(const Group& g) const {
  if (!mask.present()) return std::max<int64_t>(g.length, 1);
  int64_t count = 0;
  for (int64_t row = g.begin; row < g.begin + g.length; ++row) count += selected(g.batch, row) ? 1 : 0;
  return std::max<int64_t>(count, 1);
}

void Problem::merge_heads(const Tensor& x, const Tensor& out) {
  if (num_heads <= 1 || rows_of(x).head != dim || means_of(out).head != dim) return;
  dim *= num_heads;
  num_heads = 1;
}

Layout Problem::rows_of(const Tensor& x) const {
  if (!x.present()) return {};  // an output that is not wanted
  return {
      .batch = packed() ? 0 : x.strides[0], .row = x.strides[packed() ? 0 : 1], .head = chunked() ? x.strides[-2] : 0};
}

Layout Problem::means_of(const Tensor& out) const {
  if (!packed() && !chunked()) return {.batch = out.strides[0]};
  return rows_of(out);
}

SequenceMap::SequenceMap(const Problem& p, int64_t* first_means, uint32_t* status)
    : p_(p), first_means_(size(p) > 0 ? first_means : nullptr) {
  int64_t first_mean = 0, past = 0;
  for (int64_t n = 0; n < p.num_sequences && p.packed(); ++n) {
    const Sequence s = p.sequence(n, first_mean, status);
    overlapping_ = overlapping_ || s.begin < past || untrusted::index_at(p.cu_seqlens, n + 1) < s.begin;
    past = s.begin + s.length;
    if (first_means_ != nullptr) first_means[n] = first_mean;
    first_mean = p.mean_after(s);
  }
  if (first_means_ != nullptr) first_means[p.num_sequences] = first_mean;
}

Group SequenceMap::group_of_mean(int64_t b, int64_t mean) const {
  if (first_means_ == nullptr) return p_.group(sequence(p_.packed() ? mean : b), p_.chunked() ? mean : 0);
  const int64_t* past = std::upper_bound(first_means_, first_means_ + p_.num_sequences + 1, mean);
  const int64_t index = past - first_means_ - 1;
  if (index == p_.num_sequences) return {.batch = 0, .begin = 0, .length = 0, .mean = mean};
  return p_.group(sequence(index), mean - first_means_[index]);
}

int64_t SequenceMap::first_sequence_past(int64_t row) const {
  int64_t low = 0, high = p_.num_sequences;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (untrusted::index_at(p_.cu_seqlens, middle + 1) > row)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace pooling
}  // namespace ejk
