// An operation that writes one of its inputs, through every way to call it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ejkernel/c_api.h"
#include "ejkernel/core/dlpack.h"
#include "ejkernel/core/error.h"
#include "ejkernel/runtime/admission.h"
#include "ejkernel/runtime/batch.h"
#include "ejkernel/runtime/c_header.h"
#include "ejkernel/runtime/device_group.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/json.h"
#include "ejkernel/runtime/tuner.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/toy_append.h"

namespace ejk::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- the declaration ----

constexpr std::array kInputs = {TensorField{"x", "float[batch, dim]", ""}, TensorField{"n", "int32?[batch] ; -", ""}};
constexpr bool is_sound(TensorField output) { return aliases_are_sound(kInputs, std::array{output}); }

static_assert(is_sound({"x", "float&[batch, dim]", ""}));
static_assert(is_sound({"x", "@x&[batch, dim]", ""}));
static_assert(is_sound({"n", "int32&?[batch] ; -", ""}));
static_assert(is_sound({"y", "@x[batch]", ""}), "memory of its own");
static_assert(!is_sound({"y", "float&[batch, dim]", ""}), "no input of that name");
static_assert(!is_sound({"x", "float&[batch, other]", ""}), "other dimensions");
static_assert(!is_sound({"x", "float32&[batch, dim]", ""}), "another dtype");
static_assert(!is_sound({"x", "@n&[batch, dim]", ""}), "another input's dtype");
static_assert(!is_sound({"n", "int32&[batch] ; -", ""}), "there when the input is not");
static_assert(!is_sound({"n", "int32&?[batch]", ""}), "there in more forms");
static_assert(!aliases_are_sound(std::array{TensorField{"x", "float&[batch]", ""}}, std::array<TensorField, 0>{}),
              "an input aliases nothing");

// ---- calls ----

std::vector<double> numbers(const Tensor& t) {
  std::vector<double> all;
  for (int64_t n = 0; n < t.num_elements(); ++n) all.push_back(get(t, n));
  return all;
}

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no refusal";
}

Array array_of(DType dtype, const Shape& shape, const std::vector<double>& values) {
  Array array(dtype, shape);
  for (int64_t n = 0; n < array.num_elements(); ++n) set(array, n, values[static_cast<size_t>(n)]);
  return array;
}

/// A buffer of three rows of 9s; two values go to rows 2 and 0.
class Aliased : public ::testing::Test {
 protected:
  Aliased() { register_toy_append(); }
  ~Aliased() override {
    clear_memory_configs();
    ToyAppendFast::offered = {ToyAppendConfig{}};
  }

  const Array rows = array_of(DType::f32, {1, 3, 2}, {9, 9, 9, 9, 9, 9});
  const Array values = array_of(DType::f32, {1, 2, 2}, {1, 2, 3, 4});
  const Array at = array_of(DType::i32, {1, 2}, {2, 0});
  const ToyAppend::Inputs inputs{.rows = rows, .values = values, .at = at};
  const std::vector<double> written = {3, 4, 9, 9, 1, 2};
};

TEST_F(Aliased, a_plan_writes_the_input_whether_or_not_the_output_is_given) {
  const auto planned = plan<ToyAppend>(inputs);
  EXPECT_EQ(planned.outputs()[0].aliased_input, 0);
  EXPECT_EQ(planned.outputs()[1].aliased_input, -1);
  const auto results = planned.allocate_outputs();
  EXPECT_FALSE(results.rows.present()) << "it is the caller's";
  planned.run(inputs, {.rows = rows, .sums = results.sums});
  EXPECT_EQ(numbers(rows), written);
  EXPECT_THAT(numbers(results.sums), ElementsAre(3, 7));

  set(values, 0, 5);
  planned.run(inputs, {});
  EXPECT_THAT(numbers(rows), ElementsAre(3, 4, 9, 9, 5, 2));
}

TEST_F(Aliased, an_output_that_is_not_the_input_is_refused) {
  const auto planned = plan<ToyAppend>(inputs);
  const Array other = rows.clone();
  EXPECT_EQ(refusal_of([&] { planned.run(inputs, {.rows = other}); }),
            "toy_append: the output rows must be the input of that name, f32[1, 3, 2], whose memory is written, got "
            "f32[1, 3, 2] in other memory; pass the same tensor twice, or leave the output out");
  Tensor reshaped = rows;
  reshaped.shape = {1, 2, 3};
  EXPECT_THAT(refusal_of([&] { planned.run(inputs, {.rows = reshaped}); }),
              HasSubstr("got f32[1, 2, 3] seen otherwise"));
  Tensor strided = rows;
  strided.strides[1] = 1;
  EXPECT_THAT(refusal_of([&] { planned.run(inputs, {.rows = strided}); }),
              HasSubstr("got f32[1, 3, 2] seen otherwise"));
  EXPECT_THAT(numbers(rows), Each(9)) << "none of them ran";
}

TEST_F(Aliased, any_strides_will_do_that_give_each_element_a_place_of_its_own) {
  const Array wide = array_of(DType::f32, {3, 4}, std::vector<double>(12, 9));
  const Tensor gaps(wide.data(), DType::f32, {1, 3, 2}, {12, 4, 1});
  const auto results = execute<ToyAppend>({.rows = gaps, .values = values, .at = at});
  EXPECT_THAT(numbers(wide), ElementsAre(3, 4, 9, 9, 9, 9, 9, 9, 1, 2, 9, 9));
  EXPECT_EQ(numbers(results.rows), written);
  EXPECT_EQ(results.rows.view().strides, gaps.strides);

  const Tensor repeated(wide.data(), DType::f32, {1, 3, 2}, {12, 0, 1});
  EXPECT_EQ(
      refusal_of([&] { execute<ToyAppend>({.rows = repeated, .values = values, .at = at}); }),
      "toy_append: rows must have strides that do not overlap, got shape [1, 3, 2] with strides [12, 0, 1]; pass a "
      "buffer of its own");
}

TEST_F(Aliased, a_result_views_the_callers_memory) {
  for (int round = 0; round < 2; ++round) {  // planned, and planned before
    const auto [updated, sums] = execute<ToyAppend>(inputs);
    EXPECT_EQ(updated.data(), rows.data());
    EXPECT_EQ(numbers(updated), written);
    EXPECT_THAT(numbers(sums), ElementsAre(3, 7));
    EXPECT_NE(updated.clone().data(), rows.data());
  }
}

TEST_F(Aliased, an_empty_buffer_is_one_as_well) {
  const Array none(DType::f32, {1, 0, 2});
  const auto planned = plan<ToyAppend>({.rows = none, .values = values, .at = at});
  planned.run({.rows = none, .values = values, .at = at}, {.rows = none});
  EXPECT_EQ(planned.kernel().name, "reference");
}

// ---- C ----

/// An array and the DLTensor that describes it.
struct Described {
  explicit Described(const Tensor& t) : view(to_dlpack_view(t, shape.data(), strides.data())) {}
  Described(const Described&) = delete;
  std::array<int64_t, kMaxRank> shape = {}, strides = {};
  DLTensor view;
};

TEST_F(Aliased, from_c_the_output_is_the_input_or_left_out) {
  const Array other = rows.clone(), sums(DType::f32, {1, 2});
  const Described r(rows), v(values), a(at), o(other), s(sums);
  const ejk_tensor in[] = {{"rows", &r.view}, {"values", &v.view}, {"at", &a.view}};
  const ejk_tensor both[] = {{"rows", &r.view}, {"sums", &s.view}}, wrong[] = {{"rows", &o.view}};
  ASSERT_EQ(ejk_execute("toy_append", in, 3, both + 1, 1, nullptr, nullptr, nullptr), EJK_OK);
  EXPECT_EQ(numbers(rows), written);
  EXPECT_THAT(numbers(sums), ElementsAre(3, 7));

  set(values, 0, 5);
  ejk_plan_t* planned = nullptr;
  ASSERT_EQ(ejk_plan("toy_append", in, 3, nullptr, nullptr, &planned), EJK_OK);
  EXPECT_EQ(ejk_plan_run(planned, in, 3, both, 2, nullptr), EJK_OK);
  EXPECT_THAT(numbers(rows), ElementsAre(3, 4, 9, 9, 5, 2));
  EXPECT_EQ(ejk_plan_run(planned, in, 3, wrong, 1, nullptr), EJK_INVALID_ARGUMENT);
  EXPECT_EQ(ejk_plan_run(planned, in, 3, nullptr, 0, nullptr), EJK_OK);
  ejk_free(planned);
}

TEST_F(Aliased, declarations_say_so) {
  const auto json = nlohmann::json::parse(operations_json());
  for (const auto& operation : json["operations"]) {
    if (operation["name"] != "toy_append") continue;
    EXPECT_EQ(operation["outputs"][0]["aliased"], true);
    EXPECT_FALSE(operation["outputs"][1].contains("aliased"));
    EXPECT_FALSE(operation["inputs"][0].contains("aliased"));
  }
  const Operation* const op = &operation<ToyAppend>();
  EXPECT_THAT(c_header({&op, 1}, "TOY_H"), HasSubstr("the input itself, updated in place, or NULL"));
}

// ---- batches and groups ----

class BatchOfAliased : public Aliased {
 protected:
  /// Two buffers with values of their own.
  const Array all_rows = array_of(DType::f32, {2, 1, 3, 2}, std::vector<double>(12, 9));
  const Array all_values = array_of(DType::f32, {2, 1, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  const Array all_at = array_of(DType::i32, {2, 1, 2}, {2, 0, 1, 5});
  const ToyAppend::Inputs batch{.rows = all_rows, .values = all_values, .at = all_at};
  const std::vector<double> all_written = {3, 4, 9, 9, 1, 2, 9, 9, 5, 6, 9, 9};
};

TEST_F(BatchOfAliased, folds_or_runs_slice_by_slice_into_the_given_buffer) {
  for (const bool numbered : {false, true}) {
    for (int64_t n = 0; n < 12; ++n) set(all_rows, n, 9);
    EXPECT_EQ(plan_batch<ToyAppend>(batch, {}, {.numbered = numbered}).folding().ok, !numbered);
    const auto results = vmap_with_config<ToyAppend>(batch, {}, {.numbered = numbered});
    EXPECT_EQ(numbers(all_rows), all_written);
    EXPECT_EQ(results.rows.data(), all_rows.data());
    EXPECT_EQ(results.rows.shape(), all_rows.shape());
    EXPECT_THAT(numbers(results.sums), ElementsAre(3, 7, 11, 15));
  }
}

TEST_F(BatchOfAliased, has_its_slices_where_the_input_has_them) {
  const Array inner = array_of(DType::f32, {1, 3, 2, 2}, std::vector<double>(12, 9));  // slices at axis 2
  ToyAppend::Inputs in = batch;
  in.rows = inner;
  const BatchAxes axes{.in = {{"rows", 2}, {"values", 0}, {"at", 0}}};
  const auto planned = plan_batch<ToyAppend>(in, axes);
  EXPECT_EQ(planned.outputs()[0].shape, (Shape{1, 3, 2, 2}));
  planned.run(in, {.rows = inner});
  EXPECT_THAT(numbers(inner), ElementsAre(3, 4, 9, 9, 9, 9, 5, 6, 1, 2, 9, 9));
  EXPECT_THAT(refusal_of([&] { planned.run(in, {.rows = inner.clone()}); }),
              HasSubstr("the output rows must be the input"));
}

TEST_F(BatchOfAliased, refuses_slices_that_share_the_buffer) {
  ToyAppend::Inputs in = batch;
  in.rows = rows;
  EXPECT_EQ(
      refusal_of([&] {
        plan_batch<ToyAppend>(in, {.in = {{"values", 0}, {"at", 0}}});
      }),
      "toy_append: rows must have an axis of slices, since each slice writes it, got none; give each slice one of "
      "its own");
  in.rows = Tensor(rows.data(), DType::f32, {2, 1, 3, 2}, {0, 6, 2, 1});
  EXPECT_THAT(refusal_of([&] { plan_batch<ToyAppend>(in, {}); }),
              HasSubstr("rows must have strides that do not overlap"));
}

TEST_F(Aliased, on_a_group_each_result_views_its_devices_own) {
  const Array other = rows.clone();
  const auto results = pmap_with_config<ToyAppend>(DeviceGroup({{}, {}}),
                                                   {inputs, {.rows = other, .values = values, .at = at}}, {.scale = 1});
  EXPECT_EQ(results[0].rows.data(), rows.data());
  EXPECT_EQ(results[1].rows.data(), other.data());
  EXPECT_EQ(numbers(other), written);
  EXPECT_EQ(numbers(rows), written);
}

// ---- the tuner ----

struct AppendOnGpu : ToyAppendReference {
  static constexpr std::string_view kName = "on_gpu";
  static constexpr Platform kPlatform = Platform::cuda;
};

TEST_F(Aliased, admission_runs_on_copies) {
  const Array wide = array_of(DType::f32, {3, 4}, std::vector<double>(12, 9));
  for (const Shape strides : {Shape{6, 2, 1}, Shape{12, 4, 1}, Shape{12, -4, 1}}) {
    const Tensor placed(wide.as<float>() + (strides[1] < 0 ? 8 : 0), DType::f32, {1, 3, 2}, strides);
    const ToyAppend::Inputs in{.rows = placed, .values = values, .at = at};
    const auto tensors = to_array(in);
    const Plan twice = plan<ToyAppend>(in, {.scale = 2}), once = plan<ToyAppend>(in);
    Proving proving(once, tensors);
    EXPECT_EQ(proving.run(once), "");
    const std::vector<Array> expected = proving.results();
    EXPECT_EQ(numbers(expected[0]), written);
    EXPECT_THAT(numbers(wide), Each(9));
    EXPECT_EQ(proving.run(twice), "");
    EXPECT_EQ(proving.differs_from(expected), "it is wrong: element 0 of output 0 is 6, not 3");
    EXPECT_FALSE(proving.equals(expected));
    EXPECT_EQ(proving.run(once), "") << "what a run finds is the given contents again";
    EXPECT_TRUE(proving.equals(expected));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(proving.inputs()[0].data) % 64,
              reinterpret_cast<uintptr_t>(placed.data) % 64);
  }
}

TEST_F(Aliased, admission_runs_on_copies_on_a_gpu) {
  const FakeCuda cuda;
  const KernelRegistry::Batch batch(KernelRegistry::instance());
  KernelRegistry::instance().add("toy_append", make_kernel<ToyAppend, AppendOnGpu>(), 10000);
  const Device gpu{DeviceKind::cuda, 0};
  const Array there[] = {to_device(rows, gpu), to_device(values, gpu), to_device(at, gpu)};
  const ToyAppend::Inputs in{.rows = there[0], .values = there[1], .at = there[2]};
  const auto tensors = to_array(in);
  const Plan once = plan<ToyAppend>(in), twice = plan<ToyAppend>(in, {.scale = 2});
  Proving proving(once, tensors);
  for (const Plan& plan : {twice, once}) EXPECT_EQ(proving.run(plan), "");
  EXPECT_EQ(numbers(proving.results()[0]), written);
  EXPECT_THAT(numbers(to_host(there[0])), Each(9));
}

TEST_F(Aliased, the_tuner_rejects_candidates_that_write_wrongly_and_leaves_the_input_alone) {
  ToyAppendFast::offered.clear();
  for (int deed = 0; deed < static_cast<int>(AppendDeed::count); ++deed) ToyAppendFast::offered.push_back({deed});
  const auto tensors = to_array(inputs);
  const TuneReport report = tune(plan<ToyAppend>(inputs), {.budget_seconds = 1, .publish = false}, tensors);
  std::vector<std::string> reasons(static_cast<size_t>(AppendDeed::count), "no such candidate");
  for (const CandidateReport& candidate : report.candidates)
    reasons[static_cast<size_t>(candidate.config.as<ToyAppendFast::Config>().deed)] = candidate.rejected;
  EXPECT_THAT(reasons, ElementsAre("", "it is wrong: element 0 of output 0 is 9, not 3",
                                   "it is wrong: element 5 of output 0 is 77, not 2",
                                   "it is wrong: element 0 of output 0 is 13, not 3", "it wrote outside of an output"));
  EXPECT_THAT(numbers(rows), Each(9));
}

}  // namespace
}  // namespace ejk::testing
