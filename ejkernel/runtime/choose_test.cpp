// Every tier with a hit, a miss and an illegal config; policies; platforms; the cache of choices.
#include "ejkernel/runtime/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstdlib>
#include <memory>
#include <thread>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/log.h"
#include "ejkernel/runtime/explain.h"
#include "ejkernel/testing/toy.h"

namespace ejk::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr Policy kNothing = {.autotune = false, .heuristics = false};

/// Collects what the library logs while a test runs.
class Choose : public ::testing::Test {
 protected:
  Choose() {
    register_toys();
    set_log([](LogLevel, const char* text, void* self) { static_cast<Choose*>(self)->logged.emplace_back(text); }, this,
            LogLevel::warning);
  }
  ~Choose() override {
    set_log(nullptr, nullptr);
    clear_memory_configs();
    ToyFast::has_wide_unit = false;
  }

  static PlanFor<Toy> toy_plan(const PlanOptions& options = {}, const Shape& shape = {8, 4}) {
    return plan<Toy>({.x = Tensor(nullptr, DType::f32, shape)}, {}, options);
  }
  /// "heuristics block=16 unroll=1"
  static std::string chosen(const PlanOptions& options = {}, const Shape& shape = {8, 4}) {
    const Plan made = toy_plan(options, shape);
    return std::string(name(made.choice().tier)) + " " + to_string(made.kernel(), made.choice().config);
  }
  static PlanOptions with_config(ConfigValues values) {
    PlanOptions options;
    options.config = std::move(values);
    return options;
  }
  static PlanOptions with_policy(Policy policy) {
    PlanOptions options;
    options.policy = policy;
    return options;
  }
  static std::vector<std::string> tier_answers(const PlanOptions& options = {}) {
    const auto inputs = to_array(Toy::Inputs{.x = Tensor(nullptr, DType::f32, {8, 4})});
    std::vector<std::string> answers;
    for (const TierAnswer& answer : explain("toy", inputs, ParamsBlock::of(Toy::Params{}), options).trail.tiers)
      answers.push_back(std::to_string(static_cast<int>(answer.tier)) + " " + answer.answer);
    return answers;
  }

  std::vector<std::string> logged;
};

// ---- tier 1 ----

TEST_F(Choose, an_override_wins_over_everything_under_every_policy) {
  const Overlay overlay("toy", "fast", {{"block", 32}});
  set_memory_config(toy_plan(), {{"block", 32}});
  EXPECT_EQ(chosen(with_config({{"block", 64}})), "override block=64 unroll=1");
  PlanOptions options = with_config({{"block", 64}, {"unroll", 2}});
  options.policy = kNothing;
  EXPECT_EQ(chosen(options), "override block=64 unroll=2");
}

TEST_F(Choose, an_override_is_never_stored) {
  EXPECT_EQ(chosen(with_config({{"block", 64}})), "override block=64 unroll=1");
  EXPECT_EQ(chosen(), "heuristics block=16 unroll=1");
}

TEST_F(Choose, an_illegal_override_is_the_callers_mistake) {
  EXPECT_THAT(
      [] {
        chosen(with_config({{"block", 17}}));
      },
      ThrowsMessage<InvalidArgument>("toy: config field block of kernel fast must be one of 16, 32, 64, got 17; "
                                     "choose a legal value"));
  EXPECT_THAT(
      [] {
        chosen(with_config({{"blocks", 16}}));
      },
      ThrowsMessage<InvalidArgument>(
          HasSubstr("must be one of kernel fast's, got an unknown name; it has block unroll")));
}

// ---- tier 2 ----

TEST_F(Choose, the_innermost_overlay_wins_until_its_scope_ends) {
  EXPECT_EQ(chosen(), "heuristics block=16 unroll=1");
  {
    const Overlay outer("toy", "fast", {{"block", 32}, {"unroll", 2}});
    EXPECT_EQ(chosen(), "overlay block=32 unroll=2");
    {
      const Overlay inner("toy", "fast", {{"block", 64}});
      EXPECT_EQ(chosen(), "overlay block=64 unroll=1") << "over the heuristic config, not over the outer overlay";
      EXPECT_EQ(chosen(with_policy(kNothing)), "overlay block=64 unroll=1");
    }
    EXPECT_EQ(chosen(), "overlay block=32 unroll=2");
  }
  EXPECT_EQ(chosen(), "heuristics block=16 unroll=1");
}

TEST_F(Choose, an_overlay_belongs_to_its_thread) {
  const Overlay overlay("toy", "fast", {{"block", 32}});
  std::thread([] { EXPECT_EQ(chosen(), "heuristics block=16 unroll=1"); }).join();
}

TEST_F(Choose, an_overlay_for_another_operation_or_kernel_is_a_miss) {
  const Overlay other_operation("flash_attention", "fast", {{"block", 32}});
  const Overlay other_kernel("toy", "picky", {{"block", 32}});
  EXPECT_EQ(chosen(), "heuristics block=16 unroll=1");
}

TEST_F(Choose, an_illegal_overlay_is_a_miss_counted_and_logged) {
  const int64_t before = num_illegal_configs();
  const Overlay outer("toy", "fast", {{"block", 32}});
  const Overlay inner("toy", "fast", {{"block", 17}});
  EXPECT_EQ(chosen(), "overlay block=32 unroll=1") << "the next one out answers";
  EXPECT_EQ(num_illegal_configs(), before + 1);
  EXPECT_THAT(logged, ElementsAre(HasSubstr("block of kernel fast must be one of 16, 32, 64, got 17")));
}

// ---- tier 3 ----

TEST_F(Choose, memory_serves_the_problem_and_only_it) {
  set_memory_config(toy_plan({}, {100, 4}), {{"block", 32}});
  EXPECT_EQ(chosen({}, {100, 4}), "memory block=32 unroll=1");
  EXPECT_EQ(chosen({}, {128, 4}), "memory block=32 unroll=1") << "the same bucket";
  EXPECT_EQ(chosen({}, {129, 4}), "heuristics block=64 unroll=1") << "another bucket";
  EXPECT_EQ(chosen({}, {100, 5}), "heuristics block=64 unroll=1") << "another extent";
  EXPECT_EQ(chosen(with_policy(kNothing), {100, 4}), "memory block=32 unroll=1");
  clear_memory_configs();
  EXPECT_EQ(chosen({}, {100, 4}), "heuristics block=64 unroll=1");
}

TEST_F(Choose, memory_holds_one_config_per_kernel) {
  PlanOptions reference;
  reference.kernel = "reference";
  set_memory_config(toy_plan(), {{"block", 32}});
  EXPECT_EQ(chosen(reference), "heuristics -");
}

TEST_F(Choose, an_illegal_config_in_memory_is_a_miss_counted_and_logged) {
  const Plan made = toy_plan();
  set_memory_config(made.request(), made.kernel(), ConfigBlock::of(ToyFast::Config{.block = 5}));
  const int64_t before = num_illegal_configs();
  EXPECT_EQ(chosen(), "heuristics block=16 unroll=1");
  EXPECT_EQ(num_illegal_configs(), before + 1);
  EXPECT_THAT(logged, ElementsAre(HasSubstr("toy: kernel fast cannot run the cached config block=5 unroll=1")));
  EXPECT_THROW(chosen(with_policy(kNothing)), Unsupported);
}

TEST_F(Choose, setting_an_illegal_config_by_hand_is_refused) {
  EXPECT_THROW(set_memory_config(toy_plan(), {{"block", 5}}), InvalidArgument);
}

// ---- what the machine cannot run ----

TEST_F(Choose, an_override_that_this_machine_cannot_run_is_refused_with_the_reason) {
  EXPECT_THAT(
      [] {
        chosen(with_config({{"unroll", 4}}));
      },
      ThrowsMessage<Unsupported>("toy: kernel fast cannot run the config block=16 unroll=4: unroll=4 needs a unit that "
                                 "this machine lacks"));
}

TEST_F(Choose, another_machines_config_is_a_miss_counted_and_logged) {
  const int64_t before = num_illegal_configs();
  set_memory_config(toy_plan(), {{"unroll", 4}});
  const Overlay overlay("toy", "fast", {{"unroll", 4}});
  EXPECT_EQ(chosen(), "heuristics block=16 unroll=1");
  EXPECT_EQ(num_illegal_configs(), before + 2);
  EXPECT_THAT(logged, ::testing::Each(HasSubstr("block=16 unroll=4: unroll=4 needs a unit that this machine lacks")));
}

/// The machine may change under a process: a snapshot of it goes on elsewhere.
TEST_F(Choose, a_choice_made_before_is_asked_again_whether_it_runs_here) {
  ToyFast::has_wide_unit = true;
  set_memory_config(toy_plan(), {{"unroll", 4}});
  EXPECT_EQ(chosen(), "memory block=16 unroll=4");
  ToyFast::has_wide_unit = false;
  EXPECT_EQ(chosen(), "heuristics block=16 unroll=1");
}

TEST_F(Choose, an_overlay_lasts_as_long_as_its_object_wherever_that_is) {
  auto outer = std::make_unique<Overlay>("toy", "fast", ConfigValues{{"block", 32}});
  {
    const Overlay inner("toy", "fast", {{"block", 64}});
    EXPECT_EQ(chosen(), "overlay block=64 unroll=1");
  }
  EXPECT_EQ(chosen(), "overlay block=32 unroll=1");
  outer.reset();
  EXPECT_EQ(chosen(), "heuristics block=16 unroll=1");
}

// ---- tiers 6 and 7 ----

TEST_F(Choose, heuristics_always_answer_and_are_never_stored) {
  EXPECT_EQ(chosen(), "heuristics block=16 unroll=1");
  EXPECT_EQ(chosen(), "heuristics block=16 unroll=1") << "not memory, the second time";
  EXPECT_EQ(chosen(with_policy({.autotune = false, .heuristics = true})), "heuristics block=16 unroll=1");
}

TEST_F(Choose, without_any_answer_there_is_no_config) {
  try {
    chosen(with_policy(kNothing));
    FAIL() << "must throw";
  } catch (const Unsupported& error) {
    EXPECT_EQ(error.code(), ErrorCode::no_config);
    EXPECT_THAT(error.what(), HasSubstr("toy: no config for kernel fast: nothing was given, scoped or cached"));
  }
}

/// There is nothing to guess where there is one config, or where it was measured that no other is faster.
TEST_F(Choose, a_heuristic_that_is_no_guess_answers_under_every_policy) {
  EXPECT_EQ(chosen({.kernel = "reference", .policy = kNothing}), "heuristics -");
  set_memory_config(toy_plan().request(), toy_plan().kernel(), std::nullopt);
  EXPECT_EQ(chosen(with_policy(kNothing)), "heuristics block=16 unroll=1");
  EXPECT_EQ(tier_answers(with_policy(kNothing)).back(), "6 hit: block=16 unroll=1 (measured: nothing beats it)");
}

TEST_F(Choose, the_trail_names_every_tier_that_was_asked) {
  EXPECT_THAT(tier_answers(),
              ElementsAre("1 miss: the call names no config", "2 miss: 0 overlays on this thread, none that serves",
                          "3 miss", "4 miss", "5 not allowed by policy", "6 hit: block=16 unroll=1"));
  EXPECT_THAT(tier_answers(with_policy(kNothing)),
              ElementsAre("1 miss: the call names no config", "2 miss: 0 overlays on this thread, none that serves",
                          "3 miss", "4 miss", "5 not allowed by policy", "6 not allowed by policy", "7 no config"));
  set_memory_config(toy_plan(), {{"block", 32}});
  const Overlay illegal("toy", "fast", {{"block", 17}});
  const auto answers = tier_answers();
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_THAT(answers[1], HasSubstr("2 illegal: toy: config field block of kernel fast must be"));
  EXPECT_EQ(answers[3], "3 hit: block=32 unroll=1");
  EXPECT_THAT(tier_answers(with_config({{"block", 64}})), ElementsAre("1 hit: block=64 unroll=1"));
}

// ---- policy ----

TEST_F(Choose, a_scoped_policy_belongs_to_its_thread_and_a_calls_own_wins) {
  const PolicyOverride none(kNothing);
  EXPECT_THROW(chosen(), Unsupported);
  EXPECT_EQ(chosen(with_policy({.autotune = false})), "heuristics block=16 unroll=1");
  {
    const PolicyOverride more({.autotune = false, .heuristics = true});
    EXPECT_EQ(chosen(), "heuristics block=16 unroll=1");
  }
  EXPECT_THROW(chosen(), Unsupported);
  std::thread([] { EXPECT_EQ(chosen(), "heuristics block=16 unroll=1"); }).join();
}

// ---- kernels ----

TEST_F(Choose, a_named_platform_backend_or_kernel_works_or_raises) {
  const auto kernel = [](const PlanOptions& options) { return toy_plan(options).kernel().name; };
  EXPECT_EQ(kernel({}), "fast");
  EXPECT_EQ(kernel({.platform = Platform::reference}), "reference");
  EXPECT_EQ(kernel({.backend = Backend::cpu}), "fast");
  EXPECT_EQ(kernel({.kernel = "reference"}), "reference");
  EXPECT_THAT([&] { kernel({.platform = Platform::cuda}); },
              ThrowsMessage<Unsupported>(HasSubstr("reference: the call asks for platform cuda")));
  EXPECT_THAT([&] { kernel({.backend = Backend::gpu}); },
              ThrowsMessage<Unsupported>(HasSubstr("fast: the call asks for backend gpu")));
  EXPECT_THAT([&] { kernel({.kernel = "picky"}); },
              ThrowsMessage<Unsupported>(AllOf(HasSubstr("picky: nothing is good enough"),
                                               HasSubstr("reference: the call asks for kernel picky"))));
  EXPECT_THAT([&] { kernel({.kernel = "no such"}); }, ThrowsMessage<Unsupported>(HasSubstr("asks for kernel no such")));
}

class ChooseEnvironment : public Choose {
 protected:
  ~ChooseEnvironment() override {
    ::unsetenv("EJKERNEL_PLATFORM");
    environment::reload();
  }
};

TEST_F(ChooseEnvironment, the_environment_names_a_platform_for_calls_that_do_not) {
  ::setenv("EJKERNEL_PLATFORM", "reference", 1);
  environment::reload();
  EXPECT_EQ(toy_plan().kernel().name, "reference");
  EXPECT_EQ(toy_plan({.platform = Platform::cpu}).kernel().name, "fast");
  ::setenv("EJKERNEL_PLATFORM", "cuda", 1);
  environment::reload();
  EXPECT_THAT([] { toy_plan(); },
              ThrowsMessage<Unsupported>(HasSubstr("reference: EJKERNEL_PLATFORM asks for platform cuda")));
}

TEST_F(Choose, falling_back_to_the_reference_is_said_once) {
  const auto f64 = [](const PlanOptions& options = {}) {
    return plan<Toy>({.x = Tensor(nullptr, DType::f64, {2, 2})}, {}, options).kernel().name;
  };
  EXPECT_EQ(f64({.platform = Platform::reference}), "reference");
  EXPECT_THAT(logged, ElementsAre()) << "it was asked for";
  EXPECT_EQ(f64(), "reference");
  EXPECT_EQ(f64(), "reference");
  EXPECT_THAT(logged,
              ElementsAre(HasSubstr("toy: the reference kernel answers a call that no faster kernel supports")));
}

// ---- the cache of choices ----

/// Runtime §3: what is no part of the key must not leak from one call into another, however they meet.
TEST_F(Choose, a_thousand_pairs_of_calls_share_their_choice_and_never_a_result) {
  constexpr size_t kPairs = 1000;
  struct Seen {
    Plan plan;  // keeps its choice alive: an address alone could be used again
    double result;
  };
  std::array<std::vector<Seen>, 2> seen;
  std::barrier both(2);
  const auto call = [&](size_t side) {
    for (size_t n = 0; n < kPairs; ++n) {
      const auto index = static_cast<int64_t>(n);
      const Array x = Array::zeros(DType::f32, {1 + index % 40, 1 + index / 40});
      set(x, 0, 2);
      const double value = static_cast<double>(2 * n + side + 1);
      const Toy::Params params = n % 2 == 0 ? Toy::Params{.scale = value} : Toy::Params{.scale = 3, .shift = value};
      both.arrive_and_wait();  // the two calls of a pair meet
      const auto made = plan<Toy>({.x = x}, params);
      const auto results = made.allocate_outputs();
      const Array workspace(DType::u8, {static_cast<int64_t>(made.workspace_bytes())});
      made.run({.x = x}, {.y = results.y}, {.workspace = {workspace.as<std::byte>(), made.workspace_bytes()}});
      seen[side].push_back({made, get(results.y, 0)});
    }
  };
  std::thread other(call, 1);
  call(0);
  other.join();
  for (size_t n = 0; n < kPairs; ++n) {
    EXPECT_EQ(&seen[0][n].plan.choice(), &seen[1][n].plan.choice()) << "pair " << n;
    for (size_t side : {0u, 1u}) {
      const double value = static_cast<double>(2 * n + side + 1);
      EXPECT_EQ(seen[side][n].result, n % 2 == 0 ? 2 * value : 6 + value) << "pair " << n;
    }
  }
}

TEST_F(Choose, equal_problems_share_a_choice) {
  EXPECT_EQ(&toy_plan({}, {100, 4}).choice(), &toy_plan({}, {120, 4}).choice());
  EXPECT_NE(&toy_plan({}, {100, 4}).choice(), &toy_plan({}, {100, 5}).choice());
}

TEST_F(Choose, a_registration_reaches_problems_that_were_chosen_before) {
  EXPECT_EQ(toy_plan().kernel().name, "fast");
  {
    KernelRegistry::Batch batch(KernelRegistry::instance());
    KernelInfo first = make_kernel<Toy, ToyReference>();
    first.name = "first";
    first.platform = Platform::cpu;
    KernelRegistry::instance().add("toy", first, 10000);
    EXPECT_EQ(toy_plan().kernel().name, "first");
  }
  EXPECT_EQ(toy_plan().kernel().name, "fast");
}

}  // namespace
}  // namespace ejk::testing
