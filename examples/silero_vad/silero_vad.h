// Silero VAD at 16 kHz: how likely it is that somebody speaks, for every 32 ms of sound.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <ejkernel/core/tensor.h>
#include <ejkernel/runtime/api.h>
#include "examples/minilm/safetensors.h"

namespace silero_vad {

/// The LSTM's states between pieces of a recording: [1, 1, 128] each.
struct State {
  ejk::Array hidden, cell;
};

class SileroVad {
 public:
  static constexpr int64_t kChunk = 512;  ///< samples of a probability

  explicit SileroVad(const minilm::SafeTensors& weights, ejk::PlanOptions plan = {});

  /// A probability per chunk; what follows the last whole chunk is left out. Each chunk also sees the last samples
  /// before it: `context` holds those before the first one, or is empty at the begin of a recording.
  std::vector<double> probabilities(std::span<const float> samples, std::span<const float> context, State& state) const;

 private:
  struct Convolution {
    ejk::Array weight, bias;  // [out, in, width]
    int64_t stride, padding;
    bool is_followed_by_relu;
  };
  /// [channels][time], one after the other.
  struct Signal {
    int64_t channels, length;
    std::vector<float> values;
  };

  static Signal convolve(const Convolution& convolution, const Signal& from);
  /// What the convolutions make of one chunk and what lies before it: the LSTM's input.
  std::vector<float> features(std::span<const float> window) const;

  Convolution fourier_;
  std::array<Convolution, 4> encoder_;
  ejk::Array weight_ih_, weight_hh_, bias_ih_, bias_hh_, final_weight_;
  double final_bias_;
  ejk::PlanOptions plan_;
};

}  // namespace silero_vad
