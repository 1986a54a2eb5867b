// Compiled against the installed headers alone.
#include <ejkernel/runtime/plugins.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "square.h"

namespace mine {
namespace {

/// A user's own kernel for an operation of the library: batched float32 without any option.
struct PlainAttention {
  static constexpr std::string_view kName = "mine";
  static constexpr ejk::Platform kPlatform = ejk::Platform::cpu;

  static ejk::Support supports(const ejk::Call<ejk::FlashAttention>& call, const ejk::DeviceProperties&) {
    const auto& in = call.inputs;
    size_t given = 0;
    for (const ejk::Tensor& input : ejk::to_array(in)) given += input.present();
    if (given > 3) return ejk::Support::no("only query, key and value");
    if (in.query.rank() != 4 || in.query.dtype != ejk::DType::f32) return ejk::Support::no("only batched float32");
    if (call.params.causal || !call.params.sliding_window.unbounded() || call.params.logits_soft_cap ||
        call.params.dropout_prob > 0 || !call.params.normalize_output || call.params.out_dtype)
      return ejk::Support::no("no options");
    return ejk::Support::yes();
  }

  static void run(const ejk::Call<ejk::FlashAttention>& call, const ejk::RunContext&) {
    const auto& [q, k, v] = std::tie(call.inputs.query, call.inputs.key, call.inputs.value);
    const double scale = call.params.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(q.shape[3])));
    std::vector<double> weights(static_cast<size_t>(k.shape[1]));
    for (int64_t b = 0; b < q.shape[0]; ++b)
      for (int64_t i = 0; i < q.shape[1]; ++i)
        for (int64_t h = 0; h < q.shape[2]; ++h) {
          const int64_t g = h / (q.shape[2] / k.shape[2]);
          double sum = 0;
          for (int64_t j = 0; j < k.shape[1]; ++j) {
            double logit = 0;
            for (int64_t d = 0; d < q.shape[3]; ++d) logit += at(q, b, i, h, d) * at(k, b, j, g, d);
            sum += weights[static_cast<size_t>(j)] = std::exp(scale * logit);
          }
          for (int64_t d = 0; d < v.shape[3]; ++d) {
            double out = 0;
            for (int64_t j = 0; j < k.shape[1]; ++j) out += weights[static_cast<size_t>(j)] / sum * at(v, b, j, g, d);
            if (call.outputs.out.present())
              ejk::set(call.outputs.out, ((b * q.shape[1] + i) * q.shape[2] + h) * v.shape[3] + d, out);
          }
          if (call.outputs.lse.present())
            ejk::set(call.outputs.lse, (b * q.shape[2] + h) * q.shape[1] + i, std::log(sum));
        }
  }

  static double at(const ejk::Tensor& t, int64_t b, int64_t i, int64_t h, int64_t d) {
    return t.as<float>()[b * t.strides[0] + i * t.strides[1] + h * t.strides[2] + d * t.strides[3]];
  }
};

struct Reference {
  static constexpr std::string_view kName = "reference";
  static constexpr ejk::Platform kPlatform = ejk::Platform::reference;

  static void run(const ejk::Call<Square>& call, const ejk::RunContext&) {
    for (int64_t i = 0; i < call.outputs.y.num_elements(); ++i) {
      const double x = ejk::get(call.inputs.x, i);
      ejk::set(call.outputs.y, i, call.params.factor * x * x);
    }
  }
  static void run(const ejk::Call<SquareBackward>& call, const ejk::RunContext&) {
    for (int64_t i = 0; i < call.outputs.x.num_elements(); ++i)
      ejk::set(call.outputs.x, i, 2 * call.params.factor * ejk::get(call.inputs.x, i) * ejk::get(call.inputs.d_y, i));
  }
};

template <class Op>
std::span<const ejk::KernelInfo* const> only_the_reference() {
  static const ejk::KernelInfo reference = ejk::make_kernel<Op, Reference>();
  static const ejk::KernelInfo* const list[] = {&reference};
  return list;
}

}  // namespace

std::span<const ejk::KernelInfo* const> Square::kernels() { return only_the_reference<Square>(); }
std::span<const ejk::KernelInfo* const> SquareBackward::kernels() { return only_the_reference<SquareBackward>(); }

}  // namespace mine

EJK_PLUGIN(registry) {
  registry.add<ejk::FlashAttention, mine::PlainAttention>(/*priority=*/100000);
  registry.add_operation<mine::Square>();
  registry.add_operation<mine::SquareBackward>();
}
