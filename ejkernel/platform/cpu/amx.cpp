#include "ejkernel/platform/cpu/amx.h"

#include <optional>

#include "ejkernel/platform/cpu/tile_product.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ejk::cpu {
namespace {

#if defined(__x86_64__)

// Instructions by our own hand: GCC 12's intrinsics take the number of a tile as text, which a template has not, and do
// not tell the compiler that a load of a tile reads memory, so that it may come before the stores it needs.
struct AmxTiles {
  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  static void load(const void* rows, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(void* rows, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kSums, int kLeft, int kRight>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kLeft), "i"(kRight));
  }
  /// The same of int8 numbers, four at a time, summed in int32.
  template <int kSums, int kLeft, int kRight>
  static void dot_i8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kLeft), "i"(kRight));
  }
};

void configure(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
void configure() { configure(TileShapes()); }
void configure_few(int few) { configure(FewProduct<AmxTiles>::shapes(few)); }
void release() { asm volatile("tilerelease"); }
void multiply(const Gemm<Pair>& g, bool add) { TileProduct<AmxTiles>(g, add).run(); }

/// The parts of the processor's state that the system saves.
uint64_t saved_state() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

/// Linux gives the 8 KiB of tile state to processes that ask. It declines where an alternate signal stack of a thread
/// is too small for them, and where a sandbox does not know the call.
bool ask_for_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#endif

const MatrixUnit* own_unit() {
#if defined(__x86_64__)
  static constexpr MatrixUnit kAmx = {.configure = configure,
                                      .release = release,
                                      .multiply = multiply,
                                      .configure_few = configure_few,
                                      .multiply_few_columns = FewProduct<AmxTiles>::multiply_columns,
                                      .add_few_rows = FewProduct<AmxTiles>::add_rows,
                                      .multiply_codes = DigitProduct<AmxTiles>::multiply_codes,
                                      .multiply_digits = DigitProduct<AmxTiles>::multiply_digits};
  static const bool may_use = has_amx() && ask_for_tiles();
  return may_use ? &kAmx : nullptr;
#else
  return nullptr;
#endif
}

std::optional<const MatrixUnit*> of_a_test;

}  // namespace

bool has_amx() {
#if defined(__x86_64__)
  uint32_t a = 0, b = 0, c = 0, d = 0;
  constexpr uint32_t kSystemSavesState = 1u << 27, kAmx = 1u << 22 | 1u << 24 | 1u << 25;  // bf16, tiles, int8
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSystemSavesState) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kAmx) != kAmx) return false;
  constexpr uint64_t kTiles = uint64_t{3} << 17;  // their shapes, and their contents
  return (saved_state() & kTiles) == kTiles;
#else
  return false;
#endif
}

const MatrixUnit* matrix_unit() { return of_a_test ? *of_a_test : own_unit(); }

namespace {

/// Products of tiles of full rows of 64 bytes; returns the operations done with elements of that size.
template <int kElementBytes>
double multiply_tiles([[maybe_unused]] int64_t rounds) {
#if defined(__x86_64__)
  const MatrixUnit* unit = own_unit();
  if (unit == nullptr) return 0;
  // A product takes three times as long as the unit needs to begin the next: four chains in flight keep it busy.
  constexpr int64_t kSteps = 16, kChains = 4;
  alignas(kAlignment) uint16_t halves[2 * kTileSide];
  std::fill_n(halves, 2 * kTileSide, uint16_t{0x3f00});
  const MatrixUnitScope scope(unit);
  AmxTiles::load<4>(halves, 0);
  AmxTiles::load<5>(halves, 0);
  AmxTiles::zero<0>();
  AmxTiles::zero<1>();
  AmxTiles::zero<2>();
  AmxTiles::zero<3>();
  const auto dot = []<int kSums>() {
    if constexpr (kElementBytes == 1)
      AmxTiles::dot_i8<kSums, 4, 5>();
    else
      AmxTiles::dot<kSums, 4, 5>();
  };
  for (int64_t i = 0; i < rounds * kSteps; ++i) {
    dot.template operator()<0>();
    dot.template operator()<1>();
    dot.template operator()<2>();
    dot.template operator()<3>();
  }
  return 2.0 * static_cast<double>(rounds * kSteps * kChains) * kTileSide * kTileSide * (4 * kTileSide / kElementBytes);
#else
  return 0;
#endif
}

}  // namespace

double matrix_multiply_add(int64_t rounds) { return multiply_tiles<2>(rounds); }
double i8_matrix_multiply_add(int64_t rounds) { return multiply_tiles<1>(rounds); }

ScopedMatrixUnit::ScopedMatrixUnit(const MatrixUnit* unit) { of_a_test = unit; }
ScopedMatrixUnit::~ScopedMatrixUnit() { of_a_test.reset(); }

}  // namespace ejk::cpu
