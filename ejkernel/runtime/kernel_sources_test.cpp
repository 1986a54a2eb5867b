#include "ejkernel/runtime/kernel_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "ejkernel/runtime/registry.h"
#include "ejkernel/testing/toy.h"

namespace ejk::testing {
namespace {

TEST(KernelSources, every_kernel_of_the_library_has_a_digest) {
  std::set<std::string_view> digests;
  for (const Operation* op : builtin_operations())
    for (const auto& kernel : KernelRegistry::instance().find(op->name)->kernels) {
      EXPECT_EQ(sources_digest(*kernel).size(), 12u) << op->name << " " << kernel->name << " in " << kernel->file;
      digests.insert(sources_digest(*kernel));
      EXPECT_THAT(revision_of(*kernel), ::testing::MatchesRegex("[0-9]+[+][0-9a-f]+"));
    }
  EXPECT_EQ(digests.size(), kernel_sources().size()) << "a file each";
}

TEST(KernelSources, of_a_users_kernel_the_revision_alone_counts) {
  const KernelInfo kernel = make_kernel<Toy, ToyFast>();
  EXPECT_EQ(kernel.file, "ejkernel/runtime/kernel_sources_test.cpp") << "wherever the tree lies";
  EXPECT_EQ(sources_digest(kernel), "");
  EXPECT_EQ(revision_of(kernel), std::to_string(kernel.revision));
}

}  // namespace
}  // namespace ejk::testing
