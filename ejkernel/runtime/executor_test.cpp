// A call by name: the plan of an equal one before it serves, as long as it would be made again.
#include "ejkernel/runtime/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/testing/toy.h"

namespace ejk::testing {
namespace {

/// Serves aligned data, and counts how often it is asked.
struct Asked {
  static constexpr std::string_view kName = "asked";
  static constexpr Platform kPlatform = Platform::cpu;
  static inline int times = 0;
  static Support supports(const Call<Toy>& call, const DeviceProperties&) {
    ++times;
    return reinterpret_cast<uintptr_t>(call.inputs.x.data) % 64 == 0 ? Support::yes() : Support::no("not aligned");
  }
  static void run(const Call<Toy>& call, const RunContext&) { toy_scale(call.inputs.x, call.outputs.y, 100, 0); }
};

class Execute : public ::testing::Test {
 protected:
  Execute() { register_toys(); }
  ~Execute() override {
    clear_memory_configs();
    ToyFast::has_wide_unit = false;
    ::unsetenv("EJKERNEL_PLATFORM");
    environment::reload();
  }

  /// The block of the config that the call ran with; 0 where a kernel without one ran.
  int block(const PlanOptions& options = {}) const {
    ToyFast::last_block = 0;
    execute<Toy>({.x = x}, {}, {.plan = options});
    return ToyFast::last_block;
  }
  void remember(const ConfigValues& values) const { set_memory_config(plan<Toy>({.x = x}), values); }

  const Array x = Array::zeros(DType::f32, {8, 4});
};

/// Notes how many threads it may use.
template <class Op>
struct Counting {
  static constexpr std::string_view kName = "counting";
  static constexpr Platform kPlatform = Platform::cpu;
  static inline int threads = 0;
  static Support supports(const Call<Op>&, const DeviceProperties&) { return Support::yes(); }
  static void run(const Call<Op>&, const RunContext&) { threads = cpu::num_threads(); }
};

TEST_F(Execute, small_calls_have_one_thread_unless_the_caller_says_otherwise) {
  KernelRegistry::Batch batch(KernelRegistry::instance());
  KernelRegistry::instance().add<Toy, Counting<Toy>>(10000);
  KernelRegistry::instance().add<ToyBackward, Counting<ToyBackward>>(10000);
  const int all = cpu::default_num_threads();
  const Array large = Array::zeros(DType::f32, {1 << 10, 1 << 10});
  std::thread([&] {
    execute<Toy>({.x = x});
    EXPECT_EQ(Counting<Toy>::threads, 1);
    execute<Toy>({.x = large});
    EXPECT_EQ(Counting<Toy>::threads, std::min(34, all)) << "2 million operations, 8 MiB";
    execute<ToyBackward>({.d_y = x}, {.batch = 8});
    EXPECT_EQ(Counting<ToyBackward>::threads, all) << "it does not count its work";
    const cpu::ScopedNumThreads three(3);
    execute<Toy>({.x = x});
    EXPECT_EQ(Counting<Toy>::threads, 3);
  }).join();
}

TEST_F(Execute, plans_a_call_once_for_all_that_are_equal) {
  KernelRegistry::Batch batch(KernelRegistry::instance());
  KernelRegistry::instance().add<Toy, Asked>(10000);
  Asked::times = 0;
  for (int i = 0; i < 3; ++i) execute<Toy>({.x = x});
  EXPECT_EQ(Asked::times, 1);
  const Array other = Array::zeros(DType::f32, {8, 4});
  execute<Toy>({.x = other});
  EXPECT_EQ(Asked::times, 1) << "another address, as well aligned";
  execute<Toy>({.x = Array::zeros(DType::f32, {8, 5})});
  EXPECT_EQ(Asked::times, 2) << "another shape";
  execute<Toy>({.x = x}, {.scale = 2});
  EXPECT_EQ(Asked::times, 3) << "another parameter";
}

TEST_F(Execute, tells_alignments_apart) {
  KernelRegistry::Batch batch(KernelRegistry::instance());
  KernelRegistry::instance().add<Toy, Asked>(10000);
  Array buffer = Array::zeros(DType::f32, {33});
  for (int64_t i = 0; i < 33; ++i) set(buffer, i, 1);
  const auto first_result = [&](float* data) {
    return get(execute<Toy>({.x = Tensor(data, DType::f32, {8, 4})}).y, 0);
  };
  EXPECT_EQ(first_result(buffer.as<float>()), 100);
  EXPECT_EQ(first_result(buffer.as<float>() + 1), 1);
  EXPECT_EQ(first_result(buffer.as<float>()), 100);
}

TEST_F(Execute, gives_each_of_many_calls_in_turn_its_own_result) {
  for (int round = 0; round < 2; ++round)
    for (int64_t rows = 1; rows <= 20; ++rows)
      for (const double scale : {2., 3.}) {
        Array in = Array::zeros(DType::f32, {rows, 4});
        set(in, 4 * rows - 1, static_cast<double>(rows));
        const auto [y] = execute<Toy>({.x = in}, {.scale = scale});
        EXPECT_EQ(y.shape(), in.shape());
        EXPECT_EQ(get(y, 4 * rows - 1), scale * static_cast<double>(rows));
      }
}

/// Params as they may lie in memory: what an absent value holds is anything.
TEST_F(Execute, compares_parameters_by_value) {
  KernelRegistry::Batch batch(KernelRegistry::instance());
  KernelRegistry::instance().add<Toy, Asked>(10000);
  Asked::times = 0;
  Toy::Params params;
  params.limit = 5;
  params.limit.reset();
  const std::vector<Tensor> inputs{x, Tensor()};
  execute("toy", inputs, ParamsBlock::of(params));
  execute("toy", inputs, ParamsBlock::of(Toy::Params{.limit = {}}));
  EXPECT_EQ(Asked::times, 1);
  execute("toy", inputs, ParamsBlock::of(Toy::Params{.limit = 5}));
  EXPECT_EQ(Asked::times, 2);
  execute("toy", inputs, ParamsBlock::of(Toy::Params{.shift = -0.0}));
  EXPECT_EQ(Asked::times, 3) << "-0 is not 0";
}

TEST_F(Execute, obeys_memory_overlays_and_overrides_that_come_and_go) {
  EXPECT_EQ(block(), 16);
  remember({{"block", 32}});
  EXPECT_EQ(block(), 32);
  {
    const Overlay overlay("toy", "fast", {{"block", 64}});
    EXPECT_EQ(block(), 64);
  }
  EXPECT_EQ(block(), 32);
  PlanOptions options;
  options.config = ConfigValues{{"block", 64}};
  EXPECT_EQ(block(options), 64);
  EXPECT_EQ(block(), 32);
  clear_memory_configs();
  EXPECT_EQ(block(), 16);
}

TEST_F(Execute, obeys_policies_that_come_and_go) {
  EXPECT_EQ(block(), 16);
  {
    const PolicyOverride nothing({.autotune = false, .heuristics = false});
    EXPECT_THROW(block(), Unsupported);
  }
  EXPECT_EQ(block(), 16);
}

TEST_F(Execute, obeys_the_environment_and_named_kernels) {
  EXPECT_EQ(block(), 16);
  EXPECT_EQ(block({.kernel = "reference"}), 0);
  EXPECT_EQ(block(), 16);
  ::setenv("EJKERNEL_PLATFORM", "reference", 1);
  environment::reload();
  EXPECT_EQ(block(), 0);
}

TEST_F(Execute, sees_registrations_that_come_and_go) {
  EXPECT_EQ(block(), 16);
  {
    KernelRegistry::Batch batch(KernelRegistry::instance());
    KernelRegistry::instance().add<Toy, Asked>(10000);
    EXPECT_EQ(block(), 0);
  }
  EXPECT_EQ(block(), 16);
}

/// The machine may change under a process.
TEST_F(Execute, asks_again_whether_a_config_runs_here) {
  ToyFast::has_wide_unit = true;
  remember({{"block", 32}, {"unroll", 4}});
  EXPECT_EQ(block(), 32);
  ToyFast::has_wide_unit = false;
  EXPECT_EQ(block(), 16);
}

TEST_F(Execute, refuses_a_wrong_call_after_a_right_one) {
  EXPECT_EQ(block(), 16);
  EXPECT_THROW(execute<Toy>({}), InvalidArgument);
  EXPECT_THROW(execute<Toy>({.x = Array::zeros(DType::f32, {8})}), InvalidArgument);
  EXPECT_THROW(execute("no such operation", std::vector<Tensor>{x}, ParamsBlock()), InvalidArgument);
}

/// Calls in its destructor, which runs when what belongs to the thread is gone.
struct CallsAtExit {
  ~CallsAtExit() {
    const Array x = Array::zeros(DType::f32, {8, 4});
    const auto [y] = execute<Toy>({.x = x});
    if (get(y, 0) != 0) std::abort();
  }
};

TEST(ExecuteDeathTest, serves_static_destructors) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        register_toys();
        execute<Toy>({.x = Array::zeros(DType::f32, {8, 4})});
        static const CallsAtExit at_exit;  // made after the library's own, so destroyed before them
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ejk::testing
