// Softmax of a row of scores that arrives in parts (Milakov and Gimelshein, "Online normalizer calculation for
// softmax", arXiv:1805.02867): arithmetic only, also compiled for the host, where the tests hold it against the softmax
// of the whole row.
#pragma once

#include "ejkernel/platform/cuda/device/special.cuh"
#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

/// What is known of a row after some of its parts. A part comes in two steps: its maximum, by follow(), whose factor is
/// owed to everything summed so far; then its scores one by one, by weigh().
///
/// Threads that share a row agree on its maximum, and each sums the scores it holds: `sum` is the row's after they have
/// been added up. `scale_log2` is the factor of the logits times log2(e), the same in every call, and positive.
struct OnlineSoftmax {
  float maximum;  ///< of the scores whose factor is not owed any more
  float shift;    ///< weights are 2^(score * scale_log2 - shift); 0 while the row has seen nothing
  float sum;      ///< of the weights

  EJK_DEVICE void clear() {
    maximum = kNegativeInfinity;
    shift = sum = 0;
  }

  /// How far the maximum is behind m.
  EJK_DEVICE float behind(float m) const { return m - maximum; }

  /// The first part: nothing was summed, nothing is owed.
  EJK_DEVICE void begin(float m, float scale_log2) {
    maximum = m;
    shift = m == kNegativeInfinity ? 0 : m * scale_log2;
  }
  /// Takes the greater maximum, and returns the factor of what was summed with the old one.
  EJK_DEVICE float follow(float m, float scale_log2) {
    const float old = maximum * scale_log2;
    begin(greater(maximum, m), scale_log2);
    const float factor = exp2_approximate(old - shift);
    sum *= factor;
    return factor;
  }
  /// A score's weight, which is summed.
  EJK_DEVICE float weigh(float score, float scale_log2) {
    const float weight = exp2_approximate(multiply_add(score, scale_log2, -shift));
    sum += weight;
    return weight;
  }

  /// After the last part: a logit in powers of two that the denominator has and the outputs have not (a sink). Returns
  /// the factor of what was summed.
  EJK_DEVICE float add(float logit) {
    if (logit == kNegativeInfinity) return 1;
    const float to = sum == 0 ? logit : greater(shift, logit);
    const float factor = sum == 0 ? 0 : exp2_approximate(shift - to);
    sum = sum * factor + exp2_approximate(logit - to);
    shift = to;
    return factor;
  }

  /// The factor that makes sums of weights sums of probabilities; 0 for a row that has seen nothing.
  EJK_DEVICE float normalizer() const { return sum == 0 ? 0 : reciprocal_approximate(sum); }
  /// log(sum(exp(logits))); -inf for a row that has seen nothing.
  EJK_DEVICE float log_sum_exp() const { return sum == 0 ? kNegativeInfinity : (shift + log2_approximate(sum)) * kLn2; }
};

}  // namespace ejk::cuda
