// Calls that C++ lets through and the library must not: values that a cast made, strides to nowhere, null memory.
#include "ejkernel/core/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "ejkernel/ejkernel.h"
#include "ejkernel/runtime/registry.h"

namespace ejk {
namespace {

using ::testing::HasSubstr;

class WrongCalls : public ::testing::Test {
 protected:
  FlashAttention::Inputs inputs() const { return {.query = q, .key = k, .value = v}; }

  const Array q = Array::zeros(DType::f32, {1, 4, 2, 8}), k = Array::zeros(DType::f32, {1, 6, 2, 8}),
              v = Array::zeros(DType::f32, {1, 6, 2, 8});
};

void expect_refused(const std::function<void()>& call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected: " << text;
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST_F(WrongCalls, with_numbers_cast_to_enumerators) {
  expect_refused([&] { flash_attention(inputs(), {.causal_align = static_cast<CausalAlign>(77)}); },
                 "causal_align must be bottom_right or top_left, got a value that is no enumerator");
  for (const int number : {kNumDTypes, 31, 32, 255}) {
    expect_refused([&] { flash_attention(inputs(), {.out_dtype = static_cast<DType>(number)}); },
                   "out_dtype must be the name of a dtype, got a value that is no enumerator");
    auto in = inputs();
    in.query.dtype = static_cast<DType>(number);
    expect_refused([&] { flash_attention(in); },
                   "query dtype must be a DType, got the number " + std::to_string(number));
  }
  auto in = inputs();
  in.key.device.kind = static_cast<DeviceKind>(9);
  expect_refused([&] { flash_attention(in); }, "key device kind must be cpu or cuda, got the number 9");
  EXPECT_THROW(flash_attention(inputs(), {}, {.plan = {.platform = static_cast<Platform>(99)}}), Unsupported);
  EXPECT_THROW(flash_attention(inputs(), {}, {.plan = {.backend = static_cast<Backend>(99)}}), Unsupported);
  EXPECT_EQ(name(static_cast<DType>(200)), "?");
}

TEST_F(WrongCalls, with_strides_that_lead_out_of_the_address_space) {
  for (const int64_t stride : {INT64_MAX, INT64_MIN, int64_t{1} << 57, -(int64_t{1} << 57)}) {
    auto in = inputs();
    in.query.strides[1] = stride;
    expect_refused([&] { flash_attention(in); }, "query must reach elements inside the address space");
    const auto planned = plan<FlashAttention>(inputs());
    const auto results = planned.allocate_outputs();
    Tensor out = results.out;
    out.strides[1] = stride;
    const Array workspace(DType::u8, {static_cast<int64_t>(planned.workspace_bytes())});
    const RunOptions options{.workspace = {workspace.as<std::byte>(), planned.workspace_bytes()}};
    expect_refused([&] { planned.run(inputs(), {.out = out}, options); }, "out must");
  }
  auto in = inputs();
  in.query.strides[0] = INT64_MAX;  // of an axis with one element: it is never multiplied by anything but 0
  EXPECT_NO_THROW(flash_attention(in));
}

TEST_F(WrongCalls, with_extents_beside_a_0_that_no_tensor_has) {
  const auto empty = [](int64_t heads) { return Tensor(nullptr, DType::f32, {1, 0, heads, 8}); };
  for (const int64_t heads : {INT64_MAX, int64_t{1} << 45})
    expect_refused([&] { plan<FlashAttention>({.query = empty(heads), .key = k, .value = v}); },
                   "query must have extents beside its 0 of less than 2^48 elements");
  EXPECT_NO_THROW(plan<FlashAttention>({.query = empty(int64_t{1} << 44), .key = k, .value = v}));
}

/// Slots of a sequence, and what lies between heads, of caches without elements.
TEST_F(WrongCalls, with_tables_and_strides_of_empty_caches_that_no_memory_has) {
  const Tensor pages(nullptr, DType::f32, {0, int64_t{1} << 40, 4, 8}, {1, 1, int64_t{1} << 62, 1});
  const Array rows = Array::zeros(DType::f32, {1, 2, 8}), lens = Array::zeros(DType::i32, {1}),
              starts = Array::zeros(DType::i32, {2}), count = Array::zeros(DType::i32, {1});
  const Tensor table(nullptr, DType::i32, {1, int64_t{1} << 40});
  EXPECT_NO_THROW(plan<RaggedPageAttention>({.queries = rows,
                                             .kv_pages = pages,
                                             .context_lens = lens,
                                             .block_tables = table,
                                             .query_start_loc = starts,
                                             .num_seqs = count}));
}

TEST_F(WrongCalls, with_a_workspace_that_is_short_null_or_misaligned) {
  const auto planned = plan<FlashAttention>(inputs());
  const auto results = planned.allocate_outputs();
  const size_t bytes = planned.workspace_bytes();
  ASSERT_GT(bytes, 0u);
  const Array memory(DType::u8, {static_cast<int64_t>(bytes) + 64});
  const auto run = [&](std::byte* workspace, size_t size) {
    planned.run(inputs(), {.out = results.out}, {.workspace = {workspace, size}});
  };
  expect_refused([&] { run(nullptr, bytes); }, "the workspace must point at " + std::to_string(bytes) + " bytes");
  expect_refused([&] { run(memory.as<std::byte>(), bytes - 1); }, "the workspace must have at least");
  expect_refused([&] { run(memory.as<std::byte>() + 8, bytes); }, "the workspace must be aligned to 64 bytes");
  EXPECT_NO_THROW(run(memory.as<std::byte>(), bytes));
}

TEST_F(WrongCalls, with_a_status_word_at_an_odd_address) {
  const auto planned = plan<FlashAttention>(inputs());
  const auto results = planned.allocate_outputs();
  const Array workspace(DType::u8, {static_cast<int64_t>(planned.workspace_bytes())});
  alignas(8) std::byte words[16] = {};
  const auto run = [&](std::byte* status) {
    planned.run(inputs(), {.out = results.out},
                {.workspace = {workspace.as<std::byte>(), planned.workspace_bytes()},
                 .status = reinterpret_cast<uint32_t*>(status)});
  };
  expect_refused([&] { run(words + 1); }, "the status word must be aligned to 4 bytes");
  EXPECT_NO_THROW(run(words + 4));
}

TEST_F(WrongCalls, with_outputs_of_another_number_of_strides) {
  const auto planned = plan<FlashAttention>(inputs());
  Tensor out = planned.allocate_outputs().out;
  for (const Shape& strides : {Shape{}, Shape{1}, Shape{64, 16, 8, 1, 1}}) {
    out.strides = strides;
    const Array workspace(DType::u8, {static_cast<int64_t>(planned.workspace_bytes())});
    expect_refused(
        [&] {
          planned.run(inputs(), {.out = out}, {.workspace = {workspace.as<std::byte>(), planned.workspace_bytes()}});
        },
        "out must have 4 strides, got " + std::to_string(strides.rank()));
  }
}

TEST(DTypeRules, parameters_override_what_follows_from_the_field) {
  const Operation& with_state = *KernelRegistry::instance().find("recurrent_attention")->declaration;
  const Operation& with_out = *KernelRegistry::instance().find("flash_attention")->declaration;
  const auto by = [](const Operation& op, const ParamsBlock& params, DTypeRule rule, DType of) {
    return dtype_by_rule(op, params, rule, of);
  };
  for (const DType of : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
    const DType wide = of == DType::f64 ? DType::f64 : DType::f32;
    EXPECT_EQ(by(with_state, with_state.default_params, DTypeRule::state_of, of), wide);
    EXPECT_EQ(by(with_state, with_state.default_params, DTypeRule::stats_of, of), wide);
    EXPECT_EQ(by(with_out, with_out.default_params, DTypeRule::result_of, of), bits(of) == 8 ? DType::bf16 : of);
    EXPECT_EQ(by(with_out, with_out.default_params, DTypeRule::same_as, of), of);

    const auto bf16_state = ParamsBlock::of(RecurrentAttention::Params{.state_dtype = DType::bf16});
    EXPECT_EQ(by(with_state, bf16_state, DTypeRule::state_of, of), DType::bf16);
    EXPECT_EQ(by(with_state, bf16_state, DTypeRule::stats_of, of), wide) << "statistics have no parameter";
    const auto f16_out = ParamsBlock::of(FlashAttention::Params{.out_dtype = DType::f16});
    EXPECT_EQ(by(with_out, f16_out, DTypeRule::result_of, of), DType::f16);
  }
}

}  // namespace
}  // namespace ejk
