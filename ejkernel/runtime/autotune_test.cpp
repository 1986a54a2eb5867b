// Tuning by call: which recorded calls are one problem, in what order they are tuned, and with what data.
#include "ejkernel/runtime/autotune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/testing/temporary_folder.h"
#include "ejkernel/testing/toy_tunable.h"

namespace ejk::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

/// A recorded call of toy on so many rows.
Invocation toy_call(int64_t rows, int64_t count, double seconds = 0) {
  return {.operation = "toy",
          .inputs = {Tensor(nullptr, DType::f32, {rows, 4}), Tensor()},
          .params = ParamsBlock::of(Toy::Params{}),
          .count = count,
          .seconds = seconds};
}

class Autotune : public ::testing::Test {
 protected:
  Autotune() {
    use_store(folder / "store");
    ToyTunable::by_default = {.delay = 1};
    ToyTunable::offered = {{.delay = 0}};
    ToyTunable::num_runs = 0;
    KernelRegistry::instance().add("toy", make_kernel<Toy, ToyTunable>(), 10000);
  }
  ~Autotune() override {
    stop_recording();
    clear_invocations();
    clear_memory_configs();
    use_store("");
  }

  static std::vector<std::vector<size_t>> merged(std::span<const Invocation> calls) {
    std::vector<std::vector<size_t>> all;
    for (const RecordedProblem& problem : recorded_problems(calls)) all.push_back(problem.calls);
    return all;
  }

  const TemporaryFolder folder;
  const KernelRegistry::Batch batch{(register_toys(), KernelRegistry::instance())};
};

TEST_F(Autotune, tunes_one_call_by_its_operation) {
  const TuneReport made_up = autotune<Toy>({.x = Tensor(nullptr, DType::f32, {8, 4})}, {}, {.budget_seconds = 0.05});
  EXPECT_EQ(made_up.kernel->name, "tunable");
  EXPECT_THAT(made_up.candidates, SizeIs(2));
  EXPECT_TRUE(made_up.published);
  const Array x = Array::zeros(DType::f32, {8, 4});
  EXPECT_THAT(autotune<Toy>({.x = x}, {}, {.verify_only = true}).candidates, SizeIs(2));
  EXPECT_THAT([&] { autotune<Toy>({.x = x}, {}, {}, {.platform = Platform::reference}); },
              ThrowsMessage<Unsupported>(HasSubstr("kernel reference has one config for this call")));
}

// ---- problems ----

TEST_F(Autotune, has_each_problem_once_and_knows_its_calls) {
  // Lengths of 17 to 24 share a bucket; another kernel is another problem.
  std::vector<Invocation> calls = {toy_call(17, 1), toy_call(30, 2), toy_call(24, 3), toy_call(20, 4), toy_call(24, 1)};
  calls[4].options.kernel = "fast";
  const std::vector<RecordedProblem> problems = recorded_problems(calls);
  ASSERT_THAT(problems, SizeIs(3));
  EXPECT_THAT(problems[0].calls, ElementsAre(3, 2, 0)) << "the heaviest first";
  EXPECT_EQ(problems[0].count, 8);
  EXPECT_EQ(problems[0].plan->inputs()[0].shape[0], 20) << "it is the one to tune with";
  EXPECT_THAT(problems[1].calls, ElementsAre(1));
  EXPECT_THAT(problems[2].calls, ElementsAre(4));
  EXPECT_EQ(problems[2].plan->kernel().name, "fast");
  EXPECT_EQ(ToyTunable::num_runs, 0);
}

TEST_F(Autotune, takes_the_heaviest_first_by_time_where_all_times_are_known_else_by_count) {
  EXPECT_THAT(merged(std::vector{toy_call(1, 1, 3.0), toy_call(2, 9, 1.0), toy_call(3, 5, 2.0)}),
              ElementsAre(ElementsAre(0), ElementsAre(2), ElementsAre(1)));
  EXPECT_THAT(merged(std::vector{toy_call(1, 1, 3.0), toy_call(2, 9, 1.0), toy_call(3, 5)}),
              ElementsAre(ElementsAre(1), ElementsAre(2), ElementsAre(0)));
  EXPECT_THAT(merged(std::vector{toy_call(17, 3), toy_call(1, 4), toy_call(18, 2)}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1)))
      << "together they are heavier";
  EXPECT_THAT(merged({}), IsEmpty());
}

TEST_F(Autotune, keeps_apart_calls_that_cannot_be_planned_each_with_its_reason) {
  std::vector<Invocation> calls = {toy_call(1, 1), toy_call(1, 1), toy_call(1, 2)};
  calls[0].options.platform = calls[1].options.platform = Platform::hip;
  const std::vector<RecordedProblem> problems = recorded_problems(calls);
  ASSERT_THAT(problems, SizeIs(3));
  EXPECT_EQ(problems[0].why_not, "");
  for (const size_t n : {1, 2}) {
    EXPECT_FALSE(problems[n].plan);
    EXPECT_THAT(problems[n].why_not, HasSubstr("the call asks for platform hip"));
  }
}

// ---- tuning them ----

TEST_F(Autotune, tunes_each_recorded_problem_once_and_says_why_others_are_not) {
  std::vector<Invocation> calls = {toy_call(17, 1), toy_call(24, 9), toy_call(40, 5), toy_call(80, 4)};
  calls[2].options.platform = Platform::hip;
  calls[3].options.platform = Platform::reference;
  start_recording();
  std::vector<size_t> done;
  const std::vector<RecordedTuning> tuned =
      autotune_recorded(calls, {.budget_seconds = 0.05}, [&](const RecordedTuning&, size_t n, size_t all) {
        done.push_back(n);
        EXPECT_EQ(all, 3u);
      });
  EXPECT_THAT(done, ElementsAre(1, 2, 3));
  ASSERT_THAT(tuned, SizeIs(3));
  EXPECT_THAT(tuned[0].problem.calls, ElementsAre(1, 0));
  ASSERT_TRUE(tuned[0].report);
  EXPECT_TRUE(tuned[0].report->published);
  EXPECT_EQ(tuned[0].problem.why_not, "");
  EXPECT_FALSE(tuned[1].report || tuned[2].report);
  EXPECT_THAT(tuned[1].problem.why_not, HasSubstr("the call asks for platform hip"));
  EXPECT_THAT(tuned[2].problem.why_not, HasSubstr("has one config for this call"));
  EXPECT_THAT(get_invocations(), IsEmpty()) << "runs of the tuner are no calls of a program";
}

TEST_F(Autotune, the_first_call_that_tier_5_tunes_is_recorded_once) {
  const PolicyOverride tunes({.autotune = true});
  ToyTunable::offered = {{.delay = 0}, {.delay = 2}};
  start_recording();
  const Array x = Array::zeros(DType::f32, {8, 4});
  execute<Toy>({.x = x});
  EXPECT_GT(ToyTunable::num_runs, 1);
  ASSERT_THAT(get_invocations(), SizeIs(1));
  EXPECT_EQ(get_invocations()[0].count, 1);
}

// ---- data ----

TEST_F(Autotune, uses_recorded_index_tensors_and_makes_up_the_rest) {
  Invocation call{.operation = "mean_pooling",
                  .inputs = {Tensor(nullptr, DType::f32, {9, 2}), Tensor(), Tensor(nullptr, DType::i32, {4})},
                  .params = ParamsBlock::of(MeanPooling::Params{}),
                  .samples = {{}, {}, {0, 2, 2, 9}}};
  SyntheticInputs made = inputs_of(call, 1);
  const Tensor& offsets = made.tensors[2];
  for (int64_t n = 0; n < 4; ++n) EXPECT_EQ(get(offsets, n), call.samples[2][static_cast<size_t>(n)]);
  EXPECT_NE(get(made.tensors[0], 0), get(made.tensors[0], 1));
  EXPECT_FALSE(made.tensors[1].present());

  call.samples = {};
  made = inputs_of(call, 1);
  EXPECT_EQ(get(made.tensors[2], 0), 0);
  EXPECT_EQ(get(made.tensors[2], 3), 9) << "offsets that are made up end at the last row";

  call.samples = {{}, {}, {0, 9}};
  EXPECT_THAT([&] { inputs_of(call, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("a recorded sample must hold every number of an index tensor")));
  call.samples = {{1, 2, 3}};
  EXPECT_THROW(inputs_of(call, 1), InvalidArgument) << "floats are no index tensor";
}

TEST_F(Autotune, makes_no_data_that_the_machine_has_no_room_for) {
  Invocation call = toy_call(int64_t{1} << 45, 1);
  EXPECT_THAT([&] { inputs_of(call, 1); },
              ThrowsMessage<Unsupported>(HasSubstr("more than a quarter of the memory that is free")));
  call = toy_call(2, 1);
  call.inputs[0].strides = {int64_t{1} << 50, 1};  // small, and far apart
  const std::vector<RecordedTuning> tuned = autotune_recorded(std::span(&call, 1));
  EXPECT_THAT(tuned.at(0).problem.why_not, HasSubstr("that may be made up"));
}

}  // namespace
}  // namespace ejk::testing
