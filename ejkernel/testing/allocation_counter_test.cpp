// The counting operators themselves; they replace the ones of the whole test program.
#include "ejkernel/testing/allocation_counter.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <thread>

namespace {

thread_local int64_t news = 0;
thread_local int64_t fails_at = 0;

void* counted(std::size_t bytes, std::size_t alignment) {
  if (++news == fails_at) throw std::bad_alloc();
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* block = alignment <= alignof(std::max_align_t)
                    ? std::malloc(bytes == 0 ? 1 : bytes)
                    : std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

// Not inlined: seen together with malloc and free they look like mismatched pairs to the compiler.
[[gnu::noinline]] void* operator new(std::size_t bytes) { return counted(bytes, 1); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return counted(bytes, 1); }
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
// What the standard's sorting takes its buffer from.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept try {
  return counted(bytes, 1);
} catch (const std::bad_alloc&) {
  return nullptr;
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete[](void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete[](void* block, std::size_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete[](void* block, std::align_val_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }

namespace ejk::testing {

int64_t num_news() { return news; }
void fail_new(int64_t k) { fails_at = k == 0 ? 0 : news + k; }

namespace {

TEST(AllocationCounter, counts_this_thread_only) {
  const int64_t before = num_news();
  // A direct call: the compiler may leave out a new expression whose result goes nowhere.
  ::operator delete(::operator new(1));
  ::operator delete(::operator new(64, std::align_val_t(64)), std::align_val_t(64));
  ::operator delete(::operator new(1, std::nothrow));
  EXPECT_EQ(num_news() - before, 3);
  std::thread other([] { ::operator delete(::operator new(1)); });
  const int64_t started = num_news();  // std::thread itself allocates here
  other.join();
  EXPECT_EQ(num_news(), started);
}

TEST(AllocationCounter, fails_the_kth_and_only_it) {
  fail_new(2);
  ::operator delete(::operator new(1));
  EXPECT_THROW(::operator delete(::operator new(1)), std::bad_alloc);
  ::operator delete(::operator new(1));
  fail_new(0);
}

}  // namespace
}  // namespace ejk::testing
