// An operation that the library does not have: y = x², and its gradient.
#pragma once

#include <ejkernel/ejkernel.h>

namespace mine {

struct SquareBackward;

struct Square {
  static constexpr std::string_view kName = "square";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "y = factor * x * x", kSource = "none";
  static constexpr std::string_view kGradient = "square_backward";
  using Gradient = SquareBackward;

  struct Inputs {
    ejk::Tensor x = {};
  };
  struct Params {
    double factor = 1;
  };
  template <class T>
  struct Out {
    T y = {};
  };
  using Outputs = Out<ejk::Tensor>;
  using Results = Out<ejk::Array>;

  static constexpr auto inputs() { return std::array{ejk::TensorField{"x", "float[rows, dim]", "what is squared"}}; }
  static constexpr auto outputs() { return std::array{ejk::TensorField{"y", "@x[rows, dim]", "the squares"}}; }
  static constexpr auto params() {
    return std::array{ejk::param<&Params::factor>("factor", ejk::Key::none, "of every square", ejk::finite())};
  }
  static ejk::Work work(const ejk::Call<Square>& call) {
    return {.flops = 2.0 * static_cast<double>(call.inputs.x.num_elements())};
  }
  static std::span<const ejk::KernelInfo* const> kernels();
};

struct SquareBackward {
  static constexpr std::string_view kName = "square_backward";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "Gradient of square.", kSource = "none";

  struct Inputs {
    ejk::Tensor x = {}, d_y = {};
  };
  using Params = Square::Params;
  template <class T>
  struct Out {
    T x = {};
  };
  using Outputs = Out<ejk::Tensor>;
  using Results = Out<ejk::Array>;

  static constexpr auto inputs() {
    return std::array{ejk::TensorField{"x", "float[rows, dim]", "what was squared"},
                      ejk::TensorField{"d_y", "@x[rows, dim]", "cotangent of y"}};
  }
  static constexpr auto outputs() { return std::array{ejk::TensorField{"x", "@x[rows, dim]", "gradient of x"}}; }
  static constexpr auto params() { return Square::params(); }
  static ejk::Work work(const ejk::Call<SquareBackward>&) { return {}; }
  static std::span<const ejk::KernelInfo* const> kernels();
};

}  // namespace mine
