// Batches of an operation whose kernels count: what folds and what does not, and that either way there is one choice.
#include "ejkernel/runtime/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/error.h"
#include "ejkernel/testing/allocation_counter.h"
#include "ejkernel/testing/relation.h"
#include "ejkernel/testing/toy.h"
#include "ejkernel/testing/values.h"

namespace ejk::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// y[b, d] = scale * x[b, d] * table[d] + shift[b or 0, d] where d < lengths[b], else 0.
struct Rows {
  static constexpr std::string_view kName = "rows";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "y = scale * x * table + shift";
  static constexpr std::string_view kSource = "none";
  enum Form { kBatched, kFlat };
  static constexpr std::array<std::string_view, 2> kForms = {"batched", "flat"};

  struct Inputs {
    Tensor x = {}, shift = {}, lengths = {}, table = {}, pairs = {};
  };
  struct Params {
    double scale = 1;
    bool numbered = false;
    bool flat = false;
  };
  template <class T>
  struct Out {
    T y = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{TensorField{"x", "stored[batch, dim] ; stored[rows, dim]", "what is scaled"},
                      TensorField{"shift", "float32?[batch/1, dim] ; -", "the addend"},
                      TensorField{"lengths", "int32?[batch] ; -", "columns in use"},
                      TensorField{"table", "float32?[dim] ; -", "a factor per column"},
                      TensorField{"pairs", "float32?[batch, batch] ; -", "not read"}};
  }
  static constexpr auto outputs() {
    return std::array{TensorField{"y", "@x[batch, dim] ; @x[rows, dim]", "the result"}};
  }
  static constexpr auto params() {
    return std::array{param<&Params::scale>("scale", Key::none, "the factor", finite()),
                      param<&Params::numbered>("numbered", Key::value, "each row's number is added"),
                      param<&Params::flat>("flat", Key::value, "the form")};
  }
  static int form(const Inputs&, const Params& params) { return params.flat ? kFlat : kBatched; }
  static std::string_view batch_dim(const Params& params) { return params.numbered ? "" : "batch"; }
  static Work work(const Call<Rows>&) { return {}; }
  static std::span<const KernelInfo* const> kernels();
};

/// What the kernels below were asked and told.
struct Seen {
  int choices = 0;
  std::vector<Shape> runs = {};
  std::vector<const std::byte*> workspaces = {};
  int64_t least_alignment = 64;  ///< of x in the runs of the kernel that wants 16
};
Seen seen;

void compute(const Call<Rows>& call) {
  const auto& [x, shift, lengths, table, pairs] = call.inputs;
  seen.runs.push_back(x.shape);
  if (!call.outputs.y.present()) return;
  for (int64_t b = 0; b < x.shape[0]; ++b)
    for (int64_t d = 0; d < x.shape[1]; ++d) {
      double value = call.params.scale * get(x, b * x.shape[1] + d) * (table.present() ? get(table, d) : 1);
      if (shift.present()) value += get(shift, (shift.shape[0] == 1 ? 0 : b) * x.shape[1] + d);
      if (call.params.numbered) value += static_cast<double>(b);
      if (lengths.present() && d >= lengths.as<const int32_t>()[b]) value = 0;
      set(call.outputs.y, b * x.shape[1] + d, value);
    }
}

/// Wants rows that begin at multiples of 16 bytes, and serves where the scale is 16.
struct RowsAligned {
  static constexpr std::string_view kName = "aligned";
  static constexpr Platform kPlatform = Platform::cpu;
  static Support supports(const Call<Rows>& call, const DeviceProperties&) {
    const bool serves = call.params.scale == 16 && reinterpret_cast<uintptr_t>(call.inputs.x.data) % 16 == 0;
    return serves ? Support::yes() : Support::no("it wants 16");
  }
  static void run(const Call<Rows>& call, const RunContext&) {
    const auto address = reinterpret_cast<uintptr_t>(call.inputs.x.data);
    seen.least_alignment = std::min(seen.least_alignment, static_cast<int64_t>(address & (~address + 1)));
    compute(call);
  }
};

/// Takes no stride of 0, and serves where the scale is -1.
struct RowsDense {
  static constexpr std::string_view kName = "dense";
  static constexpr Platform kPlatform = Platform::cpu;
  static Support supports(const Call<Rows>& call, const DeviceProperties&) {
    if (call.params.scale != -1) return Support::no("its scale is -1");
    return call.inputs.x.shape[0] > 1 && call.inputs.x.strides[0] == 0 ? Support::no("it takes no stride of 0")
                                                                       : Support::yes();
  }
  static void run(const Call<Rows>& call, const RunContext&) { compute(call); }
};

struct RowsCounted {
  static constexpr std::string_view kName = "counted";
  static constexpr Platform kPlatform = Platform::cpu;
  struct Config {
    int block = 16;
    static constexpr auto fields() { return std::array{config_field<&Config::block, 16, 32>("block", "no effect")}; }
  };
  static Config heuristic(const Call<Rows>&, const DeviceProperties&) { return ++seen.choices, Config(); }
  static std::vector<Config> candidates(const Call<Rows>&, const DeviceProperties&) { return {{16}, {32}}; }
  static size_t workspace_bytes(const Call<Rows>&, const Config&, const DeviceProperties&) { return 64; }
  static void run(const Call<Rows>& call, const Config&, const RunContext& context) {
    seen.workspaces.push_back(context.workspace.data());
    if (context.status != nullptr) *context.status |= status::kLength;
    compute(call);
  }
};

std::span<const KernelInfo* const> Rows::kernels() {
  static const KernelInfo aligned = make_kernel<Rows, RowsAligned>(), dense = make_kernel<Rows, RowsDense>(),
                          counted = make_kernel<Rows, RowsCounted>();
  static const KernelInfo* const list[] = {&aligned, &dense, &counted};
  return list;
}

class Batch : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static const bool done = (KernelRegistry::instance().add_operation<Rows>(), register_toys(), true);
    (void)done;
  }
  Batch() {
    clear_memory_configs();  // choices are cached by problem
    seen = {};
  }

  /// Why the batch does not fold; empty where it does.
  static std::string why_looped(const Rows::Inputs& inputs, const BatchAxes& axes, const Rows::Params& params = {}) {
    const Support folding = plan_batch<Rows>(inputs, axes, params).folding();
    return folding.ok ? "" : folding.reason;
  }
};

// ---- folded or slice by slice ----

TEST_F(Batch, that_folds_is_one_choice_and_one_run) {
  const Array x = counting({3, 2, 4});
  const auto [y] = vmap_with_config<Rows>({.x = x}, {.in = 0}, {.scale = 2});
  EXPECT_EQ(seen.choices, 1);
  EXPECT_THAT(seen.runs, ElementsAre(Shape{6, 4}));
  EXPECT_EQ(y.shape(), (Shape{3, 2, 4}));
  for (int64_t n = 0; n < 24; ++n) EXPECT_EQ(get(y, n), 2 * get(x, n));
}

TEST_F(Batch, that_does_not_fold_is_one_choice_and_a_run_per_slice) {
  const Array x = counting({3, 2, 4});
  const auto [y] = vmap_with_config<Rows>({.x = x}, {.in = 0}, {.scale = 2, .numbered = true});
  EXPECT_EQ(seen.choices, 1);
  EXPECT_THAT(seen.runs, AllOf(SizeIs(3), Each(Shape{2, 4})));
  EXPECT_THAT(seen.workspaces, Each(seen.workspaces[0]));
  for (int64_t n = 0; n < 24; ++n) EXPECT_EQ(get(y, n), 2 * get(x, n) + static_cast<double>(n / 4 % 2));
}

TEST_F(Batch, says_why_it_does_not_fold) {
  const Array x = counting({3, 2, 4}), table = counting({3, 4});
  EXPECT_EQ(why_looped({.x = x}, {.in = 0}), "");
  EXPECT_EQ(why_looped({.x = x}, {.in = 0}, {.numbered = true}),
            "with these parameters a result depends on its entry's number");
  EXPECT_EQ(why_looped({.x = x}, {.in = 0}, {.flat = true}), "this form has no dimension batch");
  EXPECT_EQ(why_looped({.x = x, .table = table}, {.in = 0}),
            "table differs from slice to slice and has no dimension batch");
  EXPECT_EQ(why_looped({.x = x}, {.in = 1}),
            "slices and batch make no one axis of x in one order, and none of y in the other");
  EXPECT_EQ(why_looped({.x = x, .pairs = counting({2, 2})}, {.in = {{"x", 0}}}),
            "pairs has the dimension batch in several places");
  constexpr int64_t kMany = int64_t{1} << 40;
  const Tensor many(nullptr, DType::f32, {kMany, 0});
  EXPECT_EQ(why_looped({.x = many, .table = many}, {.in = {{"table", 0}}}), "there are too many entries");
  const Array d_y = counting({3, 2, 4});
  EXPECT_EQ(plan_batch<ToyBackward>({.d_y = d_y}, {.in = 0}, {.batch = 2}).folding().reason,
            "the operation declares no dimension whose entries are calls of their own");
}

TEST_F(Batch, folds_in_the_order_in_which_slices_and_entries_lie) {
  const Array x = counting({2, 3, 4});
  const auto [y] = vmap_with_config<Rows>({.x = x}, {.in = 1, .out = 1});
  EXPECT_THAT(seen.runs, ElementsAre(Shape{6, 4}));
  EXPECT_EQ(compare_bits(y, x), "");
  // Slices in front of the output and behind the entries of the input: no one stride.
  const auto [moved] = vmap_with_config<Rows>({.x = x}, {.in = 1});
  EXPECT_THAT(seen.runs, SizeIs(1 + 3));
  EXPECT_EQ(moved.shape(), (Shape{3, 2, 4}));
  EXPECT_EQ(values_of(moved), values_of(Tensor(x.data(), DType::f32, {3, 2, 4}, {4, 12, 1})));
}

TEST_F(Batch, of_one_entry_each_folds_whatever_the_strides) {
  const Array x = counting({3, 1, 4});
  const Tensor reversed(x.as<float>() + 8, DType::f32, {3, 1, 4}, {-4, 77, 1});
  const auto [y] = vmap_with_config<Rows>({.x = reversed}, {.in = -3});
  EXPECT_THAT(seen.runs, ElementsAre(Shape{3, 4}));
  EXPECT_EQ(values_of(y), values_of(reversed));
}

TEST_F(Batch, whose_strides_have_gaps_does_not_fold) {
  const Array x = counting({3, 3, 4});
  const Tensor two_of_three(x.data(), DType::f32, {3, 2, 4}, {12, 4, 1});
  EXPECT_EQ(why_looped({.x = two_of_three}, {.in = 0}), "slices and batch make no one axis of x");
  const auto [y] = vmap_with_config<Rows>({.x = two_of_three}, {.in = 0});
  EXPECT_EQ(values_of(y), values_of(two_of_three));
}

// ---- inputs that every slice shares ----

TEST_F(Batch, hands_whole_inputs_to_every_slice) {
  const Array x = counting({3, 2, 4}), table = f32({4}, {1, 10, 100, 1000}), shift = f32({1, 4}, {1, 2, 3, 4});
  const auto [y] = vmap_with_config<Rows>({.x = x, .shift = shift, .table = table}, {.in = {{"x", 0}}});
  EXPECT_THAT(seen.runs, ElementsAre(Shape{6, 4}));
  for (int64_t n = 0; n < 24; ++n)
    EXPECT_EQ(get(y, n), get(x, n) * get(table, n % 4) + get(shift, n % 4)) << "element " << n;
}

TEST_F(Batch, repeats_a_whole_input_of_one_entry_without_copying_it) {
  const Array x = counting({1, 4}), shift = counting({3, 1, 4}, 100);
  const auto [y] = vmap_with_config<Rows>({.x = x, .shift = shift}, {.in = {{"shift", 0}}});
  EXPECT_THAT(seen.runs, ElementsAre(Shape{3, 4}));
  for (int64_t n = 0; n < 12; ++n) EXPECT_EQ(get(y, n), get(x, n % 4) + get(shift, n));
}

TEST_F(Batch, does_not_fold_where_entries_of_a_whole_input_would_have_to_be_repeated) {
  const Array x = counting({3, 2, 4}), shift = counting({2, 4}, 100), lengths = i32({1, 3});
  const auto [y] = vmap_with_config<Rows>({.x = x, .shift = shift, .lengths = lengths}, {.in = {{"x", 0}}});
  EXPECT_THAT(seen.runs, SizeIs(3));
  for (int64_t n = 0; n < 24; ++n)
    EXPECT_EQ(get(y, n), static_cast<double>(n % 4) < get(lengths, n / 4 % 2) ? get(x, n) + get(shift, n % 8) : 0) << n;
}

TEST_F(Batch, repeats_a_slices_only_entry_over_its_batch_by_looping) {
  const Array x = counting({3, 2, 4}), shift = counting({3, 1, 4}, 100);
  const auto [y] = vmap_with_config<Rows>({.x = x, .shift = shift}, {.in = 0});
  EXPECT_THAT(seen.runs, SizeIs(3));
  for (int64_t n = 0; n < 24; ++n) EXPECT_EQ(get(y, n), get(x, n) + get(shift, n / 8 * 4 + n % 4));
}

/// A contract wants the last axis contiguous, of the fold as of a slice.
TEST_F(Batch, does_not_fold_a_last_axis_with_gaps) {
  const Array x = counting({3, 1, 4}), numbers = i32({1, 9, 2, 9, 3, 9});
  const Tensor lengths(numbers.data(), DType::i32, {3, 1}, {2, 1});
  const auto [y] = vmap_with_config<Rows>({.x = x, .lengths = lengths}, {.in = 0});
  EXPECT_THAT(seen.runs, SizeIs(3));
  EXPECT_EQ(values_of(y), (std::vector<double>{1, 0, 0, 0, 5, 6, 0, 0, 9, 10, 11, 0}));
  EXPECT_EQ(why_looped({.x = x, .lengths = i32({2})}, {.in = {{"x", 0}}}),
            "slices and batch make no one axis of lengths");
  EXPECT_EQ(why_looped({.x = x, .lengths = Tensor(numbers.data(), DType::i32, {3, 1})}, {.in = 0}), "");
}

// ---- kernels ----

TEST_F(Batch, does_not_fold_at_the_price_of_its_kernel) {
  const Array x = counting({1, 4}), shift = counting({3, 1, 4}, 100);
  const auto plan = plan_batch<Rows>({.x = x, .shift = shift}, {.in = {{"shift", 0}}}, {.scale = -1});
  EXPECT_EQ(plan.folding().reason, "kernel dense takes a slice and not the fold: it takes no stride of 0");
  EXPECT_EQ(plan.plan().kernel().name, "dense");
  PlanOptions named;
  named.kernel = "counted";
  EXPECT_TRUE(plan_batch<Rows>({.x = x, .shift = shift}, {.in = {{"shift", 0}}}, {.scale = -1}, named).folding().ok);
}

TEST_F(Batch, plans_for_the_alignment_that_every_slice_has) {
  const auto kernel_for = [](int64_t gap, int64_t first) {
    const Array buffer = counting({256});
    // Two slices of [1, 4], the second `gap` elements behind the first; numbered, so that they do not fold.
    const Tensor x(buffer.as<float>() + first, DType::f32, {2, 1, 4}, {gap, 4, 1});
    const BatchAxes axes = {.in = 0};
    const Rows::Params params = {.scale = 16, .numbered = true};
    const auto [y] = vmap_with_config<Rows>({.x = x}, axes, params);
    for (int64_t n = 0; n < 8; ++n) EXPECT_EQ(get(y, n), 16 * get(x, n));
    return plan_batch<Rows>({.x = x}, axes, params).plan().kernel().name;
  };
  EXPECT_EQ(kernel_for(8, 0), "aligned");
  EXPECT_EQ(kernel_for(4, 4), "aligned");
  EXPECT_EQ(kernel_for(6, 0), "counted") << "the second slice begins at 24 bytes";
  EXPECT_EQ(kernel_for(16, 2), "counted") << "both begin at 8";
  EXPECT_GE(seen.least_alignment, 16);
}

TEST_F(Batch, takes_options_and_the_status_word) {
  const Array x = counting({2, 1, 4});
  uint32_t status = 0;
  CallOptions options;
  options.plan.config = ConfigValues{{"block", 32}};
  options.status = &status;
  vmap_with_config<Rows>({.x = x}, {.in = 0}, {}, options);
  EXPECT_EQ(seen.choices, 1) << "the override stands over the heuristic's config";
  EXPECT_EQ(status, status::kLength);
  options.plan.kernel = "no such kernel";
  EXPECT_THROW(vmap_with_config<Rows>({.x = x}, {.in = 0}, {}, options), Unsupported);
}

// ---- plans ----

TEST_F(Batch, plan_runs_many_times_and_allocates_nothing_per_slice) {
  const auto news_of_run = [](int64_t slices) {
    const Array x = counting({slices, 2, 4}), y(DType::f32, {slices, 2, 4});
    alignas(64) std::array<std::byte, 64> workspace{};
    const auto plan = plan_batch<Rows>({.x = x}, {.in = 0}, {.numbered = true});
    seen.runs.reserve(4096), seen.workspaces.reserve(4096);
    const int64_t before = num_news(), blocks = num_host_blocks();
    for (int i = 0; i < 3; ++i) plan.run({.x = x}, {.y = y}, {.workspace = workspace});
    EXPECT_EQ(num_host_blocks(), blocks);
    return num_news() - before;
  };
  EXPECT_EQ(news_of_run(2), news_of_run(200));
}

TEST_F(Batch, plan_takes_specs_without_data_and_outputs_of_the_caller) {
  const auto plan = plan_batch<Rows>({.x = Tensor(nullptr, DType::f32, {3, 2, 4})}, {.in = 0});
  EXPECT_EQ(plan.num_slices(), 3);
  EXPECT_EQ(plan.outputs()[0].shape, (Shape{3, 2, 4}));
  const Array x = counting({3, 2, 4}), rows = counting({6, 8});
  const Tensor wide(rows.data(), DType::f32, {3, 2, 4}, {16, 8, 1}),
      apart(rows.data(), DType::f32, {3, 2, 4}, {12, 4, 1});
  alignas(64) std::array<std::byte, 64> workspace{};
  plan.run({.x = x}, {.y = wide}, {.workspace = workspace});
  EXPECT_EQ(values_of(wide), values_of(x));
  EXPECT_THAT(refusal_of([&] { plan.run({.x = x}, {.y = apart}, {.workspace = workspace}); }),
              HasSubstr("rows: y must have slices and entries in one axis, as a fold writes them, got f32[3, 2, 4] "
                        "with strides [12, 4, 1]; pass what allocate_outputs gives"));
  plan.run({.x = x}, {}, {.workspace = workspace});  // not wanted
  EXPECT_THAT(refusal_of([&] {
                plan.run({.x = counting({4, 2, 4})}, {.y = wide}, {.workspace = workspace});
              }),
              HasSubstr("x must equal what was planned, f32[3, 2, 4], got f32[4, 2, 4]"));
  EXPECT_THAT(refusal_of([&] { plan.run({.x = x}, {.y = wide}); }), HasSubstr("workspace"));
}

TEST_F(Batch, of_no_slices_has_empty_results) {
  const Tensor none(nullptr, DType::f32, {0, 2, 4});
  for (const bool numbered : {false, true}) {
    const auto [y] = vmap_with_config<Rows>({.x = none}, {.in = 0}, {.numbered = numbered});
    EXPECT_EQ(y.shape(), (Shape{0, 2, 4}));
  }
  EXPECT_EQ(vmap_with_config<Rows>({.x = Tensor(nullptr, DType::f32, {2, 0, 4})}, {.in = 1, .out = 1}).y.shape(),
            (Shape{2, 0, 4}));
}

TEST_F(Batch, of_one_slice_or_of_empty_slices_is_a_call_like_any_other) {
  const Array x = counting({1, 2, 4}), shift = counting({2, 4}, 100);
  const auto [y] = vmap_with_config<Rows>({.x = x, .shift = shift}, {.in = {{"x", 0}}});
  EXPECT_THAT(seen.runs, ElementsAre(Shape{2, 4}));
  for (int64_t n = 0; n < 8; ++n) EXPECT_EQ(get(y, n), get(x, n) + get(shift, n));
  for (const bool numbered : {false, true}) {
    const Tensor empty(nullptr, DType::f32, {3, 0, 4});
    EXPECT_EQ(vmap_with_config<Rows>({.x = empty}, {.in = 0}, {.numbered = numbered}).y.shape(), (Shape{3, 0, 4}));
  }
}

TEST_F(Batch, of_a_gradient_gets_the_slices_dimensions) {
  const Array d_y = counting({3, 2, 4});
  const auto [x] = vmap_with_config<ToyBackward>({.d_y = d_y}, {.in = 0}, {.scale = 3, .batch = 2});
  for (int64_t n = 0; n < 24; ++n) EXPECT_EQ(get(x, n), 3 * get(d_y, n));
}

// ---- wrong calls ----

TEST_F(Batch, refuses_axes_that_do_not_fit) {
  const Array x = counting({3, 2, 4}), shift = counting({2, 2, 4});
  const auto refusal = [&](const BatchAxes& axes) {
    return refusal_of([&] { vmap_with_config<Rows>({.x = x, .shift = shift}, axes); });
  };
  EXPECT_EQ(refusal({.in = {{"x", 3}}}),
            "rows: the axis of x must be -3 to 2, got 3 (x [3, 2, 4]); name one of its axes, or leave it out to give "
            "every slice the whole");
  EXPECT_THAT(refusal({.in = -4}), HasSubstr("the axis of x must be -3 to 2, got -4"));
  EXPECT_EQ(refusal({.in = 0}),
            "rows: axis 0 of shift must equal axis 0 of x, 3, got 2 (x [3, 2, 4], shift [2, 2, 4]); give all mapped "
            "inputs the same number of slices");
  EXPECT_EQ(refusal({.in = {{"y", 0}}}),
            "rows: the name y of a mapped input must be one of its inputs, got an unknown name; it has x, shift, "
            "lengths, table, pairs");
  EXPECT_EQ(refusal({.in = {{"lengths", 0}}}),
            "rows: lengths must be given where it has an axis, got nothing; pass it, or leave its axis out");
  EXPECT_EQ(refusal({.in = {{"x", 0}, {"x", 1}}}), "rows: the axis of x must be named once, got two; leave one out");
  EXPECT_EQ(
      refusal({.in = {}}),
      "rows: the axes must name an input that differs from slice to slice, got none; map one, as in {.in = 0}, or "
      "call the operation itself");
}

TEST_F(Batch, refuses_an_output_axis_that_would_tear_rows_apart) {
  const Array x = counting({3, 2, 4});
  const auto refusal = [&](int out) {
    return refusal_of([&] { vmap_with_config<Rows>({.x = x}, {.in = 0, .out = out}); });
  };
  EXPECT_EQ(
      refusal(2),
      "rows: the axis of the slices in y must be 0 to 1 or -3 to -2, got 2; a slice's last axis stays contiguous");
  EXPECT_THAT(refusal(-1), HasSubstr("got -1"));
  EXPECT_THAT(refusal(-4), HasSubstr("got -4"));
  EXPECT_EQ(vmap_with_config<Rows>({.x = x}, {.in = 0, .out = -2}).y.shape(), (Shape{2, 3, 4}));
}

TEST_F(Batch, refuses_what_the_operation_refuses_of_a_slice) {
  const Array x = counting({3, 2, 4}), shift = counting({3, 2, 5});
  EXPECT_THAT(refusal_of([&] { vmap_with_config<Rows>({.x = x, .shift = shift}, {.in = 0}); }),
              HasSubstr("rows: shift dim must equal x dim 4, got 5 (x [2, 4], shift [2, 5])"));
  EXPECT_THAT(refusal_of([&] { vmap_with_config<Rows>({.x = x}, {.in = 2}); }), HasSubstr("contiguous last axis"));
  EXPECT_THAT(refusal_of([&] { vmap_with_config<Rows>({.x = counting({})}, {.in = 0}); }),
              HasSubstr("the axis of x must be left out of an input without axes"));
  Tensor wrong = x;
  wrong.strides = {8, 4};
  EXPECT_THAT(refusal_of([&] { vmap_with_config<Rows>({.x = wrong}, {.in = 2}); }), HasSubstr("x must have 3 strides"));
  wrong.strides = {INT64_MAX / 2, 4, 1};
  EXPECT_THAT(refusal_of([&] { vmap_with_config<Rows>({.x = wrong}, {.in = 0}); }), HasSubstr("address space"));
  EXPECT_THAT(refusal_of([&] { vmap_with_config("rows", std::vector<Tensor>{x}, {.in = 0}, ParamsBlock()); }),
              HasSubstr("rows: the inputs must be 5 tensors, got 1"));
}

TEST_F(Batch, of_half_bytes_begins_slices_at_whole_ones) {
  const Array odd(DType::i4, {2, 1, 3}), even(DType::i4, {2, 1, 4});
  for (int64_t n = 0; n < 6; ++n) set(odd, n, static_cast<double>(n));
  for (int64_t n = 0; n < 8; ++n) set(even, n, static_cast<double>(n - 4));
  const auto values = [](const Array& x, bool numbered) {
    return values_of(vmap_with_config<Rows>({.x = x}, {.in = 0}, {.numbered = numbered}).y);
  };
  EXPECT_EQ(values(even, true), values_of(even));
  EXPECT_EQ(values(odd, false), values_of(odd)) << "a fold has no slices to begin";
  EXPECT_THAT(refusal_of([&] { values(odd, true); }), HasSubstr("x must have slices that begin at whole bytes"));
}

}  // namespace
}  // namespace ejk::testing
