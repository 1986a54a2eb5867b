// Gradients: problems of a gradient operation made from its forward's, and finite differences.
#pragma once

#include <string>
#include <vector>

#include "ejkernel/testing/check.h"

namespace ejk::testing {

/// The gradient operation's problem for this forward problem: the forward's inputs (shared), its outputs as the
/// reference kernel gives them, and normal cotangents; optional ones are left out half of the time.
Problem gradient_problem(const Problem& forward, uint64_t seed, bool random_layouts);

/// Gradients of sum(cotangent * output) over the finite outputs by central differences, against what the gradient
/// kernel gives: eps 1e-6, |difference| <= 1e-5 + 1e-3 |gradient| (torch's gradcheck). For float64 problems. At most
/// `max_elements` elements of each input are moved, chosen by the seed. Returns what is wrong, or nothing.
struct GradientCheck {
  std::string failure = {};
  int64_t elements = 0;  ///< compared
};
GradientCheck check_gradient(const Problem& forward, const Kernel& forward_kernel, const Kernel& gradient_kernel,
                             uint64_t seed, int64_t max_elements = 24);

}  // namespace ejk::testing
