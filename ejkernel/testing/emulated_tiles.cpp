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
thread_local cpu::TileShapes shapes;
thread_local bool configured = false;
thread_local int configured_few = 0;
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
    tiles[kTile] = {};
    for (int r = 0; r < shapes.rows[kTile]; ++r)
      std::memcpy(tiles[kTile].words[r], static_cast<const std::byte*>(rows) + r * stride, shapes.row_bytes[kTile]);
  }
  template <int kTile>
  static void store(void* rows, int64_t stride) {
    for (int r = 0; r < shapes.rows[kTile]; ++r)
      std::memcpy(static_cast<std::byte*>(rows) + r * stride, tiles[kTile].words[r], shapes.row_bytes[kTile]);
  }
  template <int kSums, int kLeft, int kRight>
  static void expect_fit() {
    if (shapes.rows[kSums] != shapes.rows[kLeft] || shapes.row_bytes[kSums] != shapes.row_bytes[kRight] ||
        shapes.row_bytes[kLeft] != 4 * shapes.rows[kRight])
      throw std::logic_error("tiles whose shapes do not fit");
  }
  template <int kSums, int kLeft, int kRight>
  static void dot_i8() {
    expect_fit<kSums, kLeft, kRight>();
    for (int m = 0; m < shapes.rows[kSums]; ++m)
      for (int k = 0; k < shapes.rows[kRight]; ++k)
        for (int n = 0; n < kSide; ++n)
          for (int i = 0; i < 4; ++i)
            tiles[kSums].words[m][n] +=
                static_cast<uint32_t>(byte(tiles[kLeft].words[m][k], i) * byte(tiles[kRight].words[k][n], i));
  }
  static int byte(uint32_t word, int n) { return static_cast<int8_t>(word >> 8 * n); }
  template <int kSums, int kLeft, int kRight>
  static void dot() {
    expect_fit<kSums, kLeft, kRight>();
    const Tile &left = tiles[kLeft], &right = tiles[kRight];
    float right_even[kSide][kSide], right_odd[kSide][kSide];
    for (int k = 0; k < kSide; ++k)
      for (int n = 0; n < kSide; ++n) {
        right_even[k][n] = even(right.words[k][n]);
        right_odd[k][n] = odd(right.words[k][n]);
      }
    for (int m = 0; m < shapes.rows[kSums]; ++m) {
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

void set_shapes(const cpu::TileShapes& wanted, int few) {
  shapes = wanted, configured_few = few;
  std::fill_n(tiles, 8, Tile{});
}

void configure() {
  if (configured) throw std::logic_error("this thread's tiles are configured already");
  configured = true;
  ++threads_configured;
  set_shapes({}, 0);
}

void configure_few(int few) {
  if (!configured) throw std::logic_error("this thread's tiles are not configured");
  if (few < 1 || few > kSide) throw std::logic_error("more rows than a tile has, or none");
  set_shapes(cpu::FewProduct<EmulatedTiles>::shapes(few), few);
}

void release() {
  configured = false;
  --threads_configured;
}

/// A product is about to begin, for which tiles are configured with so few rows; 0: full ones.
void begin(bool fits, int64_t few) {
  if (!configured) throw std::logic_error("this thread's tiles are not configured");
  if (few != configured_few) throw std::logic_error("this thread's tiles are configured for another product");
  if (!fits) throw std::logic_error("a matrix is not whole tiles");
  ++products;
}

void multiply(const cpu::Gemm<cpu::Pair>& g, bool add) {
  begin(true, 0);
  cpu::TileProduct<EmulatedTiles>(g, add).run();
}

void multiply_few_columns(const cpu::Gemm<cpu::Pair>& g) {
  begin(g.m % (2 * kSide) == 0 && g.k % kSide == 0 && g.n == (configured_few + 3) / 4 * 4, configured_few);
  cpu::FewProduct<EmulatedTiles>::multiply_columns(g);
}

void add_few_rows(const cpu::Gemm<cpu::Pair>& g) {
  begin(g.n % (2 * kSide) == 0 && g.k % kSide == 0, g.m);
  cpu::FewProduct<EmulatedTiles>::add_rows(g);
}

void multiply_codes(const cpu::CodeTiles& codes, int64_t k, const int8_t* digits, int32_t* c, cpu::LinesAhead& ahead) {
  begin(k % 64 == 0, 0);
  cpu::DigitProduct<EmulatedTiles>::multiply_codes(codes, k, digits, c, ahead);
}

void multiply_digits(const int8_t* digits, int64_t k, const int8_t* codes, int32_t* c, cpu::LinesAhead& ahead) {
  begin(k % cpu::kDigitDepth == 0, 0);
  cpu::DigitProduct<EmulatedTiles>::multiply_digits(digits, k, codes, c, ahead);
}

}  // namespace

const cpu::MatrixUnit& emulated_matrix_unit() {
  static constexpr cpu::MatrixUnit kUnit = {.configure = configure,
                                            .release = release,
                                            .multiply = multiply,
                                            .configure_few = configure_few,
                                            .multiply_few_columns = multiply_few_columns,
                                            .add_few_rows = add_few_rows,
                                            .multiply_codes = multiply_codes,
                                            .multiply_digits = multiply_digits};
  return kUnit;
}

ScopedEmulatedMatrixUnit::ScopedEmulatedMatrixUnit() : scoped_(&emulated_matrix_unit()), products_before_(products) {}
int64_t ScopedEmulatedMatrixUnit::num_products() const { return products - products_before_; }
int64_t ScopedEmulatedMatrixUnit::num_configured() const { return threads_configured; }

}  // namespace ejk::testing
