#include "ejkernel/testing/emulated_tiles.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "ejkernel/platform/cpu/tile_product.h"

namespace ejk::testing {
namespace {

constexpr int kSide = static_cast<int>(cpu::kTileSide);

struct Tile {
  uint32_t words[kSide][kSide];
};
thread_local Tile tiles[8];
thread_local bool configured = false;
std::atomic<int64_t> products = 0, threads_configured = 0;

float without_subnormals(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}
float even(uint32_t pair) { return without_subnormals(std::bit_cast<float>(pair << 16)); }
float odd(uint32_t pair) { return without_subnormals(std::bit_cast<float>(pair & 0xffff0000u)); }
/// x * y + sum, rounded once as std::fma does, and several times as fast. x and y have 8 significant bits: their
/// product is exact in double, and so is the sum where the two are less than 2^29 apart; where they are further apart,
/// the smaller one cannot bring the sum near the middle between two floats, the only place where a second rounding
/// could show.
float multiply_add(float x, float y, float sum) {
  return without_subnormals(static_cast<float>(static_cast<double>(x) * y + sum));
}
float add(float x, float y) { return without_subnormals(x + y); }

struct EmulatedTiles {
  template <int kTile>
  static void zero() {
    tiles[kTile] = {};
  }
  template <int kTile>
  static void load(const void* rows, int64_t stride) {
    for (int r = 0; r < kSide; ++r)
      std::memcpy(tiles[kTile].words[r], static_cast<const std::byte*>(rows) + r * stride, sizeof(Tile) / kSide);
  }
  template <int kTile>
  static void store(void* rows, int64_t stride) {
    for (int r = 0; r < kSide; ++r)
      std::memcpy(static_cast<std::byte*>(rows) + r * stride, tiles[kTile].words[r], sizeof(Tile) / kSide);
  }
  template <int kSums, int kLeft, int kRight>
  static void dot() {
    const Tile &left = tiles[kLeft], &right = tiles[kRight];
    float right_even[kSide][kSide], right_odd[kSide][kSide];
    for (int k = 0; k < kSide; ++k)
      for (int n = 0; n < kSide; ++n) {
        right_even[k][n] = even(right.words[k][n]);
        right_odd[k][n] = odd(right.words[k][n]);
      }
    for (int m = 0; m < kSide; ++m) {
      float evens[kSide] = {}, odds[kSide] = {};
      for (int k = 0; k < kSide; ++k) {
        const float x = even(left.words[m][k]), y = odd(left.words[m][k]);
        for (int n = 0; n < kSide; ++n) {
          evens[n] = multiply_add(x, right_even[k][n], evens[n]);
          odds[n] = multiply_add(y, right_odd[k][n], odds[n]);
        }
      }
      for (int n = 0; n < kSide; ++n) {
        uint32_t& sum = tiles[kSums].words[m][n];
        const float before = without_subnormals(std::bit_cast<float>(sum));
        sum = std::bit_cast<uint32_t>(add(before, add(evens[n], odds[n])));
      }
    }
  }
};

void configure() {
  if (configured) throw std::logic_error("this thread's tiles are configured already");
  configured = true;
  ++threads_configured;
  std::fill_n(tiles, 8, Tile{});
}

void release() {
  configured = false;
  --threads_configured;
}

void multiply(const cpu::Gemm<cpu::Pair>& g, bool add) {
  if (!configured) throw std::logic_error("this thread's tiles are not configured");
  ++products;
  cpu::TileProduct<EmulatedTiles>(g, add).run();
}

}  // namespace

const cpu::MatrixUnit& emulated_matrix_unit() {
  static constexpr cpu::MatrixUnit kUnit = {.configure = configure, .release = release, .multiply = multiply};
  return kUnit;
}

ScopedEmulatedMatrixUnit::ScopedEmulatedMatrixUnit() : scoped_(&emulated_matrix_unit()), products_before_(products) {}
int64_t ScopedEmulatedMatrixUnit::num_products() const { return products - products_before_; }
int64_t ScopedEmulatedMatrixUnit::num_configured() const { return threads_configured; }

}  // namespace ejk::testing
