#include "ejkernel/runtime/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "ejkernel/core/error.h"
#include "ejkernel/ops/operations.h"
#include "ejkernel/testing/toy.h"

namespace ejk::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

KernelRegistry& registry() {
  register_toys();
  return KernelRegistry::instance();
}

std::vector<std::string> kernel_names(std::string_view operation) {
  std::vector<std::string> names;
  for (const auto& kernel : registry().find(operation)->kernels) names.push_back(kernel->name);
  return names;
}

/// A toy kernel of another name.
KernelInfo named(std::string name) {
  KernelInfo kernel = make_kernel<Toy, ToyReference>();
  kernel.name = std::move(name);
  return kernel;
}

/// Whatever a test adds is taken back at its end.
class Registry : public ::testing::Test {
 protected:
  KernelRegistry::Batch batch{registry()};
};

TEST_F(Registry, built_in_operations_come_first_in_the_order_of_their_list) {
  std::vector<std::string> builtin;
  for (const Operation* operation : builtin_operations()) builtin.emplace_back(operation->name);
  std::vector<std::string> names = registry().names();
  ASSERT_GE(names.size(), builtin.size());
  names.resize(builtin.size());
  EXPECT_EQ(names, builtin);
}

TEST_F(Registry, every_built_in_operation_ends_in_a_reference) {
  for (const Operation* operation : builtin_operations()) {
    const auto& kernels = registry().find(operation->name)->kernels;
    ASSERT_FALSE(kernels.empty()) << operation->name;
    EXPECT_EQ(kernels.back()->platform, Platform::reference) << operation->name;
    EXPECT_EQ(kernels.back()->name, "reference") << operation->name;
  }
}

TEST_F(Registry, a_kernel_is_found_by_its_name) {
  const auto toy = registry().find("toy");
  EXPECT_EQ(find_kernel(*toy, "fast"), toy->kernels[1].get());
  EXPECT_EQ(find_kernel(*toy, "slow"), nullptr);
}

TEST_F(Registry, priorities_order_kernels) {
  EXPECT_THAT(kernel_names("toy"), ElementsAre("picky", "fast", "reference"));
  registry().add("toy", named("before_all"), 1000);
  registry().add("toy", named("between"), 150);
  registry().add("toy", named("beside_fast"), KernelRegistry::kStep);  // the same as fast's: after it
  registry().add("toy", named("never"), -1);
  EXPECT_THAT(kernel_names("toy"),
              ElementsAre("before_all", "picky", "between", "fast", "beside_fast", "reference", "never"));
}

TEST_F(Registry, a_published_list_does_not_change) {
  const auto before = registry().find("toy");
  const uint64_t generation = registry().generation();
  registry().add("toy", named("new"), 5);
  EXPECT_EQ(before->kernels.size(), 3u);
  EXPECT_EQ(registry().find("toy")->kernels.size(), 4u);
  EXPECT_GT(registry().generation(), generation);
}

TEST_F(Registry, names_are_unique) {
  EXPECT_THAT([] { registry().add("toy", named("fast"), 5); },
              ThrowsMessage<InvalidArgument>(HasSubstr("toy: kernel name 'fast' must be new for this operation")));
  EXPECT_THAT([] { registry().add_operation<Toy>(); },
              ThrowsMessage<InvalidArgument>(HasSubstr("toy: the operation's name must be new")));
}

TEST_F(Registry, an_operation_whose_list_repeats_a_name_is_refused_whole) {
  static Operation twice = operation<Toy>();
  twice.name = "toy_twice";
  twice.kernels = []() -> std::span<const KernelInfo* const> {
    static const KernelInfo kernel = make_kernel<Toy, ToyReference>();
    static const KernelInfo* const list[] = {&kernel, &kernel};
    return list;
  };
  EXPECT_THAT([] { registry().add_operation(twice); },
              ThrowsMessage<InvalidArgument>(HasSubstr("'reference' must be new")));
  EXPECT_THAT(
      [] { registry().find("toy_twice"); },
      ThrowsMessage<InvalidArgument>(HasSubstr("must be a registered one, got 'toy_twice'; known: flash_attention")));
}

TEST_F(Registry, incomplete_kernels_are_refused) {
  KernelInfo nameless = named("");
  EXPECT_THROW(registry().add("toy", nameless, 1), InvalidArgument);
  for (auto clear : {+[](KernelInfo& k) { k.supports = nullptr; }, +[](KernelInfo& k) { k.heuristic = nullptr; },
                     +[](KernelInfo& k) { k.candidates = nullptr; },
                     +[](KernelInfo& k) { k.workspace_bytes = nullptr; }, +[](KernelInfo& k) { k.run = nullptr; }}) {
    KernelInfo kernel = named("half");
    clear(kernel);
    EXPECT_THAT([&] { registry().add("toy", kernel, 1); },
                ThrowsMessage<InvalidArgument>(HasSubstr("must have a name and all five functions")));
  }
}

TEST_F(Registry, signatures_must_equal_the_declaration) {
  const Operation& toy = operation<Toy>();
  const std::vector<std::string> declared = signature_of<Toy>();
  EXPECT_EQ(declared, signature_of(toy));
  EXPECT_EQ(declared.front(), "input x: float[batch, dim]");
  EXPECT_THAT(declared, Contains("param mode: string = plain"));
  KernelInfo kernel = named("outside");
  kernel.signature = declared;
  EXPECT_NO_THROW(validate_signatures(toy, kernel));

  const auto refused = [&](std::string_view part) {
    EXPECT_THAT([&] { registry().add("toy", kernel, 1); },
                ThrowsMessage<InvalidArgument>(HasSubstr(std::string(part))));
    kernel.signature = declared;
  };
  kernel.signature[1] = "input weights: @x?[batch, dim]";  // optionality or shape
  refused(
      "field 1 of kernel 'outside' must be 'input weights: @x?[batch/1, dim]', got 'input weights: @x?[batch, dim]'");
  kernel.signature[2] = "param scale: float = 2";  // default
  refused("must be 'param scale: float = 1', got 'param scale: float = 2'");
  std::swap(kernel.signature[2], kernel.signature[3]);  // order
  refused("must be 'param scale: float = 1', got 'param shift: float = 0'");
  kernel.signature.pop_back();
  refused("must be 'output y: @x[batch, dim]', got 'nothing'");
  kernel.signature.push_back("output z: @x[batch, dim]");
  refused("must be 'nothing more', got 'output z");
}

TEST_F(Registry, no_kernel_is_an_error_with_every_reason) {
  const Array x(DType::f64, {2, 3});
  PlanOptions options;
  options.platform = Platform::cpu;
  EXPECT_THAT([&] { plan<Toy>({.x = x}, {}, options); },
              ThrowsMessage<Unsupported>("toy: no kernel supports this call\n"
                                         "  picky: nothing is good enough\n"
                                         "  fast: dtype must be f32\n"
                                         "  reference: the call asks for platform cpu"));
}

TEST(RegistryBatch, takes_back_what_is_not_kept) {
  static Operation temporary = operation<Toy>();
  temporary.name = "toy_temporary";
  const auto kernels = kernel_names("toy");
  const auto names = registry().names();
  {
    KernelRegistry::Batch batch(registry());
    registry().add("toy", named("temporary"), 1000);
    registry().add_operation(temporary);
    registry().add("toy_temporary", named("more"), 1);
    std::thread([] { registry().add("toy_backward", named("by_another_thread"), -5); }).join();
    EXPECT_EQ(registry().find("toy_temporary")->kernels.size(), 4u);
  }
  EXPECT_EQ(registry().names(), names);
  EXPECT_EQ(kernel_names("toy"), kernels);
  EXPECT_THAT(kernel_names("toy_backward"), Contains("by_another_thread"));
  EXPECT_THROW(registry().find("toy_temporary"), InvalidArgument);
}

TEST(RegistryBatch, keeps_when_asked) {
  {
    KernelRegistry::Batch batch(registry());
    registry().add("toy_backward", named("kept"), -7);
    batch.keep();
  }
  EXPECT_THAT(kernel_names("toy_backward"), Contains("kept"));
}

TEST(RegistryThreads, lookups_and_registrations_interleave) {
  const auto kernels = kernel_names("toy");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      KernelRegistry::Batch batch(registry());
      for (int i = 0; i < 50; ++i) {
        registry().add("toy", named("thread" + std::to_string(t) + "_" + std::to_string(i)), -10);
        EXPECT_EQ(registry().find("toy")->kernels.front()->name, "picky");
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(kernel_names("toy"), kernels);
}

}  // namespace
}  // namespace ejk::testing
