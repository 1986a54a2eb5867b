#include "examples/silero_vad/speech.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <numbers>

namespace silero_vad {
namespace {

constexpr double kPi = std::numbers::pi;
using Formants = std::array<double, 3>;  // Hz

const std::map<char, Formants>& vowels() {
  static const std::map<char, Formants> all = {{'a', {730, 1090, 2440}}, {'i', {270, 2290, 3010}},
                                               {'u', {300, 870, 2240}},  {'e', {530, 1840, 2480}},
                                               {'o', {570, 840, 2410}},  {'@', {500, 1500, 2500}}};
  return all;
}
constexpr Formants kBandwidths = {80, 100, 140};

/// A vowel, a hiss ('s') or silence ('-').
struct Sound {
  char what;
  double seconds;
};
constexpr Sound kScore[] = {{'-', 0.5},  {'a', 0.18}, {'-', 0.04}, {'i', 0.16}, {'s', 0.09}, {'e', 0.2}, {'-', 0.05},
                            {'o', 0.22}, {'u', 0.14}, {'-', 0.03}, {'a', 0.25}, {'-', 0.8},  {'s', 0.1}, {'i', 0.2},
                            {'@', 0.1},  {'-', 0.04}, {'a', 0.2},  {'u', 0.18}, {'-', 0.03}, {'e', 0.3}, {'-', 0.7}};

/// One resonance of the vocal tract, of unit gain at 0 Hz.
class Resonator {
 public:
  double operator()(double x, double frequency, double bandwidth) {
    const double radius = std::exp(-kPi * bandwidth / kSampleRate);
    const double c = 2 * radius * std::cos(2 * kPi * frequency / kSampleRate);
    const double y = (1 - c + radius * radius) * x + c * last_ - radius * radius * before_;
    before_ = last_, last_ = y;
    return y;
  }

 private:
  double last_ = 0, before_ = 0;
};

/// What the vocal folds let through at a place in their period: a pulse's slope, after Rosenberg.
double glottal_flow(double phase) {
  constexpr double kOpening = 0.4, kClosing = 0.16;
  if (phase < kOpening) return 0.05 * kPi / kOpening * std::sin(kPi * phase / kOpening);
  if (phase >= kOpening + kClosing) return 0;
  return -0.05 * kPi / kClosing * std::sin(kPi * (phase - kOpening) / (2 * kClosing));
}

/// Uniform in [-1, 1).
class Noise {
 public:
  double operator()() {
    state_ = (state_ * 1103515245u + 12345u) & 0x7fffffffu;
    return static_cast<double>(state_) / 0x40000000 - 1;
  }

 private:
  uint32_t state_ = 1;
};

/// Goes to a target by the same part of the way at every sample.
void approach(double& value, double target, double part) { value += (target - value) * part; }

}  // namespace

std::vector<float> synthesise_speech() {
  std::vector<float> samples;
  std::array<Resonator, 3> resonators;
  Formants formants = vowels().at('@');
  Noise noise;
  double phase = 0, voice = 0, hiss = 0;
  for (const Sound& sound : kScore) {
    const auto vowel = vowels().find(sound.what);
    const bool is_vowel = vowel != vowels().end();
    const auto count = static_cast<int>(std::lround(sound.seconds * kSampleRate));
    for (int n = 0; n < count; ++n) {
      const double t = static_cast<double>(samples.size()) / kSampleRate;
      if (is_vowel)
        for (size_t k = 0; k < formants.size(); ++k) approach(formants[k], vowel->second[k], 0.002);
      approach(voice, is_vowel ? 1 : 0, 0.004);
      approach(hiss, sound.what == 's' ? 1 : 0, 0.004);
      phase += (120 + 25 * std::sin(2 * kPi * 0.7 * t) + 4 * std::sin(2 * kPi * 5 * t)) / kSampleRate;
      phase -= std::floor(phase);
      const double breath = noise();
      double x = voice * (glottal_flow(phase) + 0.02 * breath);
      for (size_t k = 0; k < resonators.size(); ++k) x = resonators[k](x, formants[k], kBandwidths[k]);
      samples.push_back(static_cast<float>(0.6 * x + 0.05 * hiss * breath + 0.0005 * breath));
    }
  }
  return samples;
}

}  // namespace silero_vad
