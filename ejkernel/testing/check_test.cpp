// The runner catches kernels that break a promise. Each wrong kernel is a right one that then does one thing wrong.
#include "ejkernel/testing/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/judge.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;

/// y = 2x with a second output, the row sums, and a mask that hides elements: small, but with every kind of argument.
struct Toy {
  static constexpr std::string_view kName = "toy";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "Doubles what the mask shows.", kSource = "this test";
  struct Inputs {
    Tensor x = {}, mask = {};
  };
  struct Params {
    bool deterministic = false;
  };
  template <class T>
  struct Out {
    T y = {}, sums = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;
  static constexpr auto inputs() {
    return std::array{TensorField{"x", "float[rows, dim]", "numbers"},
                      TensorField{"mask", "bool[rows, dim]", "true: shown"}};
  }
  static constexpr auto outputs() {
    return std::array{TensorField{"y", "@x[rows, dim]", "doubled"}, TensorField{"sums", "float32[rows]", "of y"}};
  }
  static constexpr auto params() {
    return std::array{param<&Params::deterministic>("deterministic", Key::none, "no effect")};
  }
  static Work work(const Call<Toy>&) { return {}; }
  static std::span<const KernelInfo* const> kernels() { return {}; }
};

enum class Wrong : uint8_t {
  nothing,
  one_past_the_end,
  one_before,
  leaves_one_unwritten,
  reads_masked,
  writes_its_input,
  writes_unwanted,
  depends_on_what_is_wanted,
  past_its_workspace,
  rounds_badly,
  sets_the_status,
  throws
};

/// On a GPU it computes in the fake one's memory, which is the host's.
template <Wrong kWrong, Platform kOn>
struct Double {
  static constexpr std::string_view kName = "double";
  static constexpr Platform kPlatform = kOn;
  static constexpr size_t kWorkspace = 128;
  static size_t workspace_bytes(const Call<Toy>&, const NoConfig&, const DeviceProperties&) { return kWorkspace; }

  static void run(const Call<Toy>& call, const RunContext& context) {
    if constexpr (kWrong == Wrong::throws) throw std::runtime_error("no");
    const Tensor &x = call.inputs.x, &mask = call.inputs.mask, &y = call.outputs.y, &sums = call.outputs.sums;
    const int64_t dim = x.shape[1];
    for (int64_t r = 0; r < x.shape[0]; ++r) {
      double sum = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const int64_t n = r * dim + d;
        const double shown = kWrong == Wrong::reads_masked ? get(x, n) * get(mask, n)
                             : get(mask, n) != 0           ? get(x, n)
                                                           : 0;
        const double factor = kWrong == Wrong::rounds_badly && n == 2 ? 2.001 : 2;
        sum += factor * shown;
        if (y.present() && !(kWrong == Wrong::leaves_one_unwritten && n == 4)) set(y, n, factor * shown);
      }
      const bool other = kWrong == Wrong::depends_on_what_is_wanted && !y.present();
      if (sums.present()) set(sums, r, other ? sum * (1 + 1e-7) : sum);
    }
    std::byte* const workspace = context.workspace.data();
    if constexpr (kWrong == Wrong::one_past_the_end)
      if (y.present()) y.as<float>()[element_range(y)[1]] = 1;
    if constexpr (kWrong == Wrong::one_before)
      if (y.present()) y.as<float>()[element_range(y)[0] - 1] = 1;
    if constexpr (kWrong == Wrong::writes_its_input) set(x, 0, 17);
    if constexpr (kWrong == Wrong::past_its_workspace) workspace[kWorkspace] = std::byte{1};
    if constexpr (kWrong == Wrong::sets_the_status) *context.status |= status::kLength;
    for (size_t n = 0; n < kWorkspace; ++n) workspace[n] = std::byte{0};
  }
};

Problem toy_problem(bool nan_where_masked) {
  Problem problem = Problem::of(operation<Toy>());
  problem.label = "toy";
  problem.replay = "--seed=1";
  Random random(1);
  const Tensor x = problem.add("x", DType::f32, {3, 4}), mask = problem.add("mask", DType::boolean, {3, 4});
  fill(mask, [&](int64_t n) { return n % 3 != 0; });
  fill(x, [&](int64_t n) {
    return get(mask, n) == 0 && nan_where_masked ? std::numeric_limits<double>::quiet_NaN() : random.normal();
  });
  return problem;
}

Answer toy_answer(const Problem& problem) {
  Answer answer;
  answer.outputs.resize(2, {.present = true});
  Expected &y = answer.outputs[0], &sums = answer.outputs[1];
  const Tensor x = problem.view("x"), mask = problem.view("mask");
  sums.ref.assign(3, 0), sums.spread.assign(3, 0);
  for (int64_t n = 0; n < 12; ++n) {
    y.ref.push_back(get(mask, n) != 0 ? 2 * get(x, n) : 0);
    y.spread.push_back(std::abs(y.ref.back()));
    sums.ref[static_cast<size_t>(n / 4)] += y.ref.back();
    sums.spread[static_cast<size_t>(n / 4)] += std::abs(y.ref.back());
  }
  return answer;
}

template <Wrong kWrong, Platform kOn = Platform::cpu>
std::string failures(bool equal_bits = true) {
  const Problem problem = equal_bits ? with_equal_bits(toy_problem(true)) : toy_problem(true);
  const auto kernel = std::make_shared<const KernelInfo>(make_kernel<Toy, Double<kWrong, kOn>>());
  KernelInfo named = *kernel;
  named.name += std::to_string(static_cast<int>(kWrong));  // choices are cached by name
  const auto renamed = std::make_shared<const KernelInfo>(named);
  std::string all;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    RunSettings settings{.seed = seed};
    if (kOn == Platform::cuda) settings.device = {DeviceKind::cuda, 0};
    if (kWrong == Wrong::one_past_the_end || kWrong == Wrong::one_before) settings.plain = true;
    all += report(problem, renamed, check_kernel(problem, toy_answer(problem), renamed, settings));
  }
  return all;
}

TEST(Check, passes_a_right_kernel) { EXPECT_EQ(failures<Wrong::nothing>(), ""); }
TEST(Check, catches_a_write_past_the_end) {
  EXPECT_THAT(failures<Wrong::one_past_the_end>(), HasSubstr("wrote beside output y"));
}
TEST(Check, catches_a_write_before_the_start) {
  EXPECT_THAT(failures<Wrong::one_before>(), HasSubstr("wrote beside output y"));
}
TEST(Check, catches_an_unwritten_element) {
  EXPECT_THAT(failures<Wrong::leaves_one_unwritten>(), HasSubstr("y: NaN or infinity"));
}
TEST(Check, catches_a_masked_nan_that_is_read) {
  EXPECT_THAT(failures<Wrong::reads_masked>(), HasSubstr("NaN or infinity"));
}
TEST(Check, catches_a_changed_input) {
  EXPECT_THAT(failures<Wrong::writes_its_input>(), HasSubstr("wrote to input x"));
}
TEST(Check, catches_a_write_past_the_workspace) {
  EXPECT_THAT(failures<Wrong::past_its_workspace>(), HasSubstr("beside its workspace"));
}
TEST(Check, catches_an_output_that_depends_on_the_others_being_wanted) {
  EXPECT_THAT(failures<Wrong::depends_on_what_is_wanted>(), HasSubstr("differs when other outputs are not wanted"));
  EXPECT_EQ(failures<Wrong::depends_on_what_is_wanted>(/*equal_bits=*/false), "") << "its last bits are not promised";
}
TEST(Check, catches_a_wrong_value) { EXPECT_THAT(failures<Wrong::rounds_badly>(), HasSubstr("times the allowed")); }
TEST(Check, catches_a_status_bit_without_reason) {
  EXPECT_THAT(failures<Wrong::sets_the_status>(), HasSubstr("status word"));
}
TEST(Check, catches_an_exception) { EXPECT_THAT(failures<Wrong::throws>(), HasSubstr("run threw: no")); }
TEST(Check, prints_the_command_that_replays_a_failure) {
  EXPECT_THAT(failures<Wrong::throws>(), HasSubstr("reproduce: ejk check toy --kernel=double11 --seed=1"));
}

template <Wrong kWrong>
std::string failures_on_gpu() {
  const FakeCuda fake;
  const std::string all = failures<kWrong, Platform::cuda>();
  EXPECT_EQ(fake.num_blocks(), 0u) << "device memory was not given back";
  return all;
}

TEST(CheckOnDevice, passes_a_right_kernel) { EXPECT_EQ(failures_on_gpu<Wrong::nothing>(), ""); }
TEST(CheckOnDevice, catches_what_is_wrong_in_the_devices_memory) {
  EXPECT_THAT(failures_on_gpu<Wrong::one_past_the_end>(), HasSubstr("wrote beside output y"));
  EXPECT_THAT(failures_on_gpu<Wrong::one_before>(), HasSubstr("wrote beside output y"));
  EXPECT_THAT(failures_on_gpu<Wrong::leaves_one_unwritten>(), HasSubstr("y: NaN or infinity"));
  EXPECT_THAT(failures_on_gpu<Wrong::writes_its_input>(), HasSubstr("wrote to input x"));
  EXPECT_THAT(failures_on_gpu<Wrong::past_its_workspace>(), HasSubstr("beside its workspace"));
  EXPECT_THAT(failures_on_gpu<Wrong::rounds_badly>(), HasSubstr("times the allowed"));
  EXPECT_THAT(failures_on_gpu<Wrong::sets_the_status>(), HasSubstr("status word"));
  EXPECT_THAT(failures_on_gpu<Wrong::throws>(), HasSubstr("reproduce: ejk check toy --kernel=double11 --device=cuda"));
}

TEST(RandomLayout, keeps_rows_at_multiples_of_the_alignment) {
  Random random(1);
  int strided = 0;
  for (int n = 0; n < 200; ++n) {
    const Placed placed = place(DType::bf16, {2, 3, 5, 64}, random_layout(random, DType::bf16, 4, 16));
    strided += !is_contiguous(placed.view);
    for (int64_t row = 0; row < 30; ++row)
      ASSERT_EQ(reinterpret_cast<uintptr_t>(placed.view.as<uint16_t>() + element_offset(placed.view, 64 * row)) % 16,
                0u);
  }
  EXPECT_GT(strided, 50);
}

// ---- the judge ----

Expected expected_of(std::vector<double> ref) {
  const std::vector<double> spread(ref.size(), 1);
  return {.present = true, .ref = std::move(ref), .spread = spread};
}
Array array_of(std::vector<double> values, DType dtype = DType::f32) {
  Array array(dtype, {static_cast<int64_t>(values.size())});
  fill(array, [&](int64_t n) { return values[static_cast<size_t>(n)]; });
  return array;
}
constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Judge, wants_nan_and_infinity_exactly_where_the_reference_has_them) {
  EXPECT_EQ(judge(expected_of({1, kNan, kInf, -kInf}), array_of({1, kNan, kInf, -kInf})).failure, "");
  EXPECT_NE(judge(expected_of({1, 2}), array_of({1, kNan})).failure, "");
  EXPECT_NE(judge(expected_of({1, kNan}), array_of({1, 2})).failure, "");
  EXPECT_NE(judge(expected_of({1, kInf}), array_of({1, -kInf})).failure, "");
  EXPECT_NE(judge(expected_of({1, kInf}), array_of({1, 3e38})).failure, "");
  EXPECT_NE(judge(expected_of({1, 2}), array_of({1, kInf})).failure, "");
}
TEST(Judge, lets_a_result_at_the_end_of_the_range_round_to_infinity) {
  EXPECT_EQ(judge(expected_of({65519}), array_of({kInf}, DType::f16)).failure, "");
  EXPECT_NE(judge(expected_of({60000}), array_of({kInf}, DType::f16)).failure, "");
}
TEST(Judge, measures_the_error_against_the_allowance) {
  Expected e = expected_of({1, -3});
  const double allowed = 16 * 0x1p-24 * (1 + 3) + 0x1p-149;
  EXPECT_NEAR(judge(e, array_of({1 + 0x1p-22, -3})).ratio, 0x1p-22 / allowed, 1e-9);
  EXPECT_NE(judge(e, array_of({1 + 0x1p-16, -3})).failure, "");
  e.base_error = 0x1p-16;  // what honest rounding costs is allowed twice
  e.tolerance.norm_cap = 1;
  EXPECT_EQ(judge(e, array_of({1 + 0x1p-16, -3})).failure, "");
}
TEST(Judge, caps_the_norm_although_every_element_is_within_the_allowance) {
  Expected e = expected_of(std::vector<double>(64, 1));
  e.base_error = 1e-4;
  EXPECT_NE(judge(e, array_of(std::vector<double>(64, 1.0001))).failure, "");
  e.base_norm = 0.4e-4 * 8;
  EXPECT_NE(judge(e, array_of(std::vector<double>(64, 1.0001))).failure, "");
  e.base_norm = 0.6e-4 * 8;  // the plain formula itself is beyond the cap
  EXPECT_EQ(judge(e, array_of(std::vector<double>(64, 1.0001))).failure, "");
}
TEST(Judge, measures_what_the_plain_formula_costs_by_its_worst_run) {
  Expected e = expected_of({1, 2, 3});
  add_baseline(e, {1 + 3e-4, 2 - 4e-4, 3}, DType::f64);
  EXPECT_NEAR(e.base_error, 4e-4, 1e-12);
  EXPECT_NEAR(e.base_norm, 5e-4, 1e-12);
  add_baseline(e, {1, 2 + 1e-4, std::numeric_limits<double>::infinity()},
               DType::f64);  // leaves the range: proves nothing
  EXPECT_NEAR(e.base_error, 4e-4, 1e-12);
  EXPECT_NEAR(e.base_norm, 5e-4, 1e-12);
}
TEST(Judge, looks_for_unwritten_elements_among_those_not_judged) {
  Expected e = expected_of({1});
  e.at = {{2}};
  EXPECT_EQ(judge(e, array_of({5, 6, 1})).failure, "");
  EXPECT_NE(judge(e, array_of({5, kNan, 1})).failure, "");
  EXPECT_NE(judge(e, array_of({5, 6, 2})).failure, "");
}
TEST(Judge, takes_a_judged_nan_for_what_was_there_before) {
  Expected expected{.present = true, .exact = true, .ref = {kNan, 1}};  // a cache whose unused slots hold NaN
  expected.at = {{0, 1}};
  EXPECT_EQ(judge(expected, array_of({kNan, 1, 2})).failure, "");
  EXPECT_THAT(judge(expected, array_of({kNan, 1, kNan})).failure, HasSubstr("NaN at [2]: never written"));
}

TEST(Judge, judges_nothing_where_no_element_was_chosen) {
  Expected e = expected_of({});
  e.at.emplace();
  EXPECT_EQ(judge(e, array_of({5, 6, 1})).failure, "");
  EXPECT_NE(judge(e, array_of({5, kNan, 1})).failure, "");
}
TEST(Judge, compares_two_results_where_only_part_was_judged) {
  const Expected e = expected_of({1});  // of three elements
  const double allowed = 2 * 16 * 0x1p-24 * (1 + 100);
  EXPECT_EQ(compare_whole(e, array_of({1, 100, kNan}), array_of({1, 100 + 0.9 * allowed, kNan})), "");
  EXPECT_THAT(compare_whole(e, array_of({1, 100, 7}), array_of({1, 100 + 1.1 * allowed, 7})), HasSubstr("at [1]"));
  EXPECT_THAT(compare_whole(e, array_of({1, 100, kNan}), array_of({1, 100, 7})), HasSubstr("at [2]"));
  Expected none = e;
  none.ref = none.spread = {};
  none.at.emplace();
  EXPECT_EQ(compare_whole(none, array_of({1e-8, 1, 2}), array_of({0, 1, 2})), "");
  EXPECT_THAT(compare_whole(none, array_of({1, kNan, 2}), array_of({1, 1, 2})), HasSubstr("at [1]"));
  Expected unseen = e;  // the judged part sees no key
  unseen.ref = unseen.spread = {0};
  EXPECT_EQ(compare_whole(unseen, array_of({0, 1e-8, 2}), array_of({0, 0, 2})), "");
  EXPECT_THAT(compare_whole(unseen, array_of({0, kNan, 2}), array_of({0, 1, 2})), HasSubstr("at [1]"));
  const Expected exact{.present = true, .exact = true, .ref = {1}};
  EXPECT_NE(compare_whole(exact, array_of({1, 2}), array_of({1, 2 + 0x1p-22})), "");
}
TEST(Judge, compares_exact_outputs_bit_for_bit) {
  Expected e{.present = true, .exact = true, .ref = {1, 2}};
  EXPECT_EQ(judge(e, array_of({1, 2})).failure, "");
  EXPECT_NE(judge(e, array_of({1, 2 + 0x1p-22})).failure, "");
}

}  // namespace
}  // namespace ejk::testing
