// The rules of attention (operations §0) read literally, on explicit (sequence, head, query, key) indices and whole
// matrices in double. Slow, and on purpose without a line in common with attention_problem.h and attention_formula.h:
// the reference kernel is tested against it, and it says which positions nobody may read.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ejkernel/ops/flash_attention/flash_attention.h"

namespace ejk::attn {

class Rules {
 public:
  /// One batch entry or packed sequence, with the lengths that are in use.
  struct Part {
    int64_t index = 0;  ///< batch entry, or sequence
    int64_t batch = 0;  ///< index of the tensors' batch axis
    int64_t q_begin = 0, q_len = 0, k_begin = 0, k_len = 0;
  };

  /// `used_q`: queries in use of each batch entry; flash_attention itself has no such input.
  Rules(const FlashAttention::Inputs& inputs, const FlashAttention::Params& params, const Tensor& used_q = {});

  const std::vector<Part>& parts() const { return parts_; }
  /// Rule 4: every mask given allows it.
  bool sees(const Part& part, int64_t head, int64_t i, int64_t j) const;
  /// The status word of a call: which clamps of rule 15 changed something.
  uint32_t status() const { return status_; }
  /// Two parts own the same query row (key row): what it holds is not defined.
  bool parts_share_rows() const;

  int64_t num_batches() const { return packed_ ? 1 : in_.query.shape[0]; }
  int64_t q_rows() const { return in_.query.shape[-3]; }
  int64_t k_rows() const { return in_.key.shape[-3]; }
  int64_t q_heads() const { return in_.query.shape[-2]; }
  int64_t kv_heads() const { return in_.key.shape[-2]; }

  /// Rows of query and of key that some visible pair uses: [batch][row], batch-major.
  struct Used {
    std::vector<bool> query, key;
  };
  Used used() const;

 private:
  void add_packed_parts();
  void add_batch_parts();
  void cut_to_length_in_use(Part& part);
  int64_t length_in_use(const Tensor& lengths, int64_t index, int64_t most);
  struct Span {
    int64_t begin, length;
  };
  Span packed_span(const Tensor& offsets, int64_t n, int64_t rows, std::optional<int64_t> most);

  FlashAttention::Inputs in_;
  FlashAttention::Params params_;
  Tensor used_q_;
  bool packed_;
  std::vector<Part> parts_;
  uint32_t status_ = 0;
};

/// What a probability is multiplied by (rule 11): 65536 / (65536 - t) where it is kept, 0 where it is dropped, 1
/// without dropout.
double keep_factor(const FlashAttention::Inputs& inputs, const FlashAttention::Params& params, int64_t part,
                   int64_t head, int64_t i, int64_t j);

/// out [batch, rows, heads, value_dim] and lse [batch, heads, rows], from whole matrices.
struct DenseResult {
  std::vector<double> out, lse;
};
DenseResult dense_attention(const FlashAttention::Inputs& inputs, const FlashAttention::Params& params);

}  // namespace ejk::attn
