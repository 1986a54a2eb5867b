// The matrix unit of Intel's server processors (AMX): products of bf16 pairs in tiles of 16 rows of 64 bytes, sixteen
// times the rate of float32 multiply-adds.
//
// A kernel asks matrix_unit(), holds a MatrixUnitScope while a task of its uses tiles, and hands the unit to
// gemm-inl.h. Layouts are those of tiles-inl.h for pairs: the left factor is rows, the right one a panel or row pairs.
// Where one factor is a few rows of queries, tiles of 16 would mostly hold zeros: configure_few sets tiles of its size.
// Caches of int8 are multiplied as they are, with queries and weights in digits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ejkernel/platform/cpu/gemm.h"
#include "ejkernel/platform/cpu/lines_ahead.h"

namespace ejk::cpu {

/// Numbers that are multiplied with int8 ones are three digits of base 256 each. A tile takes those of four rows, digit
/// after digit: 12 rows or columns, and the rest of it is 0.
inline constexpr int64_t kDigits = 3, kDigitRows = 4, kDigitColumns = 16;
/// How many codes a tile of digits meets, and how many columns of them a product has.
inline constexpr int64_t kDigitDepth = 64, kCodeColumns = 64;

/// kDigitDepth rows of int8 numbers, in four tiles of 16 rows.
struct CodeTiles {
  const std::byte* first[4];
  int64_t stride[4];  ///< bytes, from a row of the tile to the next one
};

struct MatrixUnit {
  void (*configure)();  ///< prepares the calling thread; MatrixUnitScope calls these two
  void (*release)();
  /// c = a * b, or c += a * b. The order of each sum depends on nothing but k. Sums are rounded to nearest, ties to
  /// even; a number below 2^-126, given or computed, counts as 0.
  void (*multiply)(const Gemm<Pair>& g, bool add);

  /// Prepares a thread that configure() prepared for the two products below, with `few` of 1 to 16, and them alone.
  void (*configure_few)(int few);
  /// c = a * b, n columns: few, rounded up to a multiple of 4. m is a multiple of 32, k of 16. Sums are as multiply's.
  void (*multiply_few_columns)(const Gemm<Pair>& g);
  /// c += a * b, m = few rows. n is a multiple of 32, k of 16.
  void (*add_few_rows)(const Gemm<Pair>& g);

  // Without configure_few, and exactly, in int32:
  /// c = codes * digits: rows of k numbers, a multiple of 64; digits are [k / 4][kDigitColumns][4], c is
  /// [kDigitDepth][kDigitColumns]. Memory is asked for some of what is ahead.
  void (*multiply_codes)(const CodeTiles& codes, int64_t k, const int8_t* digits, int32_t* c, LinesAhead& ahead);
  /// c = digits * codes: digits are [k / kDigitDepth][kDigitColumns][kDigitDepth], codes [k / 4][kCodeColumns][4], c is
  /// [kDigitColumns][kCodeColumns].
  void (*multiply_digits)(const int8_t* digits, int64_t k, const int8_t* codes, int32_t* c, LinesAhead& ahead);
};

/// True when the processor has AMX for bf16 and int8 (there is none with one of them) and the system saves its state.
/// Asks for nothing.
bool has_amx();

/// This machine's, or null: without AMX, and where Linux does not let the process use it. The first call asks for that
/// (it is for the whole process, threads and forked children included), so only what is about to multiply calls this.
const MatrixUnit* matrix_unit();

/// What matrix_unit() can do at most, as the loops of peak.h: products of tiles in registers on the calling thread.
/// Returns the operations done, two per multiply-add; 0, and nothing done, without one.
double matrix_multiply_add(int64_t rounds);
/// The same of int8 numbers, summed in int32.
double i8_matrix_multiply_add(int64_t rounds);

/// While it lives, the calling thread may multiply on the unit; null is no unit and does nothing. Afterwards the thread
/// has no tile state, which would make each of its context switches save 8 KiB more.
class MatrixUnitScope {
 public:
  explicit MatrixUnitScope(const MatrixUnit* unit) : unit_(unit) {
    if (unit_ != nullptr) unit_->configure();
  }
  ~MatrixUnitScope() {
    if (unit_ != nullptr) unit_->release();
  }
  MatrixUnitScope(const MatrixUnitScope&) = delete;
  MatrixUnitScope& operator=(const MatrixUnitScope&) = delete;

 private:
  const MatrixUnit* unit_;
};

/// Makes matrix_unit() this one, or null, while it lives. For tests: no kernel may run when it comes or goes.
class ScopedMatrixUnit {
 public:
  explicit ScopedMatrixUnit(const MatrixUnit* unit);
  ~ScopedMatrixUnit();
  ScopedMatrixUnit(const ScopedMatrixUnit&) = delete;
  ScopedMatrixUnit& operator=(const ScopedMatrixUnit&) = delete;
};

}  // namespace ejk::cpu
