// Parameters that several attention operations have in common, with their one meaning (docs/semantics.md): each
// operation lists them for its own Params.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "ejkernel/core/schema.h"

namespace ejk {

/// Where the causal diagonal lies when lengths differ: the last query sees the last key (bottom_right), or the first
/// query sees the first key (top_left). They agree when the lengths do.
enum class CausalAlign : uint8_t { bottom_right, top_left };
constexpr std::array<std::string_view, 2> enum_names(CausalAlign) { return {"bottom_right", "top_left"}; }

/// How a cache of pages lies: [num_pages, page_size, num_kv_heads, head_dim], or heads before slots.
enum class CacheLayout : uint8_t { page_major, head_major };
constexpr std::array<std::string_view, 2> enum_names(CacheLayout) { return {"page_major", "head_major"}; }

/// softmax_scale, causal, causal_align, sliding_window: what the logits are and which keys a query sees.
template <class Params>
constexpr auto visibility_params() {
  return std::array{
      param<&Params::softmax_scale>("softmax_scale", Key::none, "factor of query @ key^T; absent: 1/sqrt(head_dim)",
                                    finite()),
      param<&Params::causal>("causal", Key::value, "hide keys after the query's own position"),
      param<&Params::causal_align>("causal_align", Key::value,
                                   "where the diagonal lies when the lengths in use differ"),
      param<&Params::sliding_window>("sliding_window", Key::bucket,
                                     "(left, right) tokens around the query's position, inclusive; -1 unbounded; one "
                                     "integer w is (w, 0) when causal, else (w, w)")};
}

/// Those, then attention_sink_size, logits_soft_cap, dropout_prob, deterministic.
template <class Params>
constexpr auto attention_params() {
  return concatenate(
      visibility_params<Params>(),
      std::array{
          param<&Params::attention_sink_size>("attention_sink_size", Key::present,
                                              "keys before this position are exempt from the window", at_least(0)),
          param<&Params::logits_soft_cap>("logits_soft_cap", Key::present, "c: logits become c * tanh(logits / c)",
                                          positive()),
          param<&Params::dropout_prob>("dropout_prob", Key::present, "probability of dropping a normalised probability",
                                       half_open(0, 1)),
          param<&Params::deterministic>("deterministic", Key::value, "bit-equal results run to run")});
}

/// softmax_scale, sliding_window, attention_sink_size, logits_soft_cap, batch_invariant: what queries at the end of
/// their sequences ask of its cache.
template <class Params>
constexpr auto decode_params() {
  return std::array{
      param<&Params::softmax_scale>("softmax_scale", Key::none, "factor of query @ key^T; absent: 1/sqrt(head_dim)",
                                    finite()),
      param<&Params::sliding_window>("sliding_window", Key::bucket,
                                     "(left, right) tokens around the query's position, inclusive; -1 unbounded; one "
                                     "integer w is (w, 0); later tokens are never seen"),
      param<&Params::attention_sink_size>("attention_sink_size", Key::present,
                                          "keys before this position are exempt from the window", at_least(0)),
      param<&Params::logits_soft_cap>("logits_soft_cap", Key::present, "c: logits become c * tanh(logits / c)",
                                      positive()),
      param<&Params::batch_invariant>("batch_invariant", Key::value,
                                      "a row's bits do not depend on the other rows of the call")};
}

}  // namespace ejk
