// A problem: one call of an operation with its tensors in guarded memory, and the words that make it again.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ejkernel/core/operation.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/testing/buffer.h"

namespace ejk::testing {

/// How much work a random problem may be: `tiny` for finite differences and thousands of reruns, `normal` for accuracy.
enum class Size : uint8_t { tiny, small, normal };
std::string_view name(Size size);

/// An operation's declaration as the library registers it. `operation<Op>()` would need the operation's own functions,
/// which a shared library does not export.
template <class Op>
const Operation& declaration() {
  return *KernelRegistry::instance().find(Op::kName)->declaration;
}

struct Problem {
  const Operation* operation = nullptr;
  std::string label = {};   ///< what it is, for people: "bf16 b=2 q=17 k=33 heads=4/2 d=64 causal"
  std::string replay = {};  ///< what makes it again: "--seed=123", "--case=llama3_8b_prefill_1k"
  uint64_t seed = 0;
  std::vector<Placed> inputs = {};  ///< in field order; absent ones default-constructed
  ParamsBlock params = {};

  /// All inputs absent, parameters at their defaults.
  static Problem of(const Operation& operation);

  /// Places an input by name and returns its view, whose elements are still to be set.
  Tensor add(std::string_view input, DType dtype, const Shape& shape, const Layout& layout = {});
  Tensor view(std::string_view input) const;
  std::vector<Tensor> views() const;
};

/// The same call with every present input copied into a layout of its own.
Problem relaid(const Problem& problem, const std::function<Layout(size_t input)>& layout);
/// The same call with the inputs of one floating dtype converted to another.
Problem converted(const Problem& problem, DType from, DType to);

/// Whether the result has the same bits in every run: always, unless a parameter `deterministic` is false.
bool promises_equal_bits(const Problem& problem);
/// The same call with that promise.
Problem with_equal_bits(Problem problem);

/// `ejk check flash_attention --kernel=cpu --seed=123`: the one command that runs it again.
std::string replay_command(const Problem& problem, const KernelInfo& kernel);
/// "--kernel=cpu"; for one of a GPU the device as well.
std::string kernel_flags(const KernelInfo& kernel);

/// Sets every element, in row-major order, to what `value(flat_index)` returns.
template <class F>
void fill(const Tensor& tensor, F&& value) {
  const int64_t row = tensor.rank() == 0 ? 1 : tensor.shape[-1], step = tensor.rank() == 0 ? 1 : tensor.strides[-1];
  for (int64_t first = 0; first < tensor.num_elements(); first += row) {
    const int64_t offset = element_offset(tensor, first);
    for (int64_t k = 0; k < row; ++k)
      store_from_double(tensor.data, tensor.dtype, offset + k * step, static_cast<double>(value(first + k)));
  }
}
void fill_normal(const Tensor& tensor, Random& random, double deviation = 1);
void fill_values(const Tensor& tensor, const std::vector<int64_t>& values);

}  // namespace ejk::testing
