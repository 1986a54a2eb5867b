// Inputs made up for a call whose tensors have no data: what is tuned, timed or tried without anybody's own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/core/tensor.h"

namespace ejk {

/// Random contents for a call's inputs that respect what their numbers mean, as names and contracts of the declaration
/// say it: offsets rise from 0 to the number of rows, sizes of groups add up to it, lengths are the most that fits,
/// tables name existing pages in random order, segments are runs, masks let most through, scales are near 1 and those
/// of integer codes so small that values are, codes without one are small themselves, weights keep sums below 1, gates
/// are logarithms of decays, a log-sum-exp is that of as many normal logits, gates that a forward kept are those that
/// it gives for the other inputs (it runs). Everything else is normally distributed. The same seed gives the same
/// contents.
///
/// `inputs` are specs in host memory; what comes back has their dtypes, shapes and strides. Absent ones stay absent.
struct SyntheticInputs {
  std::vector<Tensor> tensors;
  std::vector<Array> memory;  ///< what the tensors view
};
EJK_API SyntheticInputs make_synthetic_inputs(const Operation& operation, std::span<const Tensor> inputs,
                                              const ParamsBlock& params, uint64_t seed);

/// Of a gradient's inputs the gates that its forward kept, where they are present: the forward runs on the others. A
/// kernel may also compute them anew, so that a call with any other gates would have two right answers. Only needed
/// after inputs were changed; `make_synthetic_inputs` has done it.
EJK_API void fill_kept_gates(const Operation& gradient, std::span<const Tensor> inputs, const ParamsBlock& params);

/// Whether every input that is given has data, and nothing need be made up.
EJK_API bool have_data(std::span<const Tensor> inputs);
/// The most that copies of a call's inputs, made up or its own, may take of the host: a quarter of what is free.
double most_copied_bytes();

/// The memory that they take: all that the inputs' strides span.
EJK_API double synthetic_bytes(std::span<const Tensor> inputs);

/// Normally distributed contents for a tensor of floating dtype in host memory, gaps between its strides included.
EJK_API void fill_normal(const Tensor& tensor, uint64_t seed);

}  // namespace ejk
