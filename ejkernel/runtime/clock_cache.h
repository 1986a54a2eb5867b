// A bounded, sharded map with clock eviction: what the memory tier and the cache of choices are made of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ejk {

/// Keys are compared whole; the caller brings their hash. Each shard has its own short lock, never held while anything
/// is computed. When a shard is full the hand of the clock passes over entries used since its last round.
template <class Value>
class ClockCache {
 public:
  explicit ClockCache(size_t capacity) : shard_capacity_((capacity + kNumShards - 1) / kNumShards) {}

  std::optional<Value> find(uint64_t hash, std::string_view key) {
    Shard& shard = shards_[hash % kNumShards];
    const std::lock_guard lock(shard.mutex);
    const auto found = shard.index.find(Key{hash, key});
    if (found == shard.index.end()) return std::nullopt;
    Slot& slot = shard.slots[found->second];
    slot.used = true;
    return slot.value;
  }

  void put(uint64_t hash, std::string_view key, Value value) {
    put_unless(hash, key, std::move(value), [](const Value&) { return false; });
  }

  /// Puts the value, unless there is one that `keeps`. Returns the one that is there now: of threads that computed the
  /// same at the same time, all go on with the first one's.
  template <class Keeps>
  Value put_unless(uint64_t hash, std::string_view key, Value value, Keeps keeps) {
    Shard& shard = shards_[hash % kNumShards];
    const std::lock_guard lock(shard.mutex);
    const auto found = shard.index.find(Key{hash, key});
    if (found != shard.index.end()) {
      Value& there = shard.slots[found->second].value;
      if (!keeps(there)) there = std::move(value);
      return there;
    }
    if (shard.slots.capacity() < shard_capacity_) shard.slots.reserve(shard_capacity_);
    size_t at = shard.slots.size();
    if (at < shard_capacity_)
      shard.slots.emplace_back();
    else
      at = evict(shard);
    Slot& slot = shard.slots[at];
    slot = {hash, std::string(key), std::move(value), false};
    shard.index.emplace(Key{hash, slot.key}, at);
    return slot.value;
  }

  size_t size() const {
    size_t total = 0;
    for (const Shard& shard : shards_) {
      const std::lock_guard lock(shard.mutex);
      total += shard.index.size();
    }
    return total;
  }

  void clear() {
    for (Shard& shard : shards_) {
      const std::lock_guard lock(shard.mutex);
      shard.index.clear();
      shard.slots.clear();
      shard.hand = 0;
    }
  }

 private:
  static constexpr size_t kNumShards = 16;

  struct Key {
    uint64_t hash;
    std::string_view text;  // points into the slot, which stays where it is: slots are reserved once
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const { return static_cast<size_t>(key.hash); }
  };
  struct Slot {
    uint64_t hash = 0;
    std::string key = {};
    Value value = {};
    bool used = false;
  };
  struct Shard {
    mutable std::mutex mutex;
    std::vector<Slot> slots;
    std::unordered_map<Key, size_t, Hash> index;
    size_t hand = 0;
  };

  size_t evict(Shard& shard) {
    while (shard.slots[shard.hand].used) {
      shard.slots[shard.hand].used = false;
      shard.hand = (shard.hand + 1) % shard.slots.size();
    }
    const size_t at = shard.hand;
    shard.hand = (shard.hand + 1) % shard.slots.size();
    shard.index.erase(Key{shard.slots[at].hash, shard.slots[at].key});
    return at;
  }

  size_t shard_capacity_;
  std::array<Shard, kNumShards> shards_;
};

}  // namespace ejk
