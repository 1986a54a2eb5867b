// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and the dropout rule built on
// it (spec: operations, rule 11). Random numbers are a pure function of a position: every kernel on every platform
// draws the same ones, in any order, and the backward draws them again. Plain functions and fixed-width integers only,
// so that device code can use the same text.
#pragma once

#include <cstdint>

namespace ejk {

struct PhiloxCounter {
  uint32_t words[4];
};
struct PhiloxKey {
  uint32_t words[2];
};

/// Ten rounds. The result's words are independent uniform 32-bit numbers.
constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter.words[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter.words[2];
    counter = {
        {static_cast<uint32_t>(product1 >> 32) ^ counter.words[1] ^ key.words[0], static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ counter.words[3] ^ key.words[1], static_cast<uint32_t>(product0)}};
    key.words[0] += 0x9E3779B9u;  // golden ratio
    key.words[1] += 0xBB67AE85u;  // sqrt(3) − 1
  }
  return counter;
}

/// t of rule 11: min(⌊65536·p + 1/2⌋, 65535). A 16-bit draw below it drops its element. For dropout_prob in [0, 1);
/// anything below 0 (and NaN) counts as 0.
constexpr uint32_t dropout_threshold(double dropout_prob) {
  if (!(dropout_prob > 0)) return 0;
  if (dropout_prob >= 1) return 65535;
  const auto rounded = static_cast<uint32_t>(65536 * dropout_prob + 0.5);
  return rounded < 65535 ? rounded : 65535;
}

/// What kept probabilities are multiplied by. It makes the expectation exact for the threshold, not for dropout_prob.
constexpr double dropout_scale(uint32_t threshold) { return 65536.0 / static_cast<double>(65536 - threshold); }

/// The counter's first word for key position j: the keys that share one draw of eight 16-bit numbers.
constexpr uint32_t dropout_group(uint32_t j) { return 4 * (j / 32) + (j % 8) / 2; }
/// Which 16-bit piece of that draw belongs to j, low half of word 0 first.
constexpr uint32_t dropout_piece(uint32_t j) { return 2 * ((j % 32) / 8) + j % 2; }

/// All eight draws of one group: a kernel calls this once for the keys it owns together.
constexpr PhiloxCounter dropout_draws(uint32_t seed, uint32_t offset, uint32_t b, uint32_t h, uint32_t i,
                                      uint32_t group) {
  return philox4x32({{group, i, h, b}}, {{seed, offset}});
}

constexpr uint32_t dropout_draw(const PhiloxCounter& draws, uint32_t piece) {
  return (draws.words[piece / 2] >> (piece % 2 != 0 ? 16 : 0)) & 0xffffu;
}

/// True when the probability at (batch entry or packed sequence b, query head h, query i, key j) is kept; i and j count
/// inside the sequence.
constexpr bool dropout_keep(uint32_t seed, uint32_t offset, uint32_t b, uint32_t h, uint32_t i, uint32_t j,
                            uint32_t threshold) {
  return dropout_draw(dropout_draws(seed, offset, b, h, i, dropout_group(j)), dropout_piece(j)) >= threshold;
}

}  // namespace ejk
