// Philox4x32-10 and the dropout rule as device code: the same numbers as core/philox.h, which a test compares.
#pragma once

#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

struct PhiloxDraws {
  uint32 words[4];
};

/// Ten rounds on the counter (c0, c1, c2, c3) under the key (k0, k1): four independent uniform words.
EJK_DEVICE PhiloxDraws philox4x32(uint32 c0, uint32 c1, uint32 c2, uint32 c3, uint32 k0, uint32 k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64 product0 = 0xD2511F53ull * c0, product1 = 0xCD9E8D57ull * c2;
    c0 = static_cast<uint32>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32>(product1);
    c2 = static_cast<uint32>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32>(product0);
    k0 += 0x9E3779B9u;  // golden ratio
    k1 += 0xBB67AE85u;  // sqrt(3) − 1
  }
  return {{c0, c1, c2, c3}};
}

/// Where key j finds its 16 bits (operations, rule 11): one draw serves the eight keys that a thread of a matrix
/// unit's accumulator owns together.
EJK_DEVICE uint32 dropout_group(uint32 j) { return 4 * (j / 32) + j % 8 / 2; }
EJK_DEVICE uint32 dropout_piece(uint32 j) { return 2 * (j % 32 / 8) + j % 2; }

/// True when the probability of (batch entry or sequence b, query head h, query i, key j) is kept.
EJK_DEVICE bool dropout_keep(uint32 seed, uint32 offset, uint32 b, uint32 h, uint32 i, uint32 j, uint32 threshold) {
  const PhiloxDraws draws = philox4x32(dropout_group(j), i, h, b, seed, offset);
  const uint32 piece = dropout_piece(j);
  return (draws.words[piece / 2] >> (piece % 2 * 16) & 0xffffu) >= threshold;
}

}  // namespace ejk::cuda
