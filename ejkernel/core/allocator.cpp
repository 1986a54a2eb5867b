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

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"

namespace ejk {
namespace {

constexpr size_t kGuardBytes = kHostAlignment;
constexpr int kGuardPattern = 0xa7;
constexpr int kPoison = 0xff;

std::atomic<int64_t> allocations_until_failure{0};
std::atomic<int64_t> live_blocks{0};

/// AllocationDebug as bits, so that one load reads both; kAskEnvironment until the first allocation or set.
constexpr int kGuard = 1;
constexpr int kPoisoned = 2;
constexpr int kAskEnvironment = 4;
std::atomic<int> debug_bits{kAskEnvironment};

int debug_mode() {
  int bits = debug_bits.load(std::memory_order_relaxed);
  if (bits != kAskEnvironment) return bits;
  const AllocationDebug asked = environment::debug();
  const int read = (asked.guard ? kGuard : 0) | (asked.poison ? kPoisoned : 0);
  // A set_allocation_debug that came in between wins.
  return debug_bits.compare_exchange_strong(bits, read) ? read : bits;
}

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

void poison(void* block, size_t bytes) {
  std::memset(block, kPoison, bytes);
  // Compilers drop writes to memory that is freed next; this one is made to be seen by whoever reads it too late.
  asm volatile("" : : "r"(block) : "memory");
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
  if ((debug_bits & kPoisoned) != 0) poison(block, bytes);
  std::free(data - kGuardBytes);
  return true;
}

}  // namespace

void* allocate_host(size_t bytes) {
  if (bytes == 0) return nullptr;
  const int mode = debug_mode();
  void* block = nullptr;
  if (!is_told_to_fail()) block = (mode & kGuard) != 0 ? allocate_guarded(bytes) : allocate_aligned(bytes);
  if (block == nullptr) refuse(bytes);
  if ((mode & kPoisoned) != 0) poison(block, bytes);
  live_blocks.fetch_add(1, std::memory_order_relaxed);
  return block;
}

void free_host(void* block) noexcept {
  if (block == nullptr) return;
  live_blocks.fetch_sub(1, std::memory_order_relaxed);
  if (guarded_blocks().count.load() > 0 && free_guarded(block)) return;
  if ((debug_bits & kPoisoned) != 0) poison(block, malloc_usable_size(block));
  std::free(block);
}

void set_allocation_debug(AllocationDebug debug) {
  debug_bits = (debug.guard ? kGuard : 0) | (debug.poison ? kPoisoned : 0);
}

AllocationDebug allocation_debug() {
  const int mode = debug_mode();
  return {.guard = (mode & kGuard) != 0, .poison = (mode & kPoisoned) != 0};
}

void fail_host_allocation(int64_t k) { allocations_until_failure = k; }

int64_t num_host_blocks() { return live_blocks; }

}  // namespace ejk
