// The ways to say where sequences lie, and the conversions between them (spec: operations, §18). On the host: the
// number of results depends on contents.
//
//   lengths       int32 [N]       a sequence may have length 0
//   cu_seqlens    int32 [N+1]     0 first, never falling: sequence n is rows cu[n] to cu[n+1] of the packed tokens
//   mask          bool  [N, S]    true for the first `length` positions of a row
//   sequence ids  int32 [T]       0 first, never falling; −1 for rows past the last sequence
//   position ids  int32 [T]       0, 1, … inside each sequence; −1 likewise
//   chunk ids     int32 [R, 2]    (sequence, chunk) for each chunk in order, then (−1, −1);
//                                 R = ceil(T/chunk) + N, so that shapes do not depend on contents
//
// Contents that say anything else are an InvalidArgument, never a silent repair.
#pragma once

#include <cstdint>

#include "ejkernel/core/export.h"
#include "ejkernel/core/tensor.h"

namespace ejk {

EJK_API Array cu_seqlens_from_lengths(const Tensor& lengths);
EJK_API Array lengths_from_cu_seqlens(const Tensor& cu_seqlens);

/// No length may exceed `max_length` (S).
EJK_API Array mask_from_lengths(const Tensor& lengths, int64_t max_length);
/// The true positions of each row must come first.
EJK_API Array lengths_from_mask(const Tensor& mask);

/// `num_tokens` is T, at least the end of the last sequence.
EJK_API Array sequence_ids_from_cu_seqlens(const Tensor& cu_seqlens, int64_t num_tokens);
EJK_API Array position_ids_from_cu_seqlens(const Tensor& cu_seqlens, int64_t num_tokens);
/// Ids without tokens are sequences of length 0: only `num_sequences` says how many follow the last id.
EJK_API Array cu_seqlens_from_sequence_ids(const Tensor& sequence_ids, int64_t num_sequences);
EJK_API Array position_ids_from_sequence_ids(const Tensor& sequence_ids);
/// Positions cannot show sequences of length 0: the result numbers the others.
EJK_API Array sequence_ids_from_position_ids(const Tensor& position_ids);

EJK_API Array chunk_ids_from_cu_seqlens(const Tensor& cu_seqlens, int64_t chunk_size, int64_t num_tokens);
/// int32 [N+1]: sequence n has the chunks offsets[n] to offsets[n+1] of the list above.
EJK_API Array chunk_offsets_from_cu_seqlens(const Tensor& cu_seqlens, int64_t chunk_size);

struct CumsumOptions {
  bool reverse = false;    ///< sums from the end
  Tensor cu_seqlens = {};  ///< sums start anew with each sequence; rows that no sequence owns become 0
};

/// Inclusive cumulative sums along `axis` (negative: from the last) of f32, f64 or i32, in the same dtype. Floats are
/// summed in double and rounded once per element; an i32 sum that does not fit is an InvalidArgument.
EJK_API Array global_cumsum(const Tensor& values, int axis, const CumsumOptions& options = {});
/// The same, starting anew every `chunk_size` rows, counted from the start of each sequence.
EJK_API Array local_cumsum(const Tensor& values, int axis, int64_t chunk_size, const CumsumOptions& options = {});

}  // namespace ejk
