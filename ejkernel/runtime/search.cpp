#include "ejkernel/runtime/search.h"

#include <algorithm>
#include <limits>
#include <random>

namespace ejk {
namespace {

/// Differ in one field, by one step of its legal values.
bool are_neighbours(const ConfigBlock& a, const ConfigBlock& b, std::span<const ConfigField> fields) {
  int steps = 0;
  for (const ConfigField& field : fields) {
    const auto place = [&](const ConfigBlock& config) {
      return std::find(field.legal.begin(), field.legal.end(), field.get(config.data())) - field.legal.begin();
    };
    steps += static_cast<int>(std::abs(place(a) - place(b)));
  }
  return steps == 1;
}

class Search {
 public:
  Search(std::span<const ConfigBlock> candidates, std::span<const ConfigField> fields, TuningLab& lab,
         const SearchOptions& options)
      : candidates_(candidates), fields_(fields), lab_(lab), options_(options), random_(options.seed) {
    result_.trials.resize(candidates.size());
  }

  SearchResult run() {
    std::vector<size_t> field = selection();
    race(field);
    if (field.size() < candidates_.size())
      while (!lab_.is_out_of_time() && result_.trials[0].rejected.empty()) {
        const size_t before = result_.best;
        field = untried_neighbours(before);
        if (field.empty()) break;
        field.push_back(before);
        race(field);
        if (result_.best == before) break;
      }
    return std::move(result_);
  }

 private:
  /// All of a small space; else every n-th. What to start from is the second to be tried.
  std::vector<size_t> selection() const {
    std::vector<size_t> field = {0};
    if (options_.also != 0) field.push_back(options_.also);
    const size_t count = std::min(candidates_.size(), options_.breadth);
    for (size_t n = 1; n < count; ++n)
      if (const size_t at = n * candidates_.size() / count; at != options_.also) field.push_back(at);
    return field;
  }

  std::vector<size_t> untried_neighbours(size_t of) const {
    std::vector<size_t> field;
    for (size_t n = 0; n < candidates_.size(); ++n)
      if (!result_.trials[n].tried && are_neighbours(candidates_[n], candidates_[of], fields_)) field.push_back(n);
    return field;
  }

  /// Leaves the winner in `best`, which stays what it was when nobody is left.
  void race(std::vector<size_t> field) {
    for (const size_t n : field)
      if (!result_.trials[n].tried) lab_.expect(n);
    std::erase_if(field, [&](size_t n) { return !admitted(n); });
    // Without the heuristic's config nothing can be said to be faster than it.
    if (!result_.trials[0].rejected.empty()) return;
    while (field.size() > 1) {
      const size_t samples = (options_.breadth + field.size() - 1) / field.size();
      for (size_t s = 0; s < samples; ++s) {
        std::shuffle(field.begin(), field.end(), random_);
        for (const size_t n : field)
          if (!take_sample(n)) return;
      }
      std::erase_if(field, [&](size_t n) { return !result_.trials[n].rejected.empty(); });
      std::sort(field.begin(), field.end(), [&](size_t a, size_t b) {
        return std::pair(result_.trials[a].quartile(), a) < std::pair(result_.trials[b].quartile(), b);
      });
      if (field.empty()) return;
      result_.best = field.front();
      field.resize((field.size() + 1) / 2);
    }
    if (field.size() == 1) result_.best = field.front();
  }

  bool admitted(size_t n) {
    Trial& trial = result_.trials[n];
    if (!trial.tried && lab_.is_out_of_time()) {
      result_.complete = false;
      return false;
    }
    if (!trial.tried) trial.rejected = lab_.admit(n);
    trial.tried = true;
    return trial.rejected.empty();
  }

  /// False when time has run out.
  bool take_sample(size_t n) {
    Trial& trial = result_.trials[n];
    if (!trial.rejected.empty()) return true;
    if (lab_.is_out_of_time()) return result_.complete = false;
    const double seconds = lab_.sample(n);
    if (seconds < 0)
      trial.rejected = "it failed while it was timed";
    else
      trial.samples.push_back(seconds);
    return true;
  }

  std::span<const ConfigBlock> candidates_;
  std::span<const ConfigField> fields_;
  TuningLab& lab_;
  SearchOptions options_;
  std::minstd_rand random_;
  SearchResult result_;
};

/// The sample that the first `parts` of `of` equal parts end with.
double quantile(std::vector<double> samples, size_t parts, size_t of) {
  if (samples.empty()) return std::numeric_limits<double>::infinity();
  const auto at = samples.begin() + static_cast<ptrdiff_t>(samples.size() * parts / of);
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

}  // namespace

double Trial::median() const { return quantile(samples, 1, 2); }
double Trial::quartile() const { return quantile(samples, 1, 4); }

SearchResult search(std::span<const ConfigBlock> candidates, std::span<const ConfigField> fields, TuningLab& lab,
                    const SearchOptions& options) {
  return Search(candidates, fields, lab, options).run();
}

}  // namespace ejk
