// Says when somebody speaks in a few seconds of sound, with a real model.
//
//   silero_vad <folder of the model> <folder of golden.json>
//
// Ends with 1 when a probability is not what it must be: against the package's own model (golden.json), and against the
// same recording in two pieces with the state carried over.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include <ejkernel/runtime/choose.h>
#include "examples/minilm/mapped_file.h"
#include "examples/silero_vad/silero_vad.h"
#include "examples/silero_vad/speech.h"

namespace silero_vad {
namespace {

constexpr double kTolerance = 1e-4;

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) throw std::runtime_error("silero_vad: golden.json is of another recording; write it again");
  double largest = 0;
  for (size_t n = 0; n < a.size(); ++n)
    if (const double difference = std::abs(a[n] - b[n]); !(difference <= largest)) largest = difference;
  return largest;
}

/// A line per quarter of a second.
void print(const std::vector<double>& probabilities) {
  constexpr size_t kPerLine = 8;
  for (size_t n = 0; n < probabilities.size(); n += kPerLine) {
    std::printf("%5.2f s ", static_cast<double>(n) * SileroVad::kChunk / kSampleRate);
    for (size_t k = n; k < std::min(n + kPerLine, probabilities.size()); ++k) std::printf(" %.3f", probabilities[k]);
    std::printf("\n");
  }
}

int run(const std::string& model_folder, const std::string& example_folder) {
  const SileroVad model{minilm::SafeTensors(model_folder + "/silero_vad_16k.safetensors")};
  const std::vector<float> speech = synthesise_speech();
  State state;
  const std::vector<double> probabilities = model.probabilities(speech, {}, state);
  std::printf("Silero VAD, 16 kHz: %.1f seconds, the probability of speech every 32 ms\n",
              static_cast<double>(speech.size()) / kSampleRate);
  print(probabilities);

  const std::span<const float> all(speech);
  const size_t cut = 40 * static_cast<size_t>(SileroVad::kChunk), context = 64;
  State carried;
  std::vector<double> pieces = model.probabilities(all.first(cut), {}, carried);
  for (const double p : model.probabilities(all.subspan(cut), all.subspan(cut - context, context), carried))
    pieces.push_back(p);

  const auto golden =
      nlohmann::json::parse(minilm::map_file(example_folder + "/golden.json").text()).get<std::vector<double>>();
  const double to_golden = largest_difference(probabilities, golden),
               to_pieces = largest_difference(probabilities, pieces);
  std::printf("largest difference to the package's own model, golden.json: %.1e, must be <= %g\n", to_golden,
              kTolerance);
  std::printf("largest difference to the recording in two pieces:          %.1e, must be <= 1e-6\n", to_pieces);
  return to_golden <= kTolerance && to_pieces <= 1e-6 ? 0 : 1;
}

}  // namespace
}  // namespace silero_vad

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: silero_vad <folder of the model> <folder of golden.json>\n");
    return 2;
  }
  try {
    const ejk::PolicyOverride no_tuning({.autotune = false});  // a demo is over before a better config pays
    return silero_vad::run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
