#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/flash_attention/attention_rules_oracle.h"

namespace ejk::testing {
namespace {

constexpr Plane kWhole = {.given = true};

/// Keeps what the operation lists.
AttentionCase listed(AttentionCase c) {
  const FlashAttention::Params all = c.params;
  c.params = {.softmax_scale = all.softmax_scale,
              .causal = all.causal,
              .causal_align = all.causal_align,
              .sliding_window = all.sliding_window};
  c.num_segments = 0, c.num_sinks = 0, c.dropout_seed = false, c.seqused_k = false;
  return c;
}

Tensor add_lengths(Problem& problem, std::string_view name, const AttentionCase& c, int64_t most, Random& random) {
  const Tensor lengths = problem.add(name, DType::i32, {c.batch});
  fill(lengths, [&](int64_t) {
    if (c.hostile && random.chance(0.5))
      return random.pick<int64_t>({-1, INT32_MIN, INT32_MAX, most + 1, random.between(-1000, 1000)});
    return random.chance(0.2) ? random.pick<int64_t>({0, most}) : random.between(0, most);
  });
  return lengths;
}

/// NaN in every row of query, key and value that no visible pair uses.
void poison(Problem& problem, const FlashAttention::Inputs& in, const FlashAttention::Params& params,
            const Tensor& query_lengths) {
  const auto used = attn::Rules(in, params, query_lengths).used();
  auto spoil = [](const Tensor& t, const std::vector<bool>& used_rows) {
    const int64_t row = t.shape[2] * t.shape[3];
    for (size_t r = 0; r < used_rows.size(); ++r)
      for (int64_t n = 0; n < row && !used_rows[r]; ++n)
        set(t, static_cast<int64_t>(r) * row + n, std::numeric_limits<double>::quiet_NaN());
  };
  spoil(problem.view("query"), used.query);
  spoil(problem.view("key"), used.key);
  spoil(problem.view("value"), used.key);
}

}  // namespace

Problem make_sdpa_problem(const SdpaCase& description) {
  AttentionCase base = description.base;
  base.poison = false;  // once the lengths are known
  const Problem flash = make_attention_problem(base);
  Problem problem = Problem::of(declaration<ScaledDotProductAttention>());
  for (size_t i = 0; i < problem.inputs.size(); ++i)
    if (const int from = find_input(*flash.operation, problem.operation->inputs[i].name); from >= 0)
      problem.inputs[i] = flash.inputs[static_cast<size_t>(from)];
  problem.params = ParamsBlock::of(ScaledDotProductAttention::Params{.softmax_scale = base.params.softmax_scale,
                                                                     .causal = base.params.causal,
                                                                     .causal_align = base.params.causal_align,
                                                                     .sliding_window = base.params.sliding_window});
  problem.label = flash.label, problem.replay = flash.replay, problem.seed = flash.seed;

  Random random(base.seed ^ 0x53445041u);
  auto in = to_struct<FlashAttention::Inputs>(flash.views());
  Tensor query_lengths;
  if (description.query_lengths) {
    query_lengths = add_lengths(problem, "query_seq_lengths", base, base.q_len, random);
    problem.label += " query_lengths";
  }
  if (description.key_lengths) {
    in.seqused_k = add_lengths(problem, "key_value_seq_lengths", base, base.kv_len, random);
    problem.label += " key_lengths";
  }
  if (description.base.poison) poison(problem, in, base.params, query_lengths);
  return problem;
}

SdpaCase random_sdpa_case(const RandomRequest& request) {
  // Mostly small ones: the tiles are flash_attention's, whose own problems are as large as they get.
  RandomRequest drawn = request;
  if (request.size == Size::normal && request.seed % 4 != 0) drawn.size = Size::small;
  SdpaCase c = {.base = listed(random_attention_case(drawn, {.packed = false, .gradient = true}))};
  Random random(request.seed ^ 0x4C454E53u);
  c.query_lengths = random.chance(0.5);
  c.key_lengths = request.hostile || random.chance(0.5);
  if (random.chance(0.5)) c.base.params.causal_align = CausalAlign::top_left;
  return c;
}

std::vector<SdpaCase> sdpa_cases() {
  constexpr CausalAlign kTopLeft = CausalAlign::top_left;
  std::vector<SdpaCase> cases = {
      {.base = {.name = "t5_encoder_padded",
                .tags = kPrimary,
                .dtype = DType::f32,
                .batch = 4,
                .q_len = 256,
                .kv_len = 256,
                .num_q_heads = 8,
                .num_kv_heads = 8,
                .params = {.softmax_scale = 1.0, .causal_align = kTopLeft},
                .bias = {.given = true, .batch = false}},
       .query_lengths = true,
       .key_lengths = true},
      {.base = {.name = "whisper_decoder",
                .tags = kPrimary,
                .dtype = DType::f16,
                .batch = 2,
                .q_len = 224,
                .kv_len = 224,
                .num_q_heads = 12,
                .num_kv_heads = 12,
                .params = {.causal = true, .causal_align = kTopLeft}}},
      {.base = {.name = "llama3_8b_padded_batch",
                .tags = kPrimary,
                .batch = 3,
                .q_len = 300,
                .kv_len = 300,
                .num_q_heads = 32,
                .num_kv_heads = 8,
                .head_dim = 128,
                .params = {.causal = true, .causal_align = kTopLeft}},
       .query_lengths = true,
       .key_lengths = true},
      {.base = {.name = "no_batch", .batch = 0, .q_len = 3, .kv_len = 3}, .query_lengths = true, .key_lengths = true},
      {.base = {.name = "no_queries", .batch = 2, .q_len = 0, .kv_len = 3}, .query_lengths = true},
      {.base = {.name = "no_keys", .batch = 2, .q_len = 3, .kv_len = 0}, .key_lengths = true},
      {.base = {.name = "one_of_everything", .head_dim = 1}, .query_lengths = true, .key_lengths = true},
      {.base = {.name = "bottom_right_of_lengths",
                .dtype = DType::f32,
                .batch = 6,
                .q_len = 40,
                .kv_len = 70,
                .num_q_heads = 4,
                .num_kv_heads = 2,
                .params = {.causal = true}},
       .query_lengths = true,
       .key_lengths = true},
      {.base = {.name = "longer_queries_than_keys",
                .dtype = DType::f32,
                .batch = 3,
                .q_len = 90,
                .kv_len = 20,
                .params = {.causal = true, .causal_align = kTopLeft}},
       .query_lengths = true},
      {.base = {.name = "window_and_mask",
                .batch = 4,
                .q_len = 65,
                .kv_len = 129,
                .num_q_heads = 2,
                .num_kv_heads = 2,
                .params = {.causal_align = kTopLeft, .sliding_window = {20, 3}},
                .mask = kWhole},
       .query_lengths = true,
       .key_lengths = true},
      {.base = {.name = "strided",
                .batch = 3,
                .q_len = 33,
                .kv_len = 65,
                .num_q_heads = 4,
                .num_kv_heads = 2,
                .params = {.causal = true, .causal_align = kTopLeft},
                .bias = kWhole,
                .random_layouts = true},
       .query_lengths = true,
       .key_lengths = true},
  };
  for (size_t n = 0; n < cases.size(); ++n) {
    AttentionCase& c = cases[n].base;
    c.seed = n + 1;
    if (c.tags == 0) c.tags = kEdge;
  }
  // Lengths in use around the ends of tiles: the tensors are longer.
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  for (int64_t length : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129})
    for (const bool causal : {false, true})
      cases.push_back({.base = {.name = fmt::format("lattice_{}{}", length, causal ? "_causal" : ""),
                                .tags = kLattice,
                                .dtype = dtypes[cases.size() % 3],
                                .batch = 3,
                                .q_len = length,
                                .kv_len = length + 9,
                                .num_q_heads = 2,
                                .head_dim = 24,
                                .params = {.causal = causal},
                                .seed = 100 + cases.size()},
                       .query_lengths = true,
                       .key_lengths = true});
  return cases;
}

}  // namespace ejk::testing
