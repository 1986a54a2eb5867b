// Attention of one query row over parts of its keys, and how parts become one. Included once per instruction set, after
// simd-inl.h.

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

/// What a row has summed over some keys: weights e^(logit - shift), their sum, and sums of weight * value. `sum` is 0
/// where it saw no key.
struct RowPart {
  float* shift;
  float* sum;
  float* values;  ///< [count], aligned, padded to whole vectors
};

/// Adds the keys of `part` to `total`. Parts that are added one by one, in the same order, give the same bits whoever
/// summed them.
inline void add_part(const RowPart& total, const RowPart& part, int64_t count) {
  if (*part.sum == 0) return;
  const float shift = *total.sum == 0 ? *part.shift : std::max(*total.shift, *part.shift);
  const auto decay = [&](const RowPart& one) {
    return *one.sum == 0 ? 0.0f : static_cast<float>(std::exp(static_cast<double>(*one.shift) - shift));
  };
  const float of_total = decay(total), of_part = decay(part);
  *total.sum = *total.sum * of_total + *part.sum * of_part;
  *total.shift = shift;
  const FloatTag d;
  const FloatV x = hn::Set(d, of_total), y = hn::Set(d, of_part);
  for (int64_t i = 0; i < count; i += lanes()) {
    const FloatV kept = hn::Mul(hn::Load(d, total.values + i), x);
    hn::Store(hn::MulAdd(hn::Load(d, part.values + i), y, kept), d, total.values + i);
  }
}

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
