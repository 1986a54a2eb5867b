// The oracle that the attention operations share: outputs and gradients of softmax attention in float64, with the S and
// e_base of the error rule (reliability A6.2). Inputs are taken to float64 first, so that one instantiation of the
// formula serves every dtype.
//
// S of an element is the square root of the sum of the squared terms of the sum that makes it:
//   out[d]     over keys: P f V[d]
//   lse        over keys: P; and each logit is a sum itself: the largest over the keys of
//              sqrt(sum over d of (scale q k)^2 + bias^2). Both combined. Statistics are float32 for every narrower
//              input (operations, rule 12), so lse is judged with float32's constants.
//   dq[d]      over keys: D k[d];  dk[d], dbias over queries: D q[d], D; where the size D of dS is
//              P (f sqrt(sum (dO V)^2) + sqrt(sum (dO O)^2) + |dlse|) |slope of the cap|
//   dv[d]      over queries: P f dO[d]
//   dsinks     over queries: e^(sink - lse) (sqrt(sum (dO O)^2) + |dlse|)
// and for the operation that returns its weights W = P f and takes their cotangent dW:
//   W          W sqrt(1 + sum over d of (scale q k)^2 + bias^2): the element itself, and the sum in its exponent
//   dW joins   sqrt(sum (dO V)^2 + dW^2) and sqrt(sum (dO O)^2 + sum over keys of (W dW)^2)
#pragma once

#include <array>
#include <vector>

#include "ejkernel/ops/flash_attention/attention_problem.h"
#include "ejkernel/testing/operation.h"

namespace ejk::testing {

/// One output while it is being made: the value, the squares of its terms, and three baseline runs.
struct Sum {
  explicit Sum(size_t size = 0) : ref(size), squares(size), runs{ref, ref, ref} {}
  std::vector<double> ref, squares;
  std::array<std::vector<double>, 3> runs;

  /// `at`: the elements that are judged; empty: all.
  Expected expected(DType dtype, const Tolerance& tolerance, Judged at = {}) const;
};

class AttentionOracle {
 public:
  /// `budget` multiply-adds; the seed chooses what is judged when they are not enough for everything. `used_q`: queries
  /// in use of each batch entry, which flash_attention itself has no input for.
  AttentionOracle(const FlashAttention::Inputs& inputs, const FlashAttention::Params& params, double budget,
                  uint64_t seed, const Tensor& used_q = {});

  struct Forward {
    Sum out, lse;
    Sum weights = Sum();  ///< only when asked for: batched problems
    Judged out_at, lse_at;
    bool complete = true;
  };
  Forward forward(bool with_weights = false) const;

  /// What the gradient operation is given besides the forward's inputs, in float64.
  struct Cotangents {
    Tensor out = {}, lse = {};      ///< absent: as they follow from the inputs
    Tensor d_out = {}, d_lse = {};  ///< absent: zero
    Tensor d_weights = {};          ///< absent: zero; needs a budget for everything
  };
  struct Backward {
    Sum query, key, value, bias, sinks;
    Judged query_at, key_at, value_at;
    bool complete = true;  ///< false: bias and sinks have only a part of their sums
  };
  Backward backward(const Cotangents& cotangents) const;

  const attn::Problem& problem() const { return problem_; }
  /// The constants for an output of this dtype, and those of lse.
  Tolerance tolerance(DType output) const;
  Tolerance lse_tolerance() const;

 private:
  /// What of a gradient is judged: (sequence, kv head) groups, and when even one group is too much work, some of their
  /// rows (whole, for dq) and some of their keys (over all rows, for dk and dv).
  struct Sample {
    std::vector<bool> groups = {};
    double share = 1;
    uint64_t seed = 0;
    bool complete() const;
    bool has_row(int64_t head, int64_t i) const;
    bool has_key(int64_t j) const;
  };
  enum class Pass : uint8_t { all, rows, keys };

  template <class Real>
  void run_forward(size_t run, const std::vector<bool>& chosen, Forward& to) const;
  template <class Real>
  void run_backward(size_t run, Pass pass, const Cotangents& c, const Sample& sample, Backward& to) const;
  void measure_forward(const std::vector<bool>& chosen, Forward& to) const;
  void measure_backward(Pass pass, const Cotangents& c, const Sample& sample, Backward& to) const;
  void list_judged(const Sample& sample, Backward& to) const;
  void add_forward(std::vector<Array>& copies, Cotangents& c) const;

  std::vector<bool> choose_rows() const;
  Sample choose_groups() const;
  double work(const attn::Sequence& s) const;

  template <class Real>
  struct Arithmetic;

  std::vector<Array> copies_;  // the inputs in float64
  DType dtype_;                // the query's own
  double budget_;
  uint64_t seed_;
  bool soft_cap_;
  attn::Problem problem_;
};

}  // namespace ejk::testing
