#include "ejkernel/platform/cuda/literal.h"

#include <gtest/gtest.h>

namespace ejk {

enum class LiteralMask : int { full, causal };
struct LiteralTile {
  int rows, columns;
};
struct LiteralVariant {
  int head_dim = 128;
  bool has_bias = false;
  LiteralMask mask = LiteralMask::full;
  LiteralTile tile = {64, 128};
};
struct LiteralFlag {
  bool on = true;
};

namespace {

TEST(Literal, names_types_and_values_in_order) {
  EXPECT_EQ(cuda::literal(LiteralFlag{}), "ejk::LiteralFlag{true}");
  EXPECT_EQ(cuda::literal(LiteralTile{-1, 7}), "ejk::LiteralTile{-1, 7}");
  EXPECT_EQ(cuda::literal(LiteralVariant{.has_bias = true, .mask = LiteralMask::causal}),
            "ejk::LiteralVariant{128, true, ejk::LiteralMask(1), ejk::LiteralTile{64, 128}}");
}

TEST(Literal, counts_members) {
  struct Six {
    int a, b, c;
    bool d, e;
    LiteralMask f;
  };
  EXPECT_EQ(cuda::literal_detail::num_members<Six>(), 6u);
  EXPECT_EQ(cuda::literal_detail::num_members<LiteralVariant>(), 4u);
}

}  // namespace
}  // namespace ejk
