// Embeds English sentences with a real model and ranks them by what they mean.
//
//   minilm <folder of the model> <folder of sentences.txt and golden.json>
//
// Ends with 1 when a result is not what it must be: against the same model in double by the reference kernels, against
// the embeddings of the original implementation (golden.json), and against good sense (a query's own topic comes
// first).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <ejkernel/core/validate.h>
#include <ejkernel/runtime/calibration.h>
#include <ejkernel/runtime/choose.h>
#include "examples/minilm/mapped_file.h"
#include "examples/minilm/minilm.h"
#include "examples/minilm/ranking.h"
#include "examples/minilm/wordpiece.h"

namespace minilm {
namespace {

constexpr double kMinCosine = 0.9999;
constexpr double kGoldenTolerance = 5e-6;  // golden.json has six decimals; f32 arithmetic adds less than 1e-6

struct Sentence {
  std::string topic, text;
  bool is_query = false;
};

/// "# topic" begins a group, "? text" is its query, every other line one of its sentences.
std::vector<Sentence> read_sentences(const std::string& path) {
  std::vector<Sentence> sentences;
  std::string topic;
  const MappedFile file = map_file(path);
  for (std::string_view text = file.text(); !text.empty();) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.starts_with("# "))
      topic = line.substr(2);
    else if (!line.empty())
      sentences.push_back({topic, std::string(line.substr(line.starts_with("? ") ? 2 : 0)), line.starts_with("? ")});
  }
  if (sentences.empty()) throw std::runtime_error("minilm: " + path + " must hold sentences; it holds none");
  return sentences;
}

/// One vector of length 1 per sentence, as doubles.
using Embeddings = std::vector<std::vector<double>>;

Embeddings to_rows(const ejk::Tensor& embeddings) {
  Embeddings rows(static_cast<size_t>(embeddings.shape[0]));
  for (int64_t n = 0; n < embeddings.num_elements(); ++n)
    rows[static_cast<size_t>(n / embeddings.shape[1])].push_back(ejk::get(embeddings, n));
  return rows;
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  return ab / std::sqrt(aa * bb);
}

PackedTokens tokenise(const WordPiece& tokeniser, const std::vector<Sentence>& sentences) {
  std::vector<std::vector<int32_t>> ids;
  for (const Sentence& sentence : sentences) ids.push_back(tokeniser.encode(sentence.text));
  return pack(ids);
}

/// A sentence that fits its line.
std::string shortened(const std::string& text) {
  constexpr size_t kShown = 84;
  return text.size() <= kShown ? text : text.substr(0, text.rfind(' ', kShown)) + " ...";
}

/// Prints the sentences that are most like the query; true when all of the query's own topic come before any other.
bool rank(const std::vector<Sentence>& sentences, const Embeddings& embeddings, size_t query) {
  constexpr size_t kShown = 5;
  std::vector<Match> matches;
  for (size_t s = 0; s < sentences.size(); ++s)
    if (!sentences[s].is_query) matches.push_back({.likeness = cosine(embeddings[query], embeddings[s]), .index = s});
  sort_by_likeness(matches);

  std::printf("\n%s\n", sentences[query].text.c_str());
  for (size_t m = 0; m < std::min(kShown, matches.size()); ++m) {
    const Sentence& sentence = sentences[matches[m].index];
    std::printf("  %.2f  %-9s  %s\n", matches[m].likeness, sentence.topic.c_str(), shortened(sentence.text).c_str());
  }
  return std::is_partitioned(matches.begin(), matches.end(),
                             [&](const Match& m) { return sentences[m.index].topic == sentences[query].topic; });
}

/// The least cosine between rows of the same number.
double least_cosine(const Embeddings& a, const Embeddings& b) {
  double least = 1;
  for (size_t s = 0; s < a.size(); ++s) {
    const double c = cosine(a[s], b[s]);
    if (!(c >= least)) least = c;  // a NaN stays
  }
  return least;
}

double largest_difference(const Embeddings& a, const Embeddings& b) {
  double largest = 0;
  for (size_t s = 0; s < a.size(); ++s)
    for (size_t i = 0; i < a[s].size(); ++i) {
      const double difference = std::abs(a[s][i] - b[s][i]);
      if (!(difference <= largest)) largest = difference;
    }
  return largest;
}

/// PyTorch's embeddings of the same sentences.
Embeddings read_golden(const std::string& path, const std::vector<Sentence>& sentences, size_t width) {
  const auto json = nlohmann::json::parse(map_file(path).text());
  Embeddings golden;
  for (const Sentence& sentence : sentences) {
    const auto& row = json.at(golden.size());
    golden.push_back(row.at("embedding").get<std::vector<double>>());
    if (row.at("text") != sentence.text || golden.back().size() != width)
      throw std::runtime_error("minilm: " + path + " is of other sentences; write it again (goldens.py)");
  }
  return golden;
}

bool check(const Embeddings& embeddings, const Embeddings& reference, const Embeddings& golden) {
  bool is_good = true;
  const auto verdict = [&](bool is_ok) {
    is_good &= is_ok;
    return is_ok ? "ok" : "WRONG";
  };
  const double to_reference = least_cosine(embeddings, reference), to_golden = least_cosine(embeddings, golden);
  const double difference = largest_difference(embeddings, golden);
  std::printf("\nall %zu vectors against                          worst        must be\n", embeddings.size());
  std::printf("  this model in double, reference kernels: cosine %.9f  >= %-8g %s\n", to_reference, kMinCosine,
              verdict(to_reference >= kMinCosine));
  std::printf("  PyTorch's, golden.json:                  cosine %.9f  >= %-8g %s\n", to_golden, kMinCosine,
              verdict(to_golden >= kMinCosine));
  std::printf("  PyTorch's, golden.json:              difference %.9f  <= %-8g %s\n", difference, kGoldenTolerance,
              verdict(difference <= kGoldenTolerance));
  return is_good;
}

/// Text in, vectors out, again and again for half a second: the median, and its share of what this machine can do.
void print_speed(const MiniLm& model, const WordPiece& tokeniser, const std::vector<Sentence>& sentences) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  const auto end = Clock::now() + std::chrono::milliseconds(500);
  while (seconds.size() < 5 || Clock::now() < end) {
    const auto start = Clock::now();
    model.embed(tokenise(tokeniser, sentences));
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double rate = model.operations(tokenise(tokeniser, sentences)) / median;
  const ejk::Peaks peaks = ejk::measure_peaks();
  std::printf("\n%.0f sentences per second, from text to vectors: a batch takes %.1f ms, the median of %zu\n",
              static_cast<double>(sentences.size()) / median, median * 1e3, seconds.size());
  std::printf("%.1f GFLOP/s, %.0f %% of the %.0f that %d threads reach here with float32 multiply-adds\n", rate / 1e9,
              100 * rate / peaks.flops_per_second, peaks.flops_per_second / 1e9, peaks.num_threads);
}

void print_next_steps() {
  std::printf(
      "Next:\n"
      "  ./dev bench flash_attention                shapes of known models, against this machine's peak\n"
      "  build/release/bin/ejk tune grouped_matmul  configs that beat the heuristics' here; the store keeps them\n"
      "  build/release/bin/ejk check --seconds 30   random problems against float64\n"
      "  docs/operations/index.md                   what there is; this program is examples/minilm\n");
}

int run(const std::string& model_folder, const std::string& example_folder) {
  const SafeTensors weights(model_folder + "/model.safetensors");
  const WordPiece tokeniser = WordPiece::from_file(model_folder + "/vocab.txt");
  const std::vector<Sentence> sentences = read_sentences(example_folder + "/sentences.txt");
  const MiniLm model(weights, ejk::DType::f32);
  if (static_cast<int64_t>(tokeniser.size()) != model.vocabulary_size())  // a vocab.txt that was cut short
    ejk::throw_invalid("minilm", "vocab.txt", "hold the model's " + std::to_string(model.vocabulary_size()) + " pieces",
                       std::to_string(tokeniser.size()), "fetch the model again");

  const PackedTokens tokens = tokenise(tokeniser, sentences);
  const Embeddings embeddings = to_rows(model.embed(tokens));
  std::printf("all-MiniLM-L6-v2, %d layers, %d heads: %zu sentences, %zu tokens, one packed batch without padding\n",
              static_cast<int>(model.num_layers()), static_cast<int>(model.num_heads()), sentences.size(),
              tokens.ids.size());

  bool is_good = true;
  for (size_t s = 0; s < sentences.size(); ++s)
    if (sentences[s].is_query && !rank(sentences, embeddings, s)) {
      std::printf("  WRONG: a sentence of another topic comes before one of its own\n");
      is_good = false;
    }

  const MiniLm reference(weights, ejk::DType::f64, {.kernel = "reference"});
  const Embeddings golden = read_golden(example_folder + "/golden.json", sentences, embeddings[0].size());
  is_good &= check(embeddings, to_rows(reference.embed(tokens)), golden);
  print_speed(model, tokeniser, sentences);
  print_next_steps();

  std::printf("\nwhich kernels ran, and why\n");
  for (const ejk::Explanation& explanation : model.explain(tokens)) std::printf("%s\n", to_text(explanation).c_str());
  return is_good ? 0 : 1;
}

}  // namespace
}  // namespace minilm

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: minilm <folder of the model> <folder of sentences.txt and golden.json>\n");
    return 2;
  }
  try {
    const ejk::PolicyOverride no_tuning({.autotune = false});  // a demo is over before a better config pays
    return minilm::run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
