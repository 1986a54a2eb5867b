// The runner on an operation that writes one of its inputs: what a right kernel may do there and what a wrong one does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "ejkernel/testing/check.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/relation.h"
#include "ejkernel/testing/resident.h"
#include "ejkernel/testing/toy_append.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;

enum class Wrong : uint8_t {
  nothing,
  forgets,
  forgets_when_left_out,
  writes_another_row,
  one_past_the_end,
  writes_between_rows,
  writes_another_input
};

/// On a GPU it computes in the fake one's memory, which is the host's.
template <Wrong kWrong, Platform kOn>
struct Append {
  static constexpr std::string_view kName = "append";
  static constexpr Platform kPlatform = kOn;
  static void run(const Call<ToyAppend>& call, const RunContext&) {
    const Tensor& out = call.outputs.rows;
    const double first = get(out, 0);
    // Sums are wanted with the rows or alone, so their absence tells of a run with less than all.
    const bool forgets =
        kWrong == Wrong::forgets || (kWrong == Wrong::forgets_when_left_out && !call.outputs.sums.present());
    toy_append(call);
    if (forgets) set(out, 0, first);
    if (kWrong == Wrong::writes_another_row) set(out, out.shape[2], 3);
    if (kWrong == Wrong::one_past_the_end) out.as<float>()[element_range(out)[1]] = 1;
    if (kWrong == Wrong::writes_between_rows) out.as<float>()[out.shape[2]] = 1;
    if (kWrong == Wrong::writes_another_input) set(call.inputs.values, 0, 17);
  }
};

/// Rows 0 and 2 of 3 are written; in a layout with free elements after each row, or without.
Problem problem(bool has_gaps) {
  Problem problem = Problem::of(operation<ToyAppend>());
  problem.label = "toy";
  problem.replay = "--seed=1";
  Random random(1);
  Layout layout;
  if (has_gaps) layout = {.order = {0, 1, 2}, .padding = {0, 0, 5}, .offset = 3, .skew = 4};
  fill_normal(problem.add("rows", DType::f32, {1, 3, 4}, layout), random);
  fill_normal(problem.add("values", DType::f32, {1, 2, 4}), random);
  fill_values(problem.add("at", DType::i32, {1, 2}), {2, 0});
  return problem;
}

Answer answer_of(const Problem& problem) {
  const Tensor rows = problem.view("rows"), values = problem.view("values");
  Answer answer;
  answer.outputs.resize(2, {.present = true});
  Expected &updated = answer.outputs[0], &sums = answer.outputs[1];
  updated.exact = true;
  for (int64_t n = 0; n < 12; ++n)
    updated.ref.push_back(n / 4 == 1 ? get(rows, n) : get(values, n < 4 ? n + 4 : n - 8));
  for (int64_t t = 0; t < 2; ++t) {
    double sum = 0, spread = 0;
    for (int64_t d = 0; d < 4; ++d) sum += get(values, 4 * t + d), spread += std::abs(get(values, 4 * t + d));
    sums.ref.push_back(sum);
    sums.spread.push_back(spread);
  }
  return answer;
}

template <Wrong kWrong, Platform kOn = Platform::cpu>
std::string failures(bool has_gaps) {
  const Problem given = problem(has_gaps);
  const Answer answer = answer_of(given);
  KernelInfo named = make_kernel<ToyAppend, Append<kWrong, kOn>>();
  named.name += std::to_string(static_cast<int>(kWrong));  // choices are cached by name
  const auto kernel = std::make_shared<const KernelInfo>(named);
  const Array before = contiguous(given.view("rows"));
  std::string all;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    RunSettings settings{.seed = seed};
    if (kOn == Platform::cuda) settings.device = {DeviceKind::cuda, 0};
    all += report(given, kernel, check_kernel(given, answer, kernel, settings));
  }
  if (!compare_bits(given.view("rows"), before).empty()) all += "the problem's own buffer was written";
  return all;
}
template <Wrong kWrong>
std::string failures() {
  return failures<kWrong>(false) + failures<kWrong>(true);
}

TEST(CheckAliased, passes_a_right_kernel) { EXPECT_EQ(failures<Wrong::nothing>(), ""); }
TEST(CheckAliased, passes_a_right_kernel_of_a_gpu) {
  const FakeCuda cuda;
  EXPECT_EQ((failures<Wrong::nothing, Platform::cuda>(true)), "");
}
TEST(CheckAliased, catches_an_update_that_is_not_written) {
  EXPECT_THAT(failures<Wrong::forgets>(), HasSubstr("rows: not equal at [0, 0, 0]"));
}
TEST(CheckAliased, catches_an_update_that_is_not_written_where_other_outputs_are_left_out) {
  EXPECT_THAT(failures<Wrong::forgets_when_left_out>(), HasSubstr("rows: differs when other outputs are not wanted"));
}
TEST(CheckAliased, catches_a_write_to_a_row_that_stays) {
  EXPECT_THAT(failures<Wrong::writes_another_row>(), HasSubstr("rows: not equal at [0, 1, 0]"));
}
TEST(CheckAliased, catches_a_write_past_the_end) {
  EXPECT_THAT(failures<Wrong::one_past_the_end>(false), HasSubstr("wrote beside input rows: 1 bytes past the end"));
}
TEST(CheckAliased, catches_a_write_between_rows) {
  EXPECT_THAT(failures<Wrong::writes_between_rows>(true), HasSubstr("wrote beside input rows: at byte"));
}
TEST(CheckAliased, catches_a_write_to_another_input) {
  EXPECT_THAT(failures<Wrong::writes_another_input>(), HasSubstr("wrote to input values"));
}

TEST(CheckAliased, tensors_that_share_a_buffer_go_on_sharing_it) {
  const Placed whole = place(DType::f32, {1, 3, 8});
  const Problem apart = problem(false);
  Problem given = apart;
  const Tensor rows = apart.view("rows"), values = apart.view("values");
  given.inputs[0] = {whole.buffer, Tensor(whole.view.data, DType::f32, {1, 3, 4}, {24, 8, 1})};
  given.inputs[1] = {whole.buffer, Tensor(whole.view.as<float>() + 4, DType::f32, {1, 2, 4}, {24, 8, 1})};
  fill(given.view("rows"), [&](int64_t n) { return get(rows, n); });
  fill(given.view("values"), [&](int64_t n) { return get(values, n); });
  const auto kernel =
      std::make_shared<const KernelInfo>(make_kernel<ToyAppend, Append<Wrong::nothing, Platform::cpu>>());
  EXPECT_EQ(report(given, kernel, check_kernel(given, answer_of(given), kernel)), "");
}

TEST(CheckAliased, a_runner_gives_the_updated_buffer) {
  register_toy_append();
  const Problem given = problem(true);
  const std::vector<Array> outputs = KernelRunner(kernels_of(operation<ToyAppend>()).back())(given);
  EXPECT_EQ(get(outputs[0], 0), get(given.view("values"), 4));
  EXPECT_NE(get(given.view("rows"), 0), get(given.view("values"), 4));
}

TEST(CheckAliased, of_a_resident_each_result_begins_with_the_first_contents) {
  const FakeCuda cuda;
  const auto kernel =
      std::make_shared<const KernelInfo>(make_kernel<ToyAppend, Append<Wrong::nothing, Platform::cuda>>());
  Problem given = problem(false);
  const Resident one(given, kernel, {DeviceKind::cuda, 0});
  const Digest first = one.result(nullptr);
  EXPECT_EQ(one.result(nullptr), first);
  fill_values(given.view("at"), {1, 1});
  const Resident other(given, kernel, {DeviceKind::cuda, 0});
  const Digest second = other.result(nullptr);
  EXPECT_FALSE(second == first);
  one.take_inputs(other, nullptr);
  EXPECT_EQ(one.result(nullptr), second) << "rows 0 and 2 are what they were at first";
}

}  // namespace
}  // namespace ejk::testing
