#include "ejkernel/core/contract.h"

#include <gtest/gtest.h>

namespace ejk {
namespace {

constexpr Contract kForms("float[batch, q_len] | float32?[] ; - ; @query&[num_seqs+1, 2*dim, 7, heads/1]");

TEST(Contract, has_a_form_per_semicolon_and_alternatives_within) {
  static_assert(kForms.num_forms() == 3 && kForms.size() == 3);
  const Alternative* a = kForms.begin();
  EXPECT_EQ(a[0].form, 0);
  EXPECT_EQ(a[1].form, 0);
  EXPECT_EQ(a[2].form, 2);
  EXPECT_TRUE(kForms.applies(a[0], 0));
  EXPECT_FALSE(kForms.applies(a[0], 1)) << "'-': nothing is accepted in the second form";
  EXPECT_FALSE(kForms.applies(a[2], 1));
}

TEST(Contract, of_one_form_serves_every_form) {
  static constexpr Contract kOne("bool[n]");
  EXPECT_TRUE(kOne.applies(*kOne.begin(), 0));
  EXPECT_TRUE(kOne.applies(*kOne.begin(), 5));
}

TEST(Contract, alternatives_keep_what_they_say) {
  const Alternative &first = kForms.begin()[0], &second = kForms.begin()[1], &third = kForms.begin()[2];
  EXPECT_EQ(first.rank, 2);
  EXPECT_EQ(first.dims_text, "[batch, q_len]");
  EXPECT_FALSE(first.optional);
  EXPECT_EQ(second.rank, 0);
  EXPECT_TRUE(second.optional);
  EXPECT_EQ(second.dtype_text, "float32");
  EXPECT_TRUE(third.aliased);
  EXPECT_FALSE(third.optional);
  EXPECT_EQ(kForms.text(), "float[batch, q_len] | float32?[] ; - ; @query&[num_seqs+1, 2*dim, 7, heads/1]");
}

TEST(Contract, dimensions_are_names_numbers_sums_products_and_broadcasts) {
  const auto& dims = kForms.begin()[2].dims;
  EXPECT_EQ(dims[0].kind, Dim::Kind::plus);
  EXPECT_EQ(dims[0].name, "num_seqs");
  EXPECT_EQ(dims[0].number, 1);
  EXPECT_EQ(dims[1].kind, Dim::Kind::times);
  EXPECT_EQ(dims[1].name, "dim");
  EXPECT_EQ(dims[1].number, 2);
  EXPECT_EQ(dims[2].kind, Dim::Kind::number);
  EXPECT_EQ(dims[2].number, 7);
  EXPECT_EQ(dims[3].kind, Dim::Kind::broadcast);
  EXPECT_EQ(dims[3].name, "heads");
  EXPECT_EQ(kForms.begin()[0].dims[0].kind, Dim::Kind::name);
}

TEST(Contract, dtypes_are_classes_names_and_references) {
  static constexpr Contract kRules("@x[] | result@y[] | stats@z[] | state@w[] | number[]");
  const Alternative* a = kRules.begin();
  EXPECT_EQ(a[0].rule, DTypeRule::same_as);
  EXPECT_EQ(a[0].dtype_text, "x");
  EXPECT_EQ(a[1].rule, DTypeRule::result_of);
  EXPECT_EQ(a[1].dtype_text, "y");
  EXPECT_EQ(a[2].rule, DTypeRule::stats_of);
  EXPECT_EQ(a[2].dtype_text, "z");
  EXPECT_EQ(a[3].rule, DTypeRule::state_of);
  EXPECT_EQ(a[3].dtype_text, "w");
  EXPECT_EQ(a[4].rule, DTypeRule::one_of);
  EXPECT_EQ(a[4].dtypes, kFloat | kQuantised8);
}

TEST(Contract, every_dtype_class_is_a_word_of_its_own) {
  DTypeSet all = 0;
  for (size_t i = 0; i < kDTypeClasses.size(); ++i) {
    EXPECT_NE(kDTypeClasses[i].dtypes, 0u) << kDTypeClasses[i].name;
    for (size_t j = 0; j < i; ++j) EXPECT_NE(kDTypeClasses[i].name, kDTypeClasses[j].name);
    all |= kDTypeClasses[i].dtypes;
  }
  EXPECT_EQ(all, (DTypeSet{1} << kNumDTypes) - 1) << "every dtype can be named";
}

}  // namespace
}  // namespace ejk
