#include "ejkernel/testing/shared_caches.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/testing/random.h"
#include "ejkernel/testing/temporary_folder.h"
#include "ejkernel/testing/toy.h"

namespace ejk::testing {
namespace {

/// One of the threads.
struct Worker {
  size_t index;
  size_t num_threads;
  Random random;
  uint64_t generation = 0;  ///< the registry's, when it was last looked at

  /// A register that this thread may write: one in four looks.
  bool writes() { return random.below(4) == 0; }
  size_t any(size_t count) { return static_cast<size_t>(random.below(static_cast<int64_t>(count))); }
  size_t own(size_t count) { return index + num_threads * any(count / num_threads); }
};

/// A shared place, and what the threads do there.
class Place {
 public:
  virtual ~Place() = default;
  virtual std::string_view name() const = 0;
  /// Operations there, of a hundred.
  virtual int share() const = 0;
  /// What is wrong with the answer; empty when nothing is.
  virtual std::string visit(Worker& worker) = 0;
  /// The same of every register, when all threads are done.
  virtual std::vector<std::string> look_back() { return {}; }
};

/// Registers that are read by all, and each written by one.
template <class Written>
std::string visit_register(Written& written, Worker& worker) {
  if (!worker.writes()) return written.read(worker.any(written.count()));
  const size_t own = worker.own(written.count());
  written.write(own);
  return written.read(own);
}
template <class Written>
std::vector<std::string> read_all(Written& written) {
  std::vector<std::string> answers;
  for (size_t index = 0; index < written.count(); ++index) answers.push_back(written.read(index));
  return answers;
}

class CachePlace : public Place {
 public:
  CachePlace(std::string_view name, int share, size_t count, size_t capacity)
      : name_(name), share_(share), written_(count, capacity, /*may_forget=*/capacity < count) {}
  std::string_view name() const override { return name_; }
  int share() const override { return share_; }
  std::string visit(Worker& worker) override { return visit_register(written_, worker); }
  std::vector<std::string> look_back() override { return read_all(written_); }

 private:
  std::string_view name_;
  int share_;
  CachedRegisters<ClockCache<int64_t>> written_;
};

class FirstWinsPlace : public Place {
 public:
  FirstWinsPlace(int num_threads, int64_t most) : first_wins_(num_threads, most) {}
  std::string_view name() const override { return "first_wins"; }
  int share() const override { return 20; }
  std::string visit(Worker&) override { return first_wins_.compute(); }

 private:
  FirstWins<ClockCache<int64_t>> first_wins_;
};

PlanFor<Toy> plan_of(int64_t dim, std::string kernel = "") {
  return plan<Toy>({.x = Tensor(nullptr, DType::f32, {8, dim})}, {},
                   {.kernel = std::move(kernel), .policy = Policy{.autotune = false}});
}

/// Configs of toy problems in the memory tier; the n-th write of a register sets the n-th config, in turns.
class MemoryConfigs {
 public:
  explicit MemoryConfigs(size_t count) : registers_(count) {}
  ~MemoryConfigs() { clear_memory_configs(); }
  size_t count() const { return registers_.count(); }

  void write(size_t index) {
    const Plan known = plan_of(dim(index));
    const ToyFast::Config next = config(registers_.begin_write(index));
    set_memory_config(known, {{"block", next.block}, {"unroll", next.unroll}});
    registers_.end_write(index);
  }
  std::string read(size_t index) {
    const int64_t oldest = registers_.oldest(index);
    const Plan made = plan_of(dim(index));
    const int64_t newest = registers_.newest(index);
    if (made.choice().tier == Tier::heuristics && oldest == 0) return "";
    const auto got = made.choice().config.as<ToyFast::Config>();
    for (int64_t value = std::max<int64_t>(oldest, 1); value <= newest && made.choice().tier == Tier::memory; ++value)
      if (config(value).block == got.block && config(value).unroll == got.unroll) return "";
    return "problem " + std::to_string(index) + " has " + std::string(ejk::name(made.choice().tier)) + " " +
           to_string(made.kernel(), made.choice().config) + " after write " + std::to_string(oldest);
  }

 private:
  static int64_t dim(size_t index) { return static_cast<int64_t>(index) + 1; }
  static ToyFast::Config config(int64_t value) {
    return {.block = 16 << value % 3, .unroll = 1 + static_cast<int>(value / 3 % 2)};
  }

  Registers registers_;
};

class MemoryPlace : public Place {
 public:
  explicit MemoryPlace(size_t count) : written_(count) {}
  std::string_view name() const override { return "memory_tier"; }
  int share() const override { return 18; }
  std::string visit(Worker& worker) override { return visit_register(written_, worker); }
  std::vector<std::string> look_back() override { return read_all(written_); }

 private:
  MemoryConfigs written_;
};

/// Of a problem that all threads have and nobody sets a config for: an overlay is seen by its thread alone.
class OverlayPlace : public Place {
 public:
  std::string_view name() const override { return "overlay"; }
  int share() const override { return 8; }
  std::string visit(Worker& worker) override {
    std::string wrong = differs_from("heuristics block=16 unroll=1");
    const int block = 16 << worker.index % 3, inner = 16 << (worker.index + 1) % 3;
    const Overlay outside("toy", "fast", {{"block", block}, {"unroll", 2}});
    {
      const Overlay inside("toy", "fast", {{"block", inner}});
      wrong += differs_from("overlay block=" + std::to_string(inner) + " unroll=1");
    }
    return wrong + differs_from("overlay block=" + std::to_string(block) + " unroll=2");
  }

 private:
  static std::string differs_from(const std::string& wanted) {
    constexpr int64_t kNobodysDim = 100000;
    const Plan made = plan_of(kNobodysDim);
    const std::string got =
        std::string(ejk::name(made.choice().tier)) + " " + to_string(made.kernel(), made.choice().config);
    return got == wanted ? "" : "under an overlay: " + got + ", not " + wanted + "; ";
  }
};

/// Looks operations up while some threads register kernels and take them back.
class RegistryPlace : public Place {
 public:
  std::string_view name() const override { return "registry"; }
  int share() const override { return 12; }
  std::string visit(Worker& worker) override {
    std::string wrong = look(worker, "", false);
    if (worker.random.below(8) != 0) return wrong;
    const std::string guest = "guest " + std::to_string(worker.index);
    {
      const KernelRegistry::Batch batch(KernelRegistry::instance());
      KernelInfo kernel = make_kernel<Toy, ToyFast>();
      kernel.name = guest;
      KernelRegistry::instance().add("toy", std::move(kernel), KernelRegistry::kStep / 2);
      wrong += look(worker, guest, true);
      if (plan_of(1, guest).kernel().name != guest) wrong += guest + " was asked for and another came; ";
    }
    return wrong + look(worker, guest, false);
  }

 private:
  /// The built-in kernels in their order, no name twice, and this thread's guest exactly while it is registered.
  static std::string look(Worker& worker, const std::string& guest, bool is_here) {
    const uint64_t generation = KernelRegistry::instance().generation();
    const auto found = KernelRegistry::instance().find("toy");
    std::set<std::string_view> names;
    std::string built_in, wrong;
    for (const auto& kernel : found->kernels) {
      names.insert(kernel->name);
      if (!kernel->name.starts_with("guest")) built_in += kernel->name + " ";
    }
    if (built_in != "picky fast reference ") wrong += "the kernels are " + built_in + "; ";
    if (names.size() != found->kernels.size()) wrong += "a kernel is there twice; ";
    if (names.contains(guest) != is_here) wrong += guest + (is_here ? " was lost; " : " is still there; ");
    if (generation < worker.generation) wrong += "the generation fell; ";
    worker.generation = generation;
    return wrong;
  }
};

/// Records, of which a few are being written at any time: syncing is slow.
class StoredRegisters {
 public:
  explicit StoredRegisters(size_t count) : registers_(count), store_(folder_ / "store") {}
  size_t count() const { return registers_.count(); }

  void write(size_t index) {
    const int64_t value = registers_.begin_write(index);
    if (store_.put(key(index), {.value = std::to_string(value), .provenance = ""})) registers_.end_write(index);
  }
  std::string read(size_t index) {
    const int64_t oldest = registers_.oldest(index);
    const auto record = store_.find(key(index));
    return registers_.fault(index, oldest, record ? std::stoll(record->value) : 0);
  }

 private:
  static RecordKey key(size_t index) {
    return {.environment = "threads", .group = "op", .text = std::to_string(index)};
  }

  Registers registers_;
  TemporaryFolder folder_{Medium::memory};
  Store store_;
};

class StorePlace : public Place {
 public:
  explicit StorePlace(size_t count) : written_(count) {}
  std::string_view name() const override { return "store"; }
  int share() const override { return 4; }
  std::string visit(Worker& worker) override { return visit_register(written_, worker); }
  std::vector<std::string> look_back() override { return read_all(written_); }

 private:
  StoredRegisters written_;
};

/// Counts from several threads; keeps the first texts.
class Faults {
 public:
  void add(std::string_view place, const std::string& fault) {
    if (fault.empty()) return;
    const std::lock_guard lock(mutex_);
    ++result_.failures;
    if (result_.notes.size() < 20) result_.notes.push_back(std::string(place) + ": " + fault);
  }
  RowResult take() { return std::move(result_); }

 private:
  std::mutex mutex_;
  RowResult result_;
};

using Places = std::vector<std::unique_ptr<Place>>;

Places make_places(int num_threads, int64_t most) {
  const auto threads = static_cast<size_t>(num_threads);
  Places places;
  places.push_back(std::make_unique<CachePlace>("cache", 26, 8 * threads, 8 * threads));
  places.push_back(std::make_unique<CachePlace>("full_cache", 12, 8 * threads, 4 * threads));
  places.push_back(std::make_unique<FirstWinsPlace>(num_threads, most));
  places.push_back(std::make_unique<MemoryPlace>(2 * threads));
  places.push_back(std::make_unique<OverlayPlace>());
  places.push_back(std::make_unique<RegistryPlace>());
  places.push_back(std::make_unique<StorePlace>(threads));
  return places;
}

/// The place that the n-th of a hundred operations goes to.
size_t place_at(const Places& places, int64_t n) {
  size_t place = 0;
  for (int64_t before = places[0]->share(); n >= before; before += places[place]->share()) ++place;
  return place;
}

void work(Worker worker, int64_t operations, const Places& places, std::vector<std::atomic<int64_t>>& counts,
          Faults& faults) {
  for (int64_t i = 0; i < operations; ++i) {
    const size_t place = place_at(places, worker.random.below(100));
    counts[place].fetch_add(1, std::memory_order_relaxed);
    try {
      faults.add(places[place]->name(), places[place]->visit(worker));
    } catch (const std::exception& error) {
      faults.add(places[place]->name(), error.what());
    }
  }
}

}  // namespace

RowResult hammer_shared_caches(int num_threads, const RowRequest& request) {
  register_toys();
  const Places places = make_places(num_threads, request.n);
  std::vector<std::atomic<int64_t>> counts(places.size());
  Faults faults;
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    const int64_t operations = (request.n + t) / num_threads;  // together n
    Worker worker{.index = static_cast<size_t>(t),
                  .num_threads = static_cast<size_t>(num_threads),
                  .random = Random(request.seed).fork(static_cast<uint64_t>(t) + 1)};
    threads.emplace_back([&, worker, operations] { work(worker, operations, places, counts, faults); });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t done = 0;
  for (const auto& place : places)
    for (const std::string& fault : place->look_back()) faults.add(place->name(), fault);
  RowResult result = faults.take();
  for (size_t place = 0; place < places.size(); ++place) {
    result.figures[std::string(places[place]->name())] = static_cast<double>(counts[place]);
    done += counts[place];
  }
  result.n = done;
  return result;
}

}  // namespace ejk::testing
