#include "ejkernel/runtime/problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "ejkernel/runtime/registry.h"
#include "ejkernel/testing/toy.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;

const std::string kDevice = "cpu|a processor|4";

std::string key_of(const Operation& op, std::span<const Tensor> inputs, const ParamsBlock& params) {
  return problem_key(op, inputs, params, check_call(op, inputs, params), kDevice);
}
std::string toy_key(const Toy::Inputs& inputs, const Toy::Params& params = {}) {
  return key_of(operation<Toy>(), to_array(inputs), ParamsBlock::of(params));
}
Tensor f32(const Shape& shape) { return Tensor(nullptr, DType::f32, shape); }

TEST(Bucket, is_exact_to_16_and_then_one_of_two_per_power) {
  for (int64_t n = 0; n <= 16; ++n) EXPECT_EQ(bucket(n), n);
  EXPECT_EQ(bucket(17), 24);
  EXPECT_EQ(bucket(24), 24);
  EXPECT_EQ(bucket(25), 32);
  EXPECT_EQ(bucket(32), 32);
  EXPECT_EQ(bucket(33), 48);
  EXPECT_EQ(bucket(4096), 4096);
  EXPECT_EQ(bucket(4097), 6144);
  EXPECT_EQ(bucket(-1), -1) << "unbounded stays";
  EXPECT_GE(bucket(INT64_MAX), int64_t{1} << 61) << "and nothing overflows";
}

TEST(Bucket, ten_thousand_lengths_make_at_most_42) {
  std::mt19937_64 random(11);
  std::set<std::string> keys;
  std::set<int64_t> buckets;
  for (int n = 0; n < 10000; ++n) {
    const int64_t length = 1 + static_cast<int64_t>(random() % 131072);
    keys.insert(toy_key({.x = f32({length, 8})}));
    buckets.insert(bucket(length));
    ASSERT_GE(bucket(length), length);
    ASSERT_LT(bucket(length), length * 3 / 2 + 1);
  }
  for (int64_t length = 1; length <= 131072; ++length) buckets.insert(bucket(length));
  EXPECT_EQ(buckets.size(), 42u);
  EXPECT_LE(keys.size(), 42u);
  EXPECT_GT(keys.size(), 20u);
}

TEST(Bucket, belongs_to_lengths_batch_and_counts) {
  for (const char* name :
       {"batch", "q_len", "kv_len", "num_seqs", "num_tokens", "num_pages", "total_q", "seq_len", "m"})
    EXPECT_TRUE(is_bucketed(name)) << name;
  for (const char* name :
       {"head_dim", "num_q_heads", "num_kv_heads", "value_dim", "page_size", "num_sinks", "chunk_size"})
    EXPECT_FALSE(is_bucketed(name)) << name;
}

/// Two values of a parameter that differ from its default and from each other, and for buckets one more in the first's.
struct Values {
  ParamValue one, other, near_one;
};
Values values_of(const ParamField& field) {
  switch (field.type) {
    case ParamType::boolean:
      return {true, false, true};
    case ParamType::integer:
      return {int64_t{17}, int64_t{25}, int64_t{20}};
    case ParamType::real:
      return {0.25, 0.5, 0.25};
    case ParamType::integers:
      return {std::vector<int64_t>{17, 3}, std::vector<int64_t>{25, 3}, std::vector<int64_t>{20, 3}};
    case ParamType::text:
      break;
  }
  const bool is_dtype = field.choices.empty();
  return {
      std::string(is_dtype ? "f32" : field.choices.front()), std::string(is_dtype ? "f16" : field.choices.back()), {}};
}

/// What the key of a parameter's kind must do, for every parameter of every operation.
void expect_keyed_as_declared(const Operation& op, const ParamField& field) {
  const std::vector<Tensor> inputs(op.inputs.size());
  const auto key_with = [&](const ParamValue& value) {
    ParamsBlock params = op.default_params;
    EXPECT_TRUE(field.set(params.data(), value)) << op.name << " " << field.name;
    return problem_key(op, inputs, params, CheckedCall(), kDevice);
  };
  const std::string unchanged = problem_key(op, inputs, op.default_params, CheckedCall(), kDevice);
  const Values v = values_of(field);
  const std::string one = key_with(v.one), other = key_with(v.other);
  const std::string what = std::string(op.name) + "." + std::string(field.name);
  switch (field.key) {
    case Key::none:
      EXPECT_EQ(one, unchanged) << what;
      EXPECT_EQ(other, unchanged) << what;
      break;
    case Key::present:
      EXPECT_EQ(one, other) << what;
      EXPECT_NE(one, unchanged) << what;
      break;
    case Key::value:
      EXPECT_NE(one, other) << what;
      break;
    case Key::bucket:
      EXPECT_NE(one, other) << what;
      EXPECT_NE(one, unchanged) << what;
      EXPECT_EQ(one, key_with(v.near_one)) << what;
      break;
  }
}

TEST(ProblemKey, holds_each_parameter_as_its_declaration_says) {
  register_toys();
  std::set<Key> kinds;
  for (const std::string& name : KernelRegistry::instance().names()) {
    const auto registered = KernelRegistry::instance().find(name);
    for (const ParamField& field : registered->declaration->params) {
      kinds.insert(field.key);
      expect_keyed_as_declared(*registered->declaration, field);
    }
  }
  EXPECT_EQ(kinds.size(), 4u);
}

TEST(ProblemKey, holds_what_a_choice_may_depend_on) {
  const std::string key = toy_key({.x = f32({8, 4})});
  EXPECT_NE(toy_key({.x = f32({9, 4})}), key) << "a length";
  EXPECT_NE(toy_key({.x = f32({8, 5})}), key) << "an extent";
  EXPECT_NE(toy_key({.x = f32({8, 70})}), toy_key({.x = f32({8, 72})})) << "of two in what would be one bucket";
  EXPECT_NE(toy_key({.x = Tensor(nullptr, DType::f16, {8, 4})}), key) << "a dtype";
  EXPECT_NE(toy_key({.x = f32({8, 4}), .weights = f32({8, 4})}), key) << "an optional input";
  EXPECT_NE(toy_key({.x = f32({8, 4}), .weights = f32({1, 4})}), toy_key({.x = f32({8, 4}), .weights = f32({8, 4})}))
      << "what broadcasts";
  EXPECT_NE(toy_key({.x = Tensor(nullptr, DType::f32, {8, 4}, {9, 1})}), key) << "strides that are not contiguous";
  const auto inputs = to_array(Toy::Inputs{.x = f32({8, 4})});
  const ParamsBlock params = ParamsBlock::of(Toy::Params{});
  const CheckedCall checked = check_call(operation<Toy>(), inputs, params);
  EXPECT_NE(problem_key(operation<Toy>(), inputs, params, checked, "another device"), key);
  Operation next = operation<Toy>();
  next.revision += 1;
  EXPECT_NE(problem_key(next, inputs, params, checked, kDevice), key) << "the operation's revision";
  next = operation<Toy>();
  next.name = "toz";
  EXPECT_NE(problem_key(next, inputs, params, checked, kDevice), key);
}

TEST(ProblemKey, holds_nothing_else) {
  float data[64] = {};
  const std::string key = toy_key({.x = Tensor(nullptr, DType::f32, {8, 4}, {9, 1})});
  EXPECT_EQ(toy_key({.x = Tensor(data, DType::f32, {8, 4}, {9, 1})}), key) << "data";
  EXPECT_EQ(toy_key({.x = Tensor(nullptr, DType::f32, {8, 4}, {11, 1})}), key) << "how far apart rows are";
  EXPECT_EQ(toy_key({.x = f32({100, 4})}), toy_key({.x = f32({128, 4})})) << "lengths in one bucket";
}

TEST(ProblemKey, does_not_depend_on_the_process_or_on_the_order_of_setting) {
  const Operation& op = operation<Toy>();
  ParamsBlock forwards = op.default_params, backwards = op.default_params;
  set_param(op, forwards, "flip", true);
  set_param(op, forwards, "reach", int64_t{20});
  set_param(op, backwards, "reach", int64_t{20});
  set_param(op, backwards, "flip", true);
  const auto inputs = to_array(Toy::Inputs{.x = f32({8, 4})});
  EXPECT_EQ(key_of(op, inputs, forwards), key_of(op, inputs, backwards));
  // Computed once, by another process: nothing of this one's addresses or seeds is in it.
  EXPECT_EQ(to_string(digest_of(key_of(op, inputs, forwards))), "bc19e1a4bbc414e00aa7ed1166eecd7c");
}

TEST(ProblemKey, tells_any_two_different_problems_apart) {
  std::mt19937_64 random(5);
  std::map<std::string, std::string> seen;  // key -> an independent description
  for (int n = 0; n < 3000; ++n) {
    const int64_t batch = static_cast<int64_t>(random() % 4), dim = static_cast<int64_t>(random() % 4);
    Toy::Params params;
    params.flip = random() % 2 != 0;
    params.mode = static_cast<ToyMode>(random() % 2);
    params.reach = static_cast<int64_t>(random() % 3);
    params.window =
        random() % 2 != 0 ? Window(static_cast<int64_t>(random() % 3)) : Window(1, static_cast<int64_t>(random() % 3));
    if (random() % 2 != 0) params.limit = 2;
    std::string description;
    for (int64_t part :
         {batch, dim, int64_t{params.flip}, static_cast<int64_t>(params.mode), params.reach, params.window.left,
          params.window.right, int64_t{params.window.symmetric}, int64_t{params.limit.has_value()}})
      description += std::to_string(part) + " ";
    const auto [known, is_new] = seen.emplace(toy_key({.x = f32({batch, dim})}, params), description);
    ASSERT_TRUE(is_new || known->second == description) << known->second << "and " << description;
  }
  std::set<std::string> descriptions;
  for (const auto& [key, description] : seen) descriptions.insert(description);
  EXPECT_EQ(descriptions.size(), seen.size());
}

TEST(ProblemText, reads_like_the_call) {
  const auto text = [](const Toy::Inputs& inputs, const Toy::Params& params) {
    const auto tensors = to_array(inputs);
    const ParamsBlock block = ParamsBlock::of(params);
    return problem_text(operation<Toy>(), tensors, block, check_call(operation<Toy>(), tensors, block));
  };
  EXPECT_EQ(text({.x = f32({8, 5})}, {}), "toy@3 x:f32 batch=8 dim=5");
  EXPECT_EQ(text({.x = Tensor(nullptr, DType::f32, {100, 5}, {7, 1}), .weights = f32({1, 5})},
                 {.scale = 9, .shift = 2, .flip = true, .reach = 20}),
            "toy@3 x:f32(strided) weights:f32 batch<=128 dim=5 shift=given flip=true reach=24");
}

TEST(ProblemText, of_equal_keys_is_equal) {
  std::map<std::string, std::set<std::string>> texts;
  for (int64_t batch = 1; batch <= 200; ++batch)
    for (const int64_t reach : {0, 16, 17, 23, 24, 25}) {
      const auto tensors = to_array(Toy::Inputs{.x = f32({batch, 5})});
      const ParamsBlock params = ParamsBlock::of(Toy::Params{.reach = reach});
      const CheckedCall checked = check_call(operation<Toy>(), tensors, params);
      texts[problem_key(operation<Toy>(), tensors, params, checked, "device")].insert(
          problem_text(operation<Toy>(), tensors, params, checked));
    }
  EXPECT_LT(texts.size(), 120u) << "lengths share keys";
  for (const auto& [key, lines] : texts) EXPECT_EQ(lines.size(), 1u) << *lines.begin() << " and " << *lines.rbegin();
}

}  // namespace
}  // namespace ejk::testing
