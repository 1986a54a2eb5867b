#include "ejkernel/core/allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "ejkernel/core/error.h"

namespace ejk {
namespace {

/// Puts the process-wide switches back, whatever the test does.
class Allocator : public ::testing::Test {
 protected:
  void TearDown() override {
    fail_host_allocation(0);
    set_allocation_debug(before_);
  }

 private:
  AllocationDebug before_ = allocation_debug();
};

TEST_F(Allocator, blocks_are_aligned_counted_and_empty_ones_are_null) {
  const int64_t before = num_host_blocks();
  EXPECT_EQ(allocate_host(0), nullptr);
  EXPECT_EQ(num_host_blocks(), before);
  std::vector<void*> blocks;
  for (size_t bytes : {1u, 63u, 64u, 65u, 4096u, 100001u}) {
    blocks.push_back(allocate_host(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back()) % kHostAlignment, 0u);
    std::fill_n(static_cast<unsigned char*>(blocks.back()), bytes, static_cast<unsigned char>(1));
  }
  EXPECT_EQ(num_host_blocks(), before + 6);
  for (void* block : blocks) free_host(block);
  free_host(nullptr);
  EXPECT_EQ(num_host_blocks(), before);
}

TEST_F(Allocator, the_kth_allocation_fails_once_with_a_typed_error) {
  fail_host_allocation(3);
  void* first = allocate_host(8);
  void* second = allocate_host(8);
  try {
    allocate_host(24);
    FAIL() << "the third allocation succeeded";
  } catch (const Internal& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("24 bytes"), std::string::npos) << error.what();
  }
  void* fourth = allocate_host(8);
  EXPECT_NE(fourth, nullptr);
  for (void* block : {first, second, fourth}) free_host(block);
}

TEST_F(Allocator, more_than_the_machine_has_is_refused) {
  for (size_t bytes : {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 2, size_t{1} << 50}) {
    EXPECT_THROW(allocate_host(bytes), Internal);
    set_allocation_debug({.guard = true});
    EXPECT_THROW(allocate_host(bytes), Internal);
    set_allocation_debug({});
  }
}

TEST_F(Allocator, poison_fills_fresh_blocks) {
  for (bool guard : {false, true}) {
    set_allocation_debug({.guard = guard, .poison = true});
    auto* block = static_cast<unsigned char*>(allocate_host(100));
    EXPECT_EQ(std::count(block, block + 100, 0xff), 100);
    free_host(block);
  }
}

TEST_F(Allocator, guarded_blocks_may_be_written_to_their_last_byte_and_freed_after_the_switch_is_off) {
  set_allocation_debug({.guard = true});
  for (size_t bytes : {1u, 64u, 77u}) {
    auto* block = static_cast<unsigned char*>(allocate_host(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % kHostAlignment, 0u);
    std::fill_n(block, bytes, static_cast<unsigned char>(0));
    set_allocation_debug({});
    free_host(block);
    set_allocation_debug({.guard = true});
  }
}

using AllocatorDeathTest = Allocator;

TEST_F(AllocatorDeathTest, guard_bands_catch_a_write_one_byte_outside) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto write_at = [](ptrdiff_t index) {
    set_allocation_debug({.guard = true});
    auto* block = static_cast<unsigned char*>(allocate_host(77));
    block[index] = 1;
    free_host(block);
  };
  EXPECT_DEATH(write_at(77), "a write past the 77 bytes at .* 0 bytes into the guard band");
  EXPECT_DEATH(write_at(-1), "a write before the 77 bytes at .* 63 bytes into the guard band");
}

TEST_F(Allocator, threads_may_allocate_fail_and_free_at_the_same_time) {
  const int64_t before = num_host_blocks();
  std::atomic<int> failures = 0;
  set_allocation_debug({.guard = true});
  fail_host_allocation(50);
  const auto work = [&] {
    for (int i = 0; i < 200; ++i) {
      try {
        free_host(allocate_host(32));
      } catch (const Internal&) {
        ++failures;
      }
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(num_host_blocks(), before);
}

}  // namespace
}  // namespace ejk
