// Every metamorphic relation on every kernel.
#include <gtest/gtest.h>

#include "ejkernel/testing/check.h"
#include "ejkernel/testing/operations.h"

namespace ejk::testing {
namespace {

struct Instance {
  const TestOperation* tests;
  const Relation* relation;
};
std::vector<Instance> every_relation() {
  std::vector<Instance> all;
  for (const TestOperation* tests : test_operations())
    for (const Relation& relation : tests->relations) all.push_back({tests, &relation});
  return all;
}
void PrintTo(const Instance& i, std::ostream* out) { *out << i.relation->name; }
std::string name_of(const ::testing::TestParamInfo<Instance>& info) {
  std::string name = std::string(info.param.tests->name()) + "_" + std::string(info.param.relation->name);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

class EveryRelation : public ::testing::TestWithParam<Instance> {};

TEST_P(EveryRelation, holds_for_every_kernel) {
  const auto& [tests, relation] = GetParam();
  constexpr uint64_t kSeeds = 12;
  for (const Kernel& kernel : kernels_of(*tests->declaration)) {
    uint64_t met = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      try {
        const std::string wrong = relation->check(seed, Size::small, KernelRunner(kernel));
        ++met;
        EXPECT_EQ(wrong, "") << tests->name() << " " << kernel->name << ": " << relation->name << ", seed " << seed;
      } catch (const RelationSkipped&) {
      } catch (const RelationBroken& broken) {
        ADD_FAILURE() << tests->name() << " " << kernel->name << ": " << broken.what << ", seed " << seed;
      }
    }
    EXPECT_GT(met, kSeeds / 2) << kernel->name << " declines most problems of the relation: it proves nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(Relations, EveryRelation, ::testing::ValuesIn(every_relation()), name_of);

}  // namespace
}  // namespace ejk::testing
