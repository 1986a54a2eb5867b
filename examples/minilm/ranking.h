// Sentences in the order of how much they are like another one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace minilm {

struct Match {
  double likeness;
  size_t index;  ///< of the sentence
};

/// The most like first. A likeness that is NaN, as damaged weights make it, goes last.
inline void sort_by_likeness(std::vector<Match>& matches) {
  std::stable_sort(matches.begin(), matches.end(), [](const Match& a, const Match& b) {
    return std::isnan(b.likeness) ? !std::isnan(a.likeness) : a.likeness > b.likeness;
  });
}

}  // namespace minilm
