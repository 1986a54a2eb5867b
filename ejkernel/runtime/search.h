// Which candidates get how much of the clock: the tuner's search, without knowing what is timed.
//
// A race is successive halving (Jamieson and Talwalkar, AISTATS 2016): all runners are sampled, interleaved, and the
// faster half goes on, until one is left. A round has about as many samples however many run, so that a small field is
// not decided by a single one: with a breadth of 16, of 16 runners each has 1, then 2, 4 and 8; of 3 each has 6,
// then 8. Who is faster is said by the lower quartile: whatever else the machine does makes samples longer, and among
// few of them a median is easily one of those. A small space races whole. Of a larger one an even selection does, the
// heuristic's config among it, and then the winner against its neighbours (configs that differ in one field) for as
// long as one of them wins. The order is drawn from a fixed seed, so that the same times lead to the same answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ejkernel/core/operation.h"

namespace ejk {

/// Where candidates are tried; tests bring one with times of their own.
class TuningLab {
 public:
  virtual ~TuningLab() = default;
  /// Why nothing can be tried here at all; empty when it can. Asked once, before anything else.
  virtual std::string begin() { return ""; }
  /// The candidate will be asked about soon: what can be made ready beside other work, such as its code, may be.
  virtual void expect(size_t /*candidate*/) {}
  /// Why the candidate must not be timed: empty when it may. Asked once for each.
  virtual std::string admit(size_t candidate) = 0;
  /// Seconds of one run; negative when the candidate failed, and then it is out.
  virtual double sample(size_t candidate) = 0;
  virtual bool is_out_of_time() = 0;
  /// Whether a candidate has left this process unfit to try others: a GPU's fault stays with the process.
  virtual bool is_broken() { return false; }
};

struct Trial {
  bool tried = false;
  std::string rejected;         ///< why it is out; empty: it is not
  std::vector<double> samples;  ///< seconds
  double median() const;        ///< infinity without samples
  double quartile() const;      ///< the lower one
};

struct SearchResult {
  std::vector<Trial> trials;  ///< one per candidate
  size_t best = 0;            ///< the first candidate, the heuristic's, when no other was faster
  bool complete = true;       ///< false: time ran out
};

struct SearchOptions {
  uint64_t seed = 1;  ///< of the order in which runners are sampled
  size_t also = 0;    ///< in the first race whatever the selection: the place to start from, if there is one
  /// Spaces of up to this many candidates race whole, and a round of a race has at least so many samples.
  size_t breadth = 16;
};

/// The heuristic's config stands first among `candidates`. It wins when it is out itself: then there is nothing to
/// compare with.
SearchResult search(std::span<const ConfigBlock> candidates, std::span<const ConfigField> fields, TuningLab& lab,
                    const SearchOptions& options = {});

}  // namespace ejk
