#include "ejkernel/ops/flash_attention/attention_rules_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ejkernel/core/philox.h"

namespace ejk::attn {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Element of a tensor by indices; an axis of extent 1 broadcasts.
double at(const Tensor& t, std::initializer_list<int64_t> indices) {
  int64_t offset = 0;
  int axis = 0;
  for (int64_t index : indices) {
    offset += (t.shape[axis] == 1 ? 0 : index) * t.strides[axis];
    ++axis;
  }
  return load_as_double(t.data, t.dtype, offset);
}

int64_t clamped(double value, int64_t most) { return std::clamp<int64_t>(static_cast<int64_t>(value), 0, most); }

/// Row `row` of a [batch, rows, heads, dim] or [rows, heads, dim] tensor.
double row_at(const Tensor& t, int64_t batch, int64_t row, int64_t head, int64_t d) {
  const int64_t offset = t.rank() == 4 ? batch * t.strides[0] : 0;
  return load_as_double(t.data, t.dtype, offset + row * t.strides[-3] + head * t.strides[-2] + d * t.strides[-1]);
}

/// Scale of 8-bit codes: one, per head, or per block of 128 tokens.
double code_scale(const Tensor& t, int64_t batch, int64_t row, int64_t head) {
  if (!t.present()) return 1;
  if (t.rank() == 0) return at(t, {});
  if (t.rank() == 1) return load_as_double(t.data, t.dtype, head * t.strides[0]);
  return load_as_double(t.data, t.dtype, batch * t.strides[0] + row / 128 * t.strides[1] + head * t.strides[2]);
}

}  // namespace

Rules::Rules(const FlashAttention::Inputs& inputs, const FlashAttention::Params& params, const Tensor& used_q)
    : in_(inputs), params_(params), used_q_(used_q), packed_(inputs.cu_seqlens_q.present()) {
  if (packed_)
    add_packed_parts();
  else
    add_batch_parts();
}

Rules::Span Rules::packed_span(const Tensor& offsets, int64_t n, int64_t rows, std::optional<int64_t> most) {
  const double first = get(offsets, n), past = get(offsets, n + 1);
  if (first < 0 || past < 0 || first > static_cast<double>(rows) || past > static_cast<double>(rows) || past < first)
    status_ |= status::kOffsets;
  Span span{clamped(first, rows), 0};
  span.length = std::max<int64_t>(clamped(past, rows) - span.begin, 0);
  if (most && span.length > *most) status_ |= status::kLength, span.length = *most;
  return span;
}

int64_t Rules::length_in_use(const Tensor& lengths, int64_t index, int64_t most) {
  if (!lengths.present()) return most;
  const double used = get(lengths, index);
  if (used < 0 || used > static_cast<double>(most)) status_ |= status::kLength;
  return clamped(used, most);
}

void Rules::cut_to_length_in_use(Part& part) {
  part.q_len = length_in_use(used_q_, part.index, part.q_len);
  part.k_len = length_in_use(in_.seqused_k, part.index, part.k_len);
}

void Rules::add_packed_parts() {
  for (int64_t n = 0; n + 1 < in_.cu_seqlens_q.shape[0]; ++n) {
    const Span q = packed_span(in_.cu_seqlens_q, n, q_rows(), params_.max_seqlen_q);
    const Span k = packed_span(in_.cu_seqlens_k, n, k_rows(), params_.max_seqlen_k);
    parts_.push_back(
        {.index = n, .batch = 0, .q_begin = q.begin, .q_len = q.length, .k_begin = k.begin, .k_len = k.length});
    cut_to_length_in_use(parts_.back());
  }
}

void Rules::add_batch_parts() {
  for (int64_t b = 0; b < in_.query.shape[0]; ++b) {
    parts_.push_back({.index = b, .batch = b, .q_len = q_rows(), .k_len = k_rows()});
    cut_to_length_in_use(parts_.back());
  }
}

bool Rules::sees(const Part& part, int64_t head, int64_t i, int64_t j) const {
  if (i >= part.q_len || j >= part.k_len) return false;
  if (in_.attention_mask.present() && at(in_.attention_mask, {part.index, head, i, j}) == 0) return false;
  if (in_.bias.present() && at(in_.bias, {part.index, head, i, j}) == -kInfinity) return false;
  if (in_.q_segment_ids.present()) {
    const Tensor& of_keys = in_.kv_segment_ids.present() ? in_.kv_segment_ids : in_.q_segment_ids;
    const double query_id = get(in_.q_segment_ids, part.index * q_rows() + i);
    const double key_id = get(of_keys, part.index * k_rows() + j);
    if (query_id < 0 || key_id < 0 || query_id != key_id) return false;
  }
  const int64_t p = i + (params_.causal_align == CausalAlign::bottom_right ? part.k_len - part.q_len : 0);
  if (params_.causal && j > p) return false;
  if (j < params_.attention_sink_size) return true;  // exempt from the window, and from nothing else
  const Window& window = params_.sliding_window;
  // In double: a window may be as wide as an integer gets.
  const auto position = static_cast<double>(p), key = static_cast<double>(j);
  if (window.left >= 0 && key < position - static_cast<double>(window.left)) return false;
  const bool left_only = window.symmetric && params_.causal;
  const int64_t right = left_only ? 0 : window.right;
  return (left_only ? window.left : right) < 0 || key <= position + static_cast<double>(right);
}

bool Rules::parts_share_rows() const {
  if (!packed_) return false;
  std::vector<int> q_owners(static_cast<size_t>(q_rows())), k_owners(static_cast<size_t>(k_rows()));
  for (const Part& part : parts_) {
    for (int64_t i = 0; i < part.q_len; ++i)
      if (++q_owners[static_cast<size_t>(part.q_begin + i)] > 1) return true;
    for (int64_t j = 0; j < part.k_len; ++j)
      if (++k_owners[static_cast<size_t>(part.k_begin + j)] > 1) return true;
  }
  return false;
}

Rules::Used Rules::used() const {
  Used used{std::vector<bool>(static_cast<size_t>(num_batches() * q_rows())),
            std::vector<bool>(static_cast<size_t>(num_batches() * k_rows()))};
  const bool heads_alike = !in_.bias.present() && !in_.attention_mask.present();
  for (const Part& part : parts_)
    for (int64_t h = 0; h < (heads_alike ? 1 : q_heads()); ++h)
      for (int64_t i = 0; i < part.q_len; ++i)
        for (int64_t j = 0; j < part.k_len; ++j) {
          if (!sees(part, h, i, j)) continue;
          used.query[static_cast<size_t>(part.batch * q_rows() + part.q_begin + i)] = true;
          used.key[static_cast<size_t>(part.batch * k_rows() + part.k_begin + j)] = true;
        }
  return used;
}

namespace {

/// One row of the score matrix, by the words of rules 2, 3, 8, 10, 11 and 16.
class DenseRow {
 public:
  DenseRow(const Rules& rules, const FlashAttention::Inputs& in, const FlashAttention::Params& params)
      : rules_(rules), in_(in), params_(params) {}

  double logit(const Rules::Part& part, int64_t h, int64_t i, int64_t j) const {
    const int64_t g = h / (rules_.q_heads() / rules_.kv_heads()), dims = in_.query.shape[-1];
    const int64_t q_row = part.q_begin + i, k_row = part.k_begin + j;
    double product = 0;
    for (int64_t d = 0; d < dims; ++d)
      product += row_at(in_.query, part.batch, q_row, h, d) * row_at(in_.key, part.batch, k_row, g, d);
    product *= code_scale(in_.q_scale, part.batch, i, h) * code_scale(in_.k_scale, part.batch, j, g);
    double s = params_.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(dims))) * product;
    if (in_.bias.present()) s += at(in_.bias, {part.index, h, i, j});
    if (params_.logits_soft_cap) s = *params_.logits_soft_cap * std::tanh(s / *params_.logits_soft_cap);
    return s;
  }

  std::vector<double> sinks(int64_t h) const {
    std::vector<double> all;
    if (!in_.softmax_aux.present()) return all;
    for (int64_t a = 0; a < in_.softmax_aux.shape[-1]; ++a)
      all.push_back(in_.softmax_aux.rank() == 1 ? get(in_.softmax_aux, a)
                                                : get(in_.softmax_aux, h * in_.softmax_aux.shape[1] + a));
    return all;
  }

  double value(const Rules::Part& part, int64_t h, int64_t j, int64_t d) const {
    const int64_t g = h / (rules_.q_heads() / rules_.kv_heads());
    return row_at(in_.value, part.batch, part.k_begin + j, g, d) * code_scale(in_.v_scale, part.batch, j, g);
  }

 private:
  const Rules& rules_;
  const FlashAttention::Inputs& in_;
  const FlashAttention::Params& params_;
};

double log_sum_exp(const std::vector<double>& logits) {
  double most = -kInfinity, sum = 0;
  for (double x : logits) most = std::max(most, x);
  if (most == -kInfinity) return most;
  for (double x : logits) sum += std::exp(x - most);
  return most + std::log(sum);
}

}  // namespace

double keep_factor(const FlashAttention::Inputs& in, const FlashAttention::Params& params, int64_t part, int64_t head,
                   int64_t i, int64_t j) {
  const double t = std::min(std::floor(65536 * params.dropout_prob + 0.5), 65535.0);
  if (t == 0) return 1;
  const auto group = static_cast<uint32_t>(4 * (j / 32) + (j % 8) / 2);
  const auto piece = static_cast<size_t>(2 * ((j % 32) / 8) + j % 2);
  const bool seeded = in.dropout_seed.present();
  const uint32_t seed = seeded ? static_cast<uint32_t>(get(in.dropout_seed, 0)) : 0;
  const uint32_t offset = seeded ? static_cast<uint32_t>(get(in.dropout_seed, 1)) : 0;
  const PhiloxCounter random = philox4x32(
      {{group, static_cast<uint32_t>(i), static_cast<uint32_t>(head), static_cast<uint32_t>(part)}}, {{seed, offset}});
  const uint32_t draw = random.words[piece / 2] >> (16 * (piece % 2)) & 0xffff;
  return draw >= t ? 65536 / (65536 - t) : 0;
}

DenseResult dense_attention(const FlashAttention::Inputs& in, const FlashAttention::Params& params) {
  const Rules rules(in, params);
  const DenseRow row(rules, in, params);
  const int64_t rows = rules.q_rows(), heads = rules.q_heads(), dims = in.value.shape[-1];
  DenseResult result{std::vector<double>(static_cast<size_t>(rules.num_batches() * rows * heads * dims)),
                     std::vector<double>(static_cast<size_t>(rules.num_batches() * rows * heads))};
  for (int64_t b = 0; b < rules.num_batches(); ++b)  // rows that no part owns see no key
    for (int64_t h = 0; h < heads; ++h)
      std::fill_n(result.lse.begin() + (b * heads + h) * rows, rows, log_sum_exp(row.sinks(h)));

  for (const Rules::Part& part : rules.parts())
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < part.q_len; ++i) {
        std::vector<int64_t> keys;
        std::vector<double> logits;
        for (int64_t j = 0; j < part.k_len; ++j)
          if (rules.sees(part, h, i, j))  // a logit of -inf has no weight: rule 9
            if (const double s = row.logit(part, h, i, j); s != -kInfinity) keys.push_back(j), logits.push_back(s);
        std::vector<double> all = row.sinks(h);
        all.insert(all.end(), logits.begin(), logits.end());
        const double lse = log_sum_exp(all);
        const int64_t r = part.q_begin + i;
        result.lse[static_cast<size_t>((part.batch * heads + h) * rows + r)] = lse;
        if (keys.empty()) continue;
        const double shift = params.normalize_output ? lse : *std::max_element(logits.begin(), logits.end());
        for (int64_t d = 0; d < dims; ++d) {
          double sum = 0;
          for (size_t n = 0; n < keys.size(); ++n)
            sum += std::exp(logits[n] - shift) * keep_factor(in, params, part.index, h, i, keys[n]) *
                   row.value(part, h, keys[n], d);
          result.out[static_cast<size_t>(((part.batch * rows + r) * heads + h) * dims + d)] = sum;
        }
      }
  return result;
}

}  // namespace ejk::attn
