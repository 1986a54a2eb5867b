#include "ejkernel/runtime/synthetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ejkernel/core/random_internal.h"
#include "ejkernel/core/validate.h"

namespace ejk {
namespace {

/// Every element of the memory that a tensor spans, in any order, drawn from a table of `value()`s in its dtype: large
/// tensors are filled at the speed of memory.
template <class Value>
void fill_from_table(const Tensor& t, Random& random, Value&& value) {
  constexpr int64_t kTable = 4096;
  const Array table(t.dtype, {kTable});
  for (int64_t i = 0; i < kTable; ++i) set(table, i, value());
  const auto [first, last] = element_range(t);
  const auto size = static_cast<size_t>(bits(t.dtype) / 8);
  auto* at = t.as<std::byte>() + first * static_cast<int64_t>(size);
  for (int64_t n = first; n < last; ++n, at += size)
    std::memcpy(at, table.as<const std::byte>() + (random.bits() % kTable) * size, size);
}

/// One input, by what its name says of its numbers.
class Filler {
 public:
  Filler(const Tensor& tensor, std::string_view name, const Dims& dims, uint64_t seed)
      : t_(tensor), name_(name), dims_(dims), random_(seed) {}

  void run() {
    if (t_.dtype == DType::boolean) return each([&](int64_t) { return random_.uniform() < 0.9 ? 1 : 0; });
    if (t_.dtype == DType::i8) return each([&](int64_t) { return random_.between(-100, 100); });
    if (name_ == "lse") {  // of the logits that normal queries and keys have
      const double typical = std::log(static_cast<double>(std::max<int64_t>(length_bound(), 1))) + 0.5;
      return fill_from_table(t_, random_, [&] { return typical + 0.1 * random_.normal(); });
    }
    if (is_float(t_.dtype)) {
      const bool scale = name_.ends_with("scale");
      return fill_from_table(t_, random_, [&] { return scale ? 0.5 + random_.uniform() : random_.normal(); });
    }
    if (name_.starts_with("cu_")) return fill_offsets();
    if (name_.find("segment") != std::string_view::npos)
      return each([&](int64_t n) { return 4 * (n % t_.shape[-1]) / t_.shape[-1]; });
    if (name_.find("seq") != std::string_view::npos) return each([&](int64_t) { return length_bound(); });
    each([&](int64_t) { return random_.between(0, (1 << 16) - 1); });
  }

 private:
  template <class F>
  void each(F&& value) {
    for (int64_t n = 0; n < t_.num_elements(); ++n) set(t_, n, static_cast<double>(value(n)));
  }

  /// The rows that offsets cut up: `total_q` for cu_seqlens_q, or the number of tokens.
  int64_t total() const {
    for (const Dims::Entry& dim : dims_.entries())
      if (dim.name.starts_with("total_") && name_.back() == dim.name.back()) return dim.value;
    for (const Dims::Entry& dim : dims_.entries())
      if (dim.name == "num_tokens") return dim.value;
    return 0;
  }

  /// Sorted random cuts, the first at 0 and the last at the end.
  void fill_offsets() {
    std::vector<int64_t> cuts(static_cast<size_t>(t_.num_elements()));
    if (cuts.empty()) return;
    for (int64_t& cut : cuts) cut = random_.between(0, total());
    std::sort(cuts.begin(), cuts.end());
    cuts.front() = 0;
    cuts.back() = total();
    each([&](int64_t n) { return cuts[static_cast<size_t>(n)]; });
  }

  /// The longest a sequence may be.
  int64_t length_bound() const {
    const std::string_view dim = name_.starts_with("q") ? "q_len" : "kv_len";
    if (const Dims::Entry* found = dims_.find(dim)) return found->value;
    return total();
  }

  const Tensor& t_;
  std::string_view name_;
  const Dims& dims_;
  Random random_;
};

}  // namespace

SyntheticInputs make_synthetic_inputs(const Operation& operation, std::span<const Tensor> inputs,
                                      const ParamsBlock& params, uint64_t seed) {
  const CheckedCall checked = check_call(operation, inputs, params);
  SyntheticInputs made{.tensors = {inputs.begin(), inputs.end()}, .memory = {}};
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensor& t = made.tensors[i];
    if (!t.present()) continue;
    const auto [first, last] = element_range(t);
    const Array& memory = made.memory.emplace_back(t.dtype, Shape{last - first});
    t.device = {};
    t.data = memory.as<std::byte>() - first * bits(t.dtype) / 8;
    // Offsets of queries and keys share their draws, so that equal totals mean self-attention.
    const bool offsets = operation.inputs[i].name.starts_with("cu_");
    Filler(t, operation.inputs[i].name, checked.dims, seed * 64 + (offsets ? 63 : i)).run();
  }
  return made;
}

double synthetic_bytes(std::span<const Tensor> inputs) {
  double bytes = 0;
  for (const Tensor& t : inputs) {
    const auto [first, last] = element_range(t);
    bytes += (static_cast<double>(last) - static_cast<double>(first)) * bits(t.dtype) / 8;
  }
  return bytes;
}

void fill_normal(const Tensor& tensor, uint64_t seed) {
  Random random(seed);
  fill_from_table(tensor, random, [&] { return random.normal(); });
}

}  // namespace ejk
