#include "examples/silero_vad/silero_vad.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <ejkernel/ops/rnn/rnn.h>

namespace silero_vad {
namespace {

constexpr int64_t kContext = 64, kReflected = 64, kBins = 129, kFeatures = 128;

/// A weight of a known shape, in front of which axes of one element may be added.
ejk::Array weight(const minilm::SafeTensors& weights, const std::string& name, const ejk::Shape& shape,
                  const ejk::Shape& as) {
  const ejk::Array stored = weights.tensor(name);
  if (stored.shape() != shape || stored.dtype() != ejk::DType::f32)
    throw ejk::InvalidArgument("silero_vad: " + name + " must be float32 " + to_string(shape) + ", got " +
                               to_string(stored) + "; is this silero_vad_16k.safetensors?");
  ejk::Array copy(ejk::DType::f32, as);
  std::copy_n(stored.as<const float>(), stored.num_elements(), copy.as<float>());
  return copy;
}

}  // namespace

SileroVad::SileroVad(const minilm::SafeTensors& weights, ejk::PlanOptions plan) : plan_(std::move(plan)) {
  const auto load = [&](const std::string& name, const ejk::Shape& shape) {
    return weight(weights, name, shape, shape);
  };
  const auto convolution = [&](const std::string& name, int64_t out, int64_t in, int64_t stride) {
    return Convolution{load(name + ".weight", {out, in, 3}), load(name + ".bias", {out}), stride, 1, true};
  };
  fourier_ = {load("stft_conv.weight", {2 * kBins, 1, 256}), {}, 128, 0, false};
  encoder_ = {convolution("conv1", 128, kBins, 1), convolution("conv2", 64, 128, 2), convolution("conv3", 64, 64, 2),
              convolution("conv4", kFeatures, 64, 1)};
  const ejk::Shape gates = {4 * kFeatures, kFeatures}, biases = {4 * kFeatures};
  weight_ih_ = weight(weights, "lstm_cell.weight_ih", gates, {1, 4 * kFeatures, kFeatures});
  weight_hh_ = weight(weights, "lstm_cell.weight_hh", gates, {1, 4 * kFeatures, kFeatures});
  bias_ih_ = weight(weights, "lstm_cell.bias_ih", biases, {1, 4 * kFeatures});
  bias_hh_ = weight(weights, "lstm_cell.bias_hh", biases, {1, 4 * kFeatures});
  final_weight_ = load("final_conv.weight", {1, kFeatures, 1});
  final_bias_ = get(load("final_conv.bias", {1}), 0);
}

SileroVad::Signal SileroVad::convolve(const Convolution& convolution, const Signal& from) {
  const ejk::Shape& shape = convolution.weight.shape();
  const int64_t width = shape[2], padding = convolution.padding;
  Signal to = {shape[0], (from.length + 2 * padding - width) / convolution.stride + 1, {}};
  const float* weights = convolution.weight.as<const float>();
  for (int64_t out = 0; out < to.channels; ++out)
    for (int64_t t = 0; t < to.length; ++t) {
      float sum = convolution.bias.present() ? convolution.bias.as<const float>()[out] : 0;
      const int64_t begin = t * convolution.stride - padding;
      for (int64_t in = 0; in < from.channels; ++in)
        for (int64_t k = std::max<int64_t>(0, -begin); k < std::min(width, from.length - begin); ++k)
          sum += weights[(out * from.channels + in) * width + k] *
                 from.values[static_cast<size_t>(in * from.length + begin + k)];
      to.values.push_back(convolution.is_followed_by_relu ? std::max(sum, 0.0f) : sum);
    }
  return to;
}

std::vector<float> SileroVad::features(std::span<const float> window) const {
  Signal signal = {1, static_cast<int64_t>(window.size()) + kReflected, {window.begin(), window.end()}};
  for (int64_t n = 0; n < kReflected; ++n) signal.values.push_back(window[window.size() - 2 - static_cast<size_t>(n)]);

  // Real and imaginary parts of the spectrum; then how strong each frequency is.
  const Signal parts = convolve(fourier_, signal);
  signal = {kBins, parts.length, {}};
  for (int64_t n = 0; n < kBins * parts.length; ++n)
    signal.values.push_back(
        std::hypot(parts.values[static_cast<size_t>(n)], parts.values[static_cast<size_t>(n + kBins * parts.length)]));
  for (const Convolution& convolution : encoder_) signal = convolve(convolution, signal);
  return signal.values;
}

std::vector<double> SileroVad::probabilities(std::span<const float> samples, std::span<const float> context,
                                             State& state) const {
  const auto num_chunks = static_cast<int64_t>(samples.size()) / kChunk;
  std::vector<float> sound(static_cast<size_t>(kContext));
  std::copy(context.begin(), context.end(), sound.end() - static_cast<int64_t>(context.size()));
  sound.insert(sound.end(), samples.begin(), samples.end());

  ejk::Array input(ejk::DType::f32, {1, num_chunks, kFeatures});
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    const std::vector<float> row =
        features(std::span(sound).subspan(static_cast<size_t>(chunk * kChunk), static_cast<size_t>(kContext + kChunk)));
    std::copy(row.begin(), row.end(), input.as<float>() + chunk * kFeatures);
  }
  ejk::Rnn::Inputs in = {
      .input = input, .weight_ih = weight_ih_, .weight_hh = weight_hh_, .bias_ih = bias_ih_, .bias_hh = bias_hh_};
  if (state.hidden.present()) in.hidden = state.hidden, in.cell = state.cell;
  const ejk::Rnn::Results result = ejk::rnn(in, {.cell_type = ejk::CellType::lstm}, {.plan = plan_});
  state = {result.final_hidden, result.final_cell};

  std::vector<double> all;
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    double sum = final_bias_;
    for (int64_t n = 0; n < kFeatures; ++n)
      sum += std::max(0.0, get(result.out, chunk * kFeatures + n)) * get(final_weight_, n);
    all.push_back(1 / (1 + std::exp(-sum)));
  }
  return all;
}

}  // namespace silero_vad
