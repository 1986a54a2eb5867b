#include "ejkernel/core/allocator.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>

#include "ejkernel/core/error.h"

namespace ejk {
namespace {

constexpr size_t kGuardBytes = kHostAlignment;
constexpr int kGuardPattern = 0xa7;
constexpr int kPoison = 0xff;

std::atomic<int64_t> allocations_until_failure{0};
std::atomic<int64_t> live_blocks{0};
std::atomic<bool> guard_is_on{false};
std::atomic<bool> poison_is_on{false};

/// Sizes of the blocks that have guard bands. Ordinary blocks have no header, so that an address sanitizer still sees
/// an access one byte outside of them.
struct GuardedBlocks {
  std::mutex mutex;
  std::unordered_map<void*, size_t> bytes;
  std::atomic<int64_t> count{0};  ///< lets free_host skip the lock while there are none
};

GuardedBlocks& guarded_blocks() {
  static auto* blocks = new GuardedBlocks;  // never destroyed: arrays may outlive static destructors
  return *blocks;
}

/// More than the machine has is refused here: the kernel of an overcommitting system would promise it and kill the
/// process later, at the first touch.
size_t largest_block() {
  static const size_t bytes = [] {
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page_size = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_size > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page_size) : SIZE_MAX / 2;
  }();
  return bytes;
}

[[noreturn]] void refuse(size_t bytes) {
  throw Internal("allocate_host: " + std::to_string(bytes) +
                     " bytes of host memory were needed, and the system has not got them; free memory or make the "
                     "problem smaller",
                 ErrorCode::out_of_memory);
}

bool is_told_to_fail() {
  return allocations_until_failure.load(std::memory_order_relaxed) > 0 && allocations_until_failure.fetch_sub(1) == 1;
}

void* allocate_aligned(size_t bytes) {
  void* block = nullptr;
  if (bytes > largest_block() || posix_memalign(&block, kHostAlignment, bytes) != 0) return nullptr;
  return block;
}

void* allocate_guarded(size_t bytes) {
  if (bytes > largest_block()) return nullptr;
  auto* raw = static_cast<unsigned char*>(allocate_aligned(bytes + 2 * kGuardBytes));
  if (raw == nullptr) return nullptr;
  std::memset(raw, kGuardPattern, kGuardBytes);
  std::memset(raw + kGuardBytes + bytes, kGuardPattern, kGuardBytes);
  auto& blocks = guarded_blocks();
  try {
    const std::lock_guard lock(blocks.mutex);
    blocks.bytes.emplace(raw + kGuardBytes, bytes);
  } catch (const std::bad_alloc&) {
    std::free(raw);
    return nullptr;
  }
  blocks.count.fetch_add(1);
  return raw + kGuardBytes;
}

void check_guard(const unsigned char* band, const char* where, const void* block, size_t bytes) {
  const auto* changed = std::find_if(band, band + kGuardBytes, [](unsigned char b) { return b != kGuardPattern; });
  if (changed == band + kGuardBytes) return;
  std::fprintf(stderr, "ejkernel: free_host: a write %s the %zu bytes at %p was found, %td bytes into the guard band\n",
               where, bytes, block, changed - band);
  std::abort();
}

/// True when `block` had guard bands; they were whole, and the block is freed.
bool free_guarded(void* block) noexcept {
  auto& blocks = guarded_blocks();
  size_t bytes = 0;
  {
    const std::lock_guard lock(blocks.mutex);
    const auto found = blocks.bytes.find(block);
    if (found == blocks.bytes.end()) return false;
    bytes = found->second;
    blocks.bytes.erase(found);
  }
  blocks.count.fetch_sub(1);
  auto* data = static_cast<unsigned char*>(block);
  check_guard(data - kGuardBytes, "before", block, bytes);
  check_guard(data + bytes, "past", block, bytes);
  if (poison_is_on) std::memset(block, kPoison, bytes);
  std::free(data - kGuardBytes);
  return true;
}

}  // namespace

void* allocate_host(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* block = nullptr;
  if (!is_told_to_fail()) block = guard_is_on ? allocate_guarded(bytes) : allocate_aligned(bytes);
  if (block == nullptr) refuse(bytes);
  if (poison_is_on) std::memset(block, kPoison, bytes);
  live_blocks.fetch_add(1, std::memory_order_relaxed);
  return block;
}

void free_host(void* block) noexcept {
  if (block == nullptr) return;
  live_blocks.fetch_sub(1, std::memory_order_relaxed);
  if (guarded_blocks().count.load() > 0 && free_guarded(block)) return;
  if (poison_is_on) std::memset(block, kPoison, malloc_usable_size(block));
  std::free(block);
}

void set_allocation_debug(AllocationDebug debug) {
  guard_is_on = debug.guard;
  poison_is_on = debug.poison;
}

AllocationDebug allocation_debug() { return {.guard = guard_is_on, .poison = poison_is_on}; }

void fail_host_allocation(int64_t k) { allocations_until_failure = k; }

int64_t num_host_blocks() { return live_blocks; }

}  // namespace ejk
