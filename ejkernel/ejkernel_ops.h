/* One typed C99 function per operation, over c_api.h. Made from the declarations (`./dev docs`): do not edit.
 *
 *   ejk_flash_attention_args args;
 *   ejk_flash_attention_init(&args);
 *   args.inputs.query = &query; ...
 *   if (ejk_flash_attention(&args) != EJK_OK) ...
 */
/* clang-format off */
#ifndef EJKERNEL_EJKERNEL_OPS_H_
#define EJKERNEL_EJKERNEL_OPS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ejkernel/c_api.h"

#ifndef EJK_OPS_ADD_
#define EJK_OPS_ADD_
static inline void ejk_ops_add(ejk_tensor* list, size_t* count, const char* name, const DLTensor* tensor) {
  if (tensor == NULL) return;
  list[*count].name = name;
  list[*count].tensor = tensor;
  ++*count;
}
#endif

/* ---- flash_attention ---- */

/* Softmax attention without the score matrix: grouped heads, masks, windows, sinks, soft cap, dropout, packing.
 * Dao et al., FlashAttention-2 (arXiv:2307.08691). Gradient: flash_attention_backward. */
typedef struct ejk_flash_attention_args {
  struct {
    /* required; queries; 8-bit ones are codes, scaled by q_scale: number[batch, q_len, num_q_heads, head_dim] ;
     * number[total_q, num_q_heads, head_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): @query[batch, kv_len,
     * num_kv_heads, head_dim] ; @query[total_k, num_kv_heads, head_dim] */
    const DLTensor* key;
    /* required; values; value_dim may differ from head_dim: @query[batch, kv_len, num_kv_heads, value_dim] ;
     * @query[total_k, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* may be NULL; added to the scaled logits; -inf excludes a key: float?[batch/1, num_q_heads/1, q_len/1,
     * kv_len] ; - */
    const DLTensor* bias;
    /* may be NULL; true: the key is visible: bool?[batch/1, num_q_heads/1, q_len/1, kv_len] ; - */
    const DLTensor* attention_mask;
    /* may be NULL; equal ids attend; a negative id is padding: int32?[batch, q_len] ; - */
    const DLTensor* q_segment_ids;
    /* may be NULL; q_segment_ids when the lengths are equal: int32?[batch, kv_len] ; - */
    const DLTensor* kv_segment_ids;
    /* may be NULL; sinks: extra logits in the denominator, neither scaled nor capped; rank 1 is shared by all
     * heads: float?[num_q_heads, num_sinks] | float?[num_sinks] */
    const DLTensor* softmax_aux;
    /* may be NULL; (seed, offset) of the dropout mask; (0, 0) when absent: uint32?[2] */
    const DLTensor* dropout_seed;
    /* may be NULL; scale of 8-bit queries: one, per head, or per block of 128 tokens: float32?[] |
     * float32?[num_q_heads] | float32?[batch, num_q_blocks, num_q_heads] ; float32?[] | float32?[num_q_heads] */
    const DLTensor* q_scale;
    /* may be NULL; scale of 8-bit keys: float32?[] | float32?[num_kv_heads] | float32?[batch, num_kv_blocks,
     * num_kv_heads] ; float32?[] | float32?[num_kv_heads] */
    const DLTensor* k_scale;
    /* may be NULL; scale of 8-bit values: float32?[] | float32?[num_kv_heads] | float32?[batch, num_kv_blocks,
     * num_kv_heads] ; float32?[] | float32?[num_kv_heads] */
    const DLTensor* v_scale;
    /* may be NULL; packed: sequence s owns query rows [s], [s+1): - ; int32[num_seqs+1] */
    const DLTensor* cu_seqlens_q;
    /* may be NULL; packed: sequence s owns key rows [s], [s+1): - ; int32[num_seqs+1] */
    const DLTensor* cu_seqlens_k;
    /* may be NULL; keys in use, the first ones of each sequence: int32?[batch] ; int32?[num_seqs] */
    const DLTensor* seqused_k;
  } inputs;
  struct {
    /* attention; 0 for a query that sees no key: result@query[batch, q_len, num_q_heads, value_dim] ;
     * result@query[total_q, num_q_heads, value_dim] */
    const DLTensor* out;
    /* natural log of the softmax denominator, sinks included; -inf for a row without key or sink:
     * stats@query[batch, num_q_heads, q_len] ; stats@query[num_q_heads, total_q] */
    const DLTensor* lse;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of query @ key^T; absent: 1/sqrt(head_dim); default NULL: none */
    const double* softmax_scale;
    /* hide keys after the query's own position; default false */
    bool causal;
    /* where the diagonal lies when the lengths in use differ; default "bottom_right"; one of "bottom_right",
     * "top_left" */
    const char* causal_align;
    /* (left, right) tokens around the query's position, inclusive; -1 unbounded; one integer w is (w, 0) when
     * causal, else (w, w); default NULL: none */
    const int64_t* sliding_window;
    size_t sliding_window_count;
    /* keys before this position are exempt from the window; default 0 */
    int64_t attention_sink_size;
    /* c: logits become c * tanh(logits / c); default NULL: none */
    const double* logits_soft_cap;
    /* probability of dropping a normalised probability; default 0.0 */
    double dropout_prob;
    /* bit-equal results run to run; default false */
    bool deterministic;
    /* dtype of out; absent: the query's (bf16 for 8-bit queries); default NULL: none */
    const char* out_dtype;
    /* false: out is the sum of e^(s - max) * v, not divided; forward only; default true */
    bool normalize_output;
    /* packed: longer sequences are cut to it; absent: none is; default NULL: none */
    const int64_t* max_seqlen_q;
    /* packed: as max_seqlen_q, for keys; default NULL: none */
    const int64_t* max_seqlen_k;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_flash_attention_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_flash_attention_init(ejk_flash_attention_args* args) {
  memset(args, 0, sizeof *args);
  args->params.causal = false;
  args->params.causal_align = "bottom_right";
  args->params.attention_sink_size = 0;
  args->params.dropout_prob = 0.0;
  args->params.deterministic = false;
  args->params.normalize_output = true;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_flash_attention(const ejk_flash_attention_args* args) {
  ejk_tensor inputs[15], outputs[2];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("flash_attention", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key", args->inputs.key);
  ejk_ops_add(inputs, &num_inputs, "value", args->inputs.value);
  ejk_ops_add(inputs, &num_inputs, "bias", args->inputs.bias);
  ejk_ops_add(inputs, &num_inputs, "attention_mask", args->inputs.attention_mask);
  ejk_ops_add(inputs, &num_inputs, "q_segment_ids", args->inputs.q_segment_ids);
  ejk_ops_add(inputs, &num_inputs, "kv_segment_ids", args->inputs.kv_segment_ids);
  ejk_ops_add(inputs, &num_inputs, "softmax_aux", args->inputs.softmax_aux);
  ejk_ops_add(inputs, &num_inputs, "dropout_seed", args->inputs.dropout_seed);
  ejk_ops_add(inputs, &num_inputs, "q_scale", args->inputs.q_scale);
  ejk_ops_add(inputs, &num_inputs, "k_scale", args->inputs.k_scale);
  ejk_ops_add(inputs, &num_inputs, "v_scale", args->inputs.v_scale);
  ejk_ops_add(inputs, &num_inputs, "cu_seqlens_q", args->inputs.cu_seqlens_q);
  ejk_ops_add(inputs, &num_inputs, "cu_seqlens_k", args->inputs.cu_seqlens_k);
  ejk_ops_add(inputs, &num_inputs, "seqused_k", args->inputs.seqused_k);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  ejk_ops_add(outputs, &num_outputs, "lse", args->outputs.lse);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.causal != false)
    status = ejk_params_set_bool(params, "causal", args->params.causal);
  if (status == EJK_OK && args->params.causal_align != NULL)
    status = ejk_params_set_str(params, "causal_align", args->params.causal_align);
  if (status == EJK_OK && args->params.sliding_window != NULL)
    status = ejk_params_set_i64s(params, "sliding_window", args->params.sliding_window, args->params.sliding_window_count);
  if (status == EJK_OK && args->params.attention_sink_size != 0)
    status = ejk_params_set_i64(params, "attention_sink_size", args->params.attention_sink_size);
  if (status == EJK_OK && args->params.logits_soft_cap != NULL)
    status = ejk_params_set_f64(params, "logits_soft_cap", *args->params.logits_soft_cap);
  if (status == EJK_OK && args->params.dropout_prob != 0.0)
    status = ejk_params_set_f64(params, "dropout_prob", args->params.dropout_prob);
  if (status == EJK_OK && args->params.deterministic != false)
    status = ejk_params_set_bool(params, "deterministic", args->params.deterministic);
  if (status == EJK_OK && args->params.out_dtype != NULL)
    status = ejk_params_set_str(params, "out_dtype", args->params.out_dtype);
  if (status == EJK_OK && args->params.normalize_output != true)
    status = ejk_params_set_bool(params, "normalize_output", args->params.normalize_output);
  if (status == EJK_OK && args->params.max_seqlen_q != NULL)
    status = ejk_params_set_i64(params, "max_seqlen_q", *args->params.max_seqlen_q);
  if (status == EJK_OK && args->params.max_seqlen_k != NULL)
    status = ejk_params_set_i64(params, "max_seqlen_k", *args->params.max_seqlen_k);
  if (status == EJK_OK)
    status = ejk_execute("flash_attention", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- flash_attention_backward ---- */

/* Gradient of flash_attention for query, key, value, bias and sinks. Dao et al., FlashAttention-2
 * (arXiv:2307.08691), algorithm 2. */
typedef struct ejk_flash_attention_backward_args {
  struct {
    /* required; queries; 8-bit ones are codes, scaled by q_scale: number[batch, q_len, num_q_heads, head_dim] ;
     * number[total_q, num_q_heads, head_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): @query[batch, kv_len,
     * num_kv_heads, head_dim] ; @query[total_k, num_kv_heads, head_dim] */
    const DLTensor* key;
    /* required; values; value_dim may differ from head_dim: @query[batch, kv_len, num_kv_heads, value_dim] ;
     * @query[total_k, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* may be NULL; added to the scaled logits; -inf excludes a key: float?[batch/1, num_q_heads/1, q_len/1,
     * kv_len] ; - */
    const DLTensor* bias;
    /* may be NULL; true: the key is visible: bool?[batch/1, num_q_heads/1, q_len/1, kv_len] ; - */
    const DLTensor* attention_mask;
    /* may be NULL; equal ids attend; a negative id is padding: int32?[batch, q_len] ; - */
    const DLTensor* q_segment_ids;
    /* may be NULL; q_segment_ids when the lengths are equal: int32?[batch, kv_len] ; - */
    const DLTensor* kv_segment_ids;
    /* may be NULL; sinks: extra logits in the denominator, neither scaled nor capped; rank 1 is shared by all
     * heads: float?[num_q_heads, num_sinks] | float?[num_sinks] */
    const DLTensor* softmax_aux;
    /* may be NULL; (seed, offset) of the dropout mask; (0, 0) when absent: uint32?[2] */
    const DLTensor* dropout_seed;
    /* may be NULL; scale of 8-bit queries: one, per head, or per block of 128 tokens: float32?[] |
     * float32?[num_q_heads] | float32?[batch, num_q_blocks, num_q_heads] ; float32?[] | float32?[num_q_heads] */
    const DLTensor* q_scale;
    /* may be NULL; scale of 8-bit keys: float32?[] | float32?[num_kv_heads] | float32?[batch, num_kv_blocks,
     * num_kv_heads] ; float32?[] | float32?[num_kv_heads] */
    const DLTensor* k_scale;
    /* may be NULL; scale of 8-bit values: float32?[] | float32?[num_kv_heads] | float32?[batch, num_kv_blocks,
     * num_kv_heads] ; float32?[] | float32?[num_kv_heads] */
    const DLTensor* v_scale;
    /* may be NULL; packed: sequence s owns query rows [s], [s+1): - ; int32[num_seqs+1] */
    const DLTensor* cu_seqlens_q;
    /* may be NULL; packed: sequence s owns key rows [s], [s+1): - ; int32[num_seqs+1] */
    const DLTensor* cu_seqlens_k;
    /* may be NULL; keys in use, the first ones of each sequence: int32?[batch] ; int32?[num_seqs] */
    const DLTensor* seqused_k;
    /* required; the forward's out: result@query[batch, q_len, num_q_heads, value_dim] ; result@query[total_q,
     * num_q_heads, value_dim] */
    const DLTensor* out;
    /* required; the forward's lse: stats@query[batch, num_q_heads, q_len] ; stats@query[num_q_heads, total_q] */
    const DLTensor* lse;
    /* required; cotangent of out: result@query[batch, q_len, num_q_heads, value_dim] ; result@query[total_q,
     * num_q_heads, value_dim] */
    const DLTensor* d_out;
    /* may be NULL; cotangent of lse; absent: zero: stats@query?[batch, num_q_heads, q_len] ;
     * stats@query?[num_q_heads, total_q] */
    const DLTensor* d_lse;
  } inputs;
  struct {
    /* gradient of query: @query[batch, q_len, num_q_heads, head_dim] ; @query[total_q, num_q_heads, head_dim] */
    const DLTensor* query;
    /* gradient of key, summed over its query heads: @key[batch, kv_len, num_kv_heads, head_dim] ; @key[total_k,
     * num_kv_heads, head_dim] */
    const DLTensor* key;
    /* gradient of value, summed over its query heads: @value[batch, kv_len, num_kv_heads, value_dim] ;
     * @value[total_k, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* gradient of bias, summed over its broadcast axes: @bias?[batch/1, num_q_heads/1, q_len/1, kv_len] ; - */
    const DLTensor* bias;
    /* gradient of the sinks: @softmax_aux?[num_q_heads, num_sinks] | @softmax_aux?[num_sinks] */
    const DLTensor* softmax_aux;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of query @ key^T; absent: 1/sqrt(head_dim); default NULL: none */
    const double* softmax_scale;
    /* hide keys after the query's own position; default false */
    bool causal;
    /* where the diagonal lies when the lengths in use differ; default "bottom_right"; one of "bottom_right",
     * "top_left" */
    const char* causal_align;
    /* (left, right) tokens around the query's position, inclusive; -1 unbounded; one integer w is (w, 0) when
     * causal, else (w, w); default NULL: none */
    const int64_t* sliding_window;
    size_t sliding_window_count;
    /* keys before this position are exempt from the window; default 0 */
    int64_t attention_sink_size;
    /* c: logits become c * tanh(logits / c); default NULL: none */
    const double* logits_soft_cap;
    /* probability of dropping a normalised probability; default 0.0 */
    double dropout_prob;
    /* bit-equal results run to run; default false */
    bool deterministic;
    /* dtype of out; absent: the query's (bf16 for 8-bit queries); default NULL: none */
    const char* out_dtype;
    /* false: out is the sum of e^(s - max) * v, not divided; forward only; default true */
    bool normalize_output;
    /* packed: longer sequences are cut to it; absent: none is; default NULL: none */
    const int64_t* max_seqlen_q;
    /* packed: as max_seqlen_q, for keys; default NULL: none */
    const int64_t* max_seqlen_k;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_flash_attention_backward_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_flash_attention_backward_init(ejk_flash_attention_backward_args* args) {
  memset(args, 0, sizeof *args);
  args->params.causal = false;
  args->params.causal_align = "bottom_right";
  args->params.attention_sink_size = 0;
  args->params.dropout_prob = 0.0;
  args->params.deterministic = false;
  args->params.normalize_output = true;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_flash_attention_backward(const ejk_flash_attention_backward_args* args) {
  ejk_tensor inputs[19], outputs[5];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("flash_attention_backward", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key", args->inputs.key);
  ejk_ops_add(inputs, &num_inputs, "value", args->inputs.value);
  ejk_ops_add(inputs, &num_inputs, "bias", args->inputs.bias);
  ejk_ops_add(inputs, &num_inputs, "attention_mask", args->inputs.attention_mask);
  ejk_ops_add(inputs, &num_inputs, "q_segment_ids", args->inputs.q_segment_ids);
  ejk_ops_add(inputs, &num_inputs, "kv_segment_ids", args->inputs.kv_segment_ids);
  ejk_ops_add(inputs, &num_inputs, "softmax_aux", args->inputs.softmax_aux);
  ejk_ops_add(inputs, &num_inputs, "dropout_seed", args->inputs.dropout_seed);
  ejk_ops_add(inputs, &num_inputs, "q_scale", args->inputs.q_scale);
  ejk_ops_add(inputs, &num_inputs, "k_scale", args->inputs.k_scale);
  ejk_ops_add(inputs, &num_inputs, "v_scale", args->inputs.v_scale);
  ejk_ops_add(inputs, &num_inputs, "cu_seqlens_q", args->inputs.cu_seqlens_q);
  ejk_ops_add(inputs, &num_inputs, "cu_seqlens_k", args->inputs.cu_seqlens_k);
  ejk_ops_add(inputs, &num_inputs, "seqused_k", args->inputs.seqused_k);
  ejk_ops_add(inputs, &num_inputs, "out", args->inputs.out);
  ejk_ops_add(inputs, &num_inputs, "lse", args->inputs.lse);
  ejk_ops_add(inputs, &num_inputs, "d_out", args->inputs.d_out);
  ejk_ops_add(inputs, &num_inputs, "d_lse", args->inputs.d_lse);
  ejk_ops_add(outputs, &num_outputs, "query", args->outputs.query);
  ejk_ops_add(outputs, &num_outputs, "key", args->outputs.key);
  ejk_ops_add(outputs, &num_outputs, "value", args->outputs.value);
  ejk_ops_add(outputs, &num_outputs, "bias", args->outputs.bias);
  ejk_ops_add(outputs, &num_outputs, "softmax_aux", args->outputs.softmax_aux);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.causal != false)
    status = ejk_params_set_bool(params, "causal", args->params.causal);
  if (status == EJK_OK && args->params.causal_align != NULL)
    status = ejk_params_set_str(params, "causal_align", args->params.causal_align);
  if (status == EJK_OK && args->params.sliding_window != NULL)
    status = ejk_params_set_i64s(params, "sliding_window", args->params.sliding_window, args->params.sliding_window_count);
  if (status == EJK_OK && args->params.attention_sink_size != 0)
    status = ejk_params_set_i64(params, "attention_sink_size", args->params.attention_sink_size);
  if (status == EJK_OK && args->params.logits_soft_cap != NULL)
    status = ejk_params_set_f64(params, "logits_soft_cap", *args->params.logits_soft_cap);
  if (status == EJK_OK && args->params.dropout_prob != 0.0)
    status = ejk_params_set_f64(params, "dropout_prob", args->params.dropout_prob);
  if (status == EJK_OK && args->params.deterministic != false)
    status = ejk_params_set_bool(params, "deterministic", args->params.deterministic);
  if (status == EJK_OK && args->params.out_dtype != NULL)
    status = ejk_params_set_str(params, "out_dtype", args->params.out_dtype);
  if (status == EJK_OK && args->params.normalize_output != true)
    status = ejk_params_set_bool(params, "normalize_output", args->params.normalize_output);
  if (status == EJK_OK && args->params.max_seqlen_q != NULL)
    status = ejk_params_set_i64(params, "max_seqlen_q", *args->params.max_seqlen_q);
  if (status == EJK_OK && args->params.max_seqlen_k != NULL)
    status = ejk_params_set_i64(params, "max_seqlen_k", *args->params.max_seqlen_k);
  if (status == EJK_OK)
    status = ejk_execute("flash_attention_backward", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- attention ---- */

/* Softmax attention that returns the weights as well: grouped heads, masks, windows, sinks, soft cap, dropout.
 * Vaswani et al., Attention Is All You Need (arXiv:1706.03762), section 3.2. Gradient: attention_backward. */
typedef struct ejk_attention_args {
  struct {
    /* required; queries: float[batch, q_len, num_q_heads, head_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): @query[batch, kv_len,
     * num_kv_heads, head_dim] */
    const DLTensor* key;
    /* required; values; value_dim may differ from head_dim: @query[batch, kv_len, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* may be NULL; added to the scaled logits; -inf excludes a key: float?[batch/1, num_q_heads/1, q_len/1,
     * kv_len] */
    const DLTensor* bias;
    /* may be NULL; true: the key is visible: bool?[batch/1, num_q_heads/1, q_len/1, kv_len] */
    const DLTensor* attention_mask;
    /* may be NULL; equal ids attend; a negative id is padding: int32?[batch, q_len] */
    const DLTensor* q_segment_ids;
    /* may be NULL; q_segment_ids when the lengths are equal: int32?[batch, kv_len] */
    const DLTensor* kv_segment_ids;
    /* may be NULL; sinks: extra logits in the denominator, neither scaled nor capped; rank 1 is shared by all
     * heads: float?[num_q_heads, num_sinks] | float?[num_sinks] */
    const DLTensor* softmax_aux;
    /* may be NULL; (seed, offset) of the dropout mask; (0, 0) when absent: uint32?[2] */
    const DLTensor* dropout_seed;
    /* may be NULL; keys in use, the first ones of each batch entry: int32?[batch] */
    const DLTensor* seqused_k;
  } inputs;
  struct {
    /* attention; 0 for a query that sees no key: result@query[batch, q_len, num_q_heads, value_dim] */
    const DLTensor* out;
    /* what multiplies the values, after dropout; 0 for keys that are not visible. Without dropout a row sums to
     * 1 minus the sinks' share: @query[batch, num_q_heads, q_len, kv_len] */
    const DLTensor* weights;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of query @ key^T; absent: 1/sqrt(head_dim); default NULL: none */
    const double* softmax_scale;
    /* hide keys after the query's own position; default false */
    bool causal;
    /* where the diagonal lies when the lengths in use differ; default "bottom_right"; one of "bottom_right",
     * "top_left" */
    const char* causal_align;
    /* (left, right) tokens around the query's position, inclusive; -1 unbounded; one integer w is (w, 0) when
     * causal, else (w, w); default NULL: none */
    const int64_t* sliding_window;
    size_t sliding_window_count;
    /* keys before this position are exempt from the window; default 0 */
    int64_t attention_sink_size;
    /* c: logits become c * tanh(logits / c); default NULL: none */
    const double* logits_soft_cap;
    /* probability of dropping a normalised probability; default 0.0 */
    double dropout_prob;
    /* bit-equal results run to run; default false */
    bool deterministic;
    /* dtype of out; absent: the query's; default NULL: none */
    const char* out_dtype;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_attention_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_attention_init(ejk_attention_args* args) {
  memset(args, 0, sizeof *args);
  args->params.causal = false;
  args->params.causal_align = "bottom_right";
  args->params.attention_sink_size = 0;
  args->params.dropout_prob = 0.0;
  args->params.deterministic = false;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_attention(const ejk_attention_args* args) {
  ejk_tensor inputs[10], outputs[2];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("attention", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key", args->inputs.key);
  ejk_ops_add(inputs, &num_inputs, "value", args->inputs.value);
  ejk_ops_add(inputs, &num_inputs, "bias", args->inputs.bias);
  ejk_ops_add(inputs, &num_inputs, "attention_mask", args->inputs.attention_mask);
  ejk_ops_add(inputs, &num_inputs, "q_segment_ids", args->inputs.q_segment_ids);
  ejk_ops_add(inputs, &num_inputs, "kv_segment_ids", args->inputs.kv_segment_ids);
  ejk_ops_add(inputs, &num_inputs, "softmax_aux", args->inputs.softmax_aux);
  ejk_ops_add(inputs, &num_inputs, "dropout_seed", args->inputs.dropout_seed);
  ejk_ops_add(inputs, &num_inputs, "seqused_k", args->inputs.seqused_k);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  ejk_ops_add(outputs, &num_outputs, "weights", args->outputs.weights);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.causal != false)
    status = ejk_params_set_bool(params, "causal", args->params.causal);
  if (status == EJK_OK && args->params.causal_align != NULL)
    status = ejk_params_set_str(params, "causal_align", args->params.causal_align);
  if (status == EJK_OK && args->params.sliding_window != NULL)
    status = ejk_params_set_i64s(params, "sliding_window", args->params.sliding_window, args->params.sliding_window_count);
  if (status == EJK_OK && args->params.attention_sink_size != 0)
    status = ejk_params_set_i64(params, "attention_sink_size", args->params.attention_sink_size);
  if (status == EJK_OK && args->params.logits_soft_cap != NULL)
    status = ejk_params_set_f64(params, "logits_soft_cap", *args->params.logits_soft_cap);
  if (status == EJK_OK && args->params.dropout_prob != 0.0)
    status = ejk_params_set_f64(params, "dropout_prob", args->params.dropout_prob);
  if (status == EJK_OK && args->params.deterministic != false)
    status = ejk_params_set_bool(params, "deterministic", args->params.deterministic);
  if (status == EJK_OK && args->params.out_dtype != NULL)
    status = ejk_params_set_str(params, "out_dtype", args->params.out_dtype);
  if (status == EJK_OK)
    status = ejk_execute("attention", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- attention_backward ---- */

/* Gradient of attention for query, key, value, bias and sinks. Vaswani et al., Attention Is All You Need
 * (arXiv:1706.03762), section 3.2. */
typedef struct ejk_attention_backward_args {
  struct {
    /* required; queries: float[batch, q_len, num_q_heads, head_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): @query[batch, kv_len,
     * num_kv_heads, head_dim] */
    const DLTensor* key;
    /* required; values; value_dim may differ from head_dim: @query[batch, kv_len, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* may be NULL; added to the scaled logits; -inf excludes a key: float?[batch/1, num_q_heads/1, q_len/1,
     * kv_len] */
    const DLTensor* bias;
    /* may be NULL; true: the key is visible: bool?[batch/1, num_q_heads/1, q_len/1, kv_len] */
    const DLTensor* attention_mask;
    /* may be NULL; equal ids attend; a negative id is padding: int32?[batch, q_len] */
    const DLTensor* q_segment_ids;
    /* may be NULL; q_segment_ids when the lengths are equal: int32?[batch, kv_len] */
    const DLTensor* kv_segment_ids;
    /* may be NULL; sinks: extra logits in the denominator, neither scaled nor capped; rank 1 is shared by all
     * heads: float?[num_q_heads, num_sinks] | float?[num_sinks] */
    const DLTensor* softmax_aux;
    /* may be NULL; (seed, offset) of the dropout mask; (0, 0) when absent: uint32?[2] */
    const DLTensor* dropout_seed;
    /* may be NULL; keys in use, the first ones of each batch entry: int32?[batch] */
    const DLTensor* seqused_k;
    /* may be NULL; cotangent of out; absent: zero: result@query?[batch, q_len, num_q_heads, value_dim] */
    const DLTensor* d_out;
    /* may be NULL; cotangent of the weights; absent: zero. Not read where a key is not visible: @query?[batch,
     * num_q_heads, q_len, kv_len] */
    const DLTensor* d_weights;
  } inputs;
  struct {
    /* gradient of query: @query[batch, q_len, num_q_heads, head_dim] */
    const DLTensor* query;
    /* gradient of key, summed over its query heads: @key[batch, kv_len, num_kv_heads, head_dim] */
    const DLTensor* key;
    /* gradient of value, summed over its query heads: @value[batch, kv_len, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* gradient of bias, summed over its broadcast axes: @bias?[batch/1, num_q_heads/1, q_len/1, kv_len] */
    const DLTensor* bias;
    /* gradient of the sinks: @softmax_aux?[num_q_heads, num_sinks] | @softmax_aux?[num_sinks] */
    const DLTensor* softmax_aux;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of query @ key^T; absent: 1/sqrt(head_dim); default NULL: none */
    const double* softmax_scale;
    /* hide keys after the query's own position; default false */
    bool causal;
    /* where the diagonal lies when the lengths in use differ; default "bottom_right"; one of "bottom_right",
     * "top_left" */
    const char* causal_align;
    /* (left, right) tokens around the query's position, inclusive; -1 unbounded; one integer w is (w, 0) when
     * causal, else (w, w); default NULL: none */
    const int64_t* sliding_window;
    size_t sliding_window_count;
    /* keys before this position are exempt from the window; default 0 */
    int64_t attention_sink_size;
    /* c: logits become c * tanh(logits / c); default NULL: none */
    const double* logits_soft_cap;
    /* probability of dropping a normalised probability; default 0.0 */
    double dropout_prob;
    /* bit-equal results run to run; default false */
    bool deterministic;
    /* dtype of out; absent: the query's; default NULL: none */
    const char* out_dtype;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_attention_backward_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_attention_backward_init(ejk_attention_backward_args* args) {
  memset(args, 0, sizeof *args);
  args->params.causal = false;
  args->params.causal_align = "bottom_right";
  args->params.attention_sink_size = 0;
  args->params.dropout_prob = 0.0;
  args->params.deterministic = false;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_attention_backward(const ejk_attention_backward_args* args) {
  ejk_tensor inputs[12], outputs[5];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("attention_backward", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key", args->inputs.key);
  ejk_ops_add(inputs, &num_inputs, "value", args->inputs.value);
  ejk_ops_add(inputs, &num_inputs, "bias", args->inputs.bias);
  ejk_ops_add(inputs, &num_inputs, "attention_mask", args->inputs.attention_mask);
  ejk_ops_add(inputs, &num_inputs, "q_segment_ids", args->inputs.q_segment_ids);
  ejk_ops_add(inputs, &num_inputs, "kv_segment_ids", args->inputs.kv_segment_ids);
  ejk_ops_add(inputs, &num_inputs, "softmax_aux", args->inputs.softmax_aux);
  ejk_ops_add(inputs, &num_inputs, "dropout_seed", args->inputs.dropout_seed);
  ejk_ops_add(inputs, &num_inputs, "seqused_k", args->inputs.seqused_k);
  ejk_ops_add(inputs, &num_inputs, "d_out", args->inputs.d_out);
  ejk_ops_add(inputs, &num_inputs, "d_weights", args->inputs.d_weights);
  ejk_ops_add(outputs, &num_outputs, "query", args->outputs.query);
  ejk_ops_add(outputs, &num_outputs, "key", args->outputs.key);
  ejk_ops_add(outputs, &num_outputs, "value", args->outputs.value);
  ejk_ops_add(outputs, &num_outputs, "bias", args->outputs.bias);
  ejk_ops_add(outputs, &num_outputs, "softmax_aux", args->outputs.softmax_aux);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.causal != false)
    status = ejk_params_set_bool(params, "causal", args->params.causal);
  if (status == EJK_OK && args->params.causal_align != NULL)
    status = ejk_params_set_str(params, "causal_align", args->params.causal_align);
  if (status == EJK_OK && args->params.sliding_window != NULL)
    status = ejk_params_set_i64s(params, "sliding_window", args->params.sliding_window, args->params.sliding_window_count);
  if (status == EJK_OK && args->params.attention_sink_size != 0)
    status = ejk_params_set_i64(params, "attention_sink_size", args->params.attention_sink_size);
  if (status == EJK_OK && args->params.logits_soft_cap != NULL)
    status = ejk_params_set_f64(params, "logits_soft_cap", *args->params.logits_soft_cap);
  if (status == EJK_OK && args->params.dropout_prob != 0.0)
    status = ejk_params_set_f64(params, "dropout_prob", args->params.dropout_prob);
  if (status == EJK_OK && args->params.deterministic != false)
    status = ejk_params_set_bool(params, "deterministic", args->params.deterministic);
  if (status == EJK_OK && args->params.out_dtype != NULL)
    status = ejk_params_set_str(params, "out_dtype", args->params.out_dtype);
  if (status == EJK_OK)
    status = ejk_execute("attention_backward", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- scaled_dot_product_attention ---- */

/* flash_attention behind the usual signature: lengths per batch entry, causal from the top left. Vaswani et al.,
 * Attention Is All You Need (arXiv:1706.03762), section 3.2. Gradient: scaled_dot_product_attention_backward. */
typedef struct ejk_scaled_dot_product_attention_args {
  struct {
    /* required; queries: float[batch, q_len, num_q_heads, head_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): @query[batch, kv_len,
     * num_kv_heads, head_dim] */
    const DLTensor* key;
    /* required; values; value_dim may differ from head_dim: @query[batch, kv_len, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* may be NULL; added to the scaled logits; -inf excludes a key: float?[batch/1, num_q_heads/1, q_len/1,
     * kv_len] */
    const DLTensor* bias;
    /* may be NULL; true: the key is visible: bool?[batch/1, num_q_heads/1, q_len/1, kv_len] */
    const DLTensor* attention_mask;
    /* may be NULL; queries in use, the first ones of each batch entry; the others give 0: int32?[batch] */
    const DLTensor* query_seq_lengths;
    /* may be NULL; keys in use, the first ones of each batch entry: int32?[batch] */
    const DLTensor* key_value_seq_lengths;
  } inputs;
  struct {
    /* attention; 0 for a query that sees no key or is not in use: @query[batch, q_len, num_q_heads, value_dim] */
    const DLTensor* out;
    /* natural log of the softmax denominator; -inf where out is 0 for want of keys: stats@query[batch,
     * num_q_heads, q_len] */
    const DLTensor* lse;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of query @ key^T; absent: 1/sqrt(head_dim); default NULL: none */
    const double* softmax_scale;
    /* hide keys after the query's own position; default false */
    bool causal;
    /* where the diagonal lies when the lengths in use differ; default "top_left"; one of "bottom_right",
     * "top_left" */
    const char* causal_align;
    /* (left, right) tokens around the query's position, inclusive; -1 unbounded; one integer w is (w, 0) when
     * causal, else (w, w); default NULL: none */
    const int64_t* sliding_window;
    size_t sliding_window_count;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_scaled_dot_product_attention_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_scaled_dot_product_attention_init(ejk_scaled_dot_product_attention_args* args) {
  memset(args, 0, sizeof *args);
  args->params.causal = false;
  args->params.causal_align = "top_left";
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_scaled_dot_product_attention(const ejk_scaled_dot_product_attention_args* args) {
  ejk_tensor inputs[7], outputs[2];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("scaled_dot_product_attention", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key", args->inputs.key);
  ejk_ops_add(inputs, &num_inputs, "value", args->inputs.value);
  ejk_ops_add(inputs, &num_inputs, "bias", args->inputs.bias);
  ejk_ops_add(inputs, &num_inputs, "attention_mask", args->inputs.attention_mask);
  ejk_ops_add(inputs, &num_inputs, "query_seq_lengths", args->inputs.query_seq_lengths);
  ejk_ops_add(inputs, &num_inputs, "key_value_seq_lengths", args->inputs.key_value_seq_lengths);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  ejk_ops_add(outputs, &num_outputs, "lse", args->outputs.lse);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.causal != false)
    status = ejk_params_set_bool(params, "causal", args->params.causal);
  if (status == EJK_OK && args->params.causal_align != NULL)
    status = ejk_params_set_str(params, "causal_align", args->params.causal_align);
  if (status == EJK_OK && args->params.sliding_window != NULL)
    status = ejk_params_set_i64s(params, "sliding_window", args->params.sliding_window, args->params.sliding_window_count);
  if (status == EJK_OK)
    status = ejk_execute("scaled_dot_product_attention", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- scaled_dot_product_attention_backward ---- */

/* Gradient of scaled_dot_product_attention for query, key, value and bias. Dao et al., FlashAttention-2
 * (arXiv:2307.08691), algorithm 2. */
typedef struct ejk_scaled_dot_product_attention_backward_args {
  struct {
    /* required; queries: float[batch, q_len, num_q_heads, head_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): @query[batch, kv_len,
     * num_kv_heads, head_dim] */
    const DLTensor* key;
    /* required; values; value_dim may differ from head_dim: @query[batch, kv_len, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* may be NULL; added to the scaled logits; -inf excludes a key: float?[batch/1, num_q_heads/1, q_len/1,
     * kv_len] */
    const DLTensor* bias;
    /* may be NULL; true: the key is visible: bool?[batch/1, num_q_heads/1, q_len/1, kv_len] */
    const DLTensor* attention_mask;
    /* may be NULL; queries in use, the first ones of each batch entry; the others give 0: int32?[batch] */
    const DLTensor* query_seq_lengths;
    /* may be NULL; keys in use, the first ones of each batch entry: int32?[batch] */
    const DLTensor* key_value_seq_lengths;
    /* required; the forward's out: @query[batch, q_len, num_q_heads, value_dim] */
    const DLTensor* out;
    /* required; the forward's lse: stats@query[batch, num_q_heads, q_len] */
    const DLTensor* lse;
    /* required; cotangent of out: @query[batch, q_len, num_q_heads, value_dim] */
    const DLTensor* d_out;
    /* may be NULL; cotangent of lse; absent: zero: stats@query?[batch, num_q_heads, q_len] */
    const DLTensor* d_lse;
  } inputs;
  struct {
    /* gradient of query: @query[batch, q_len, num_q_heads, head_dim] */
    const DLTensor* query;
    /* gradient of key, summed over its query heads: @key[batch, kv_len, num_kv_heads, head_dim] */
    const DLTensor* key;
    /* gradient of value, summed over its query heads: @value[batch, kv_len, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* gradient of bias, summed over its broadcast axes: @bias?[batch/1, num_q_heads/1, q_len/1, kv_len] */
    const DLTensor* bias;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of query @ key^T; absent: 1/sqrt(head_dim); default NULL: none */
    const double* softmax_scale;
    /* hide keys after the query's own position; default false */
    bool causal;
    /* where the diagonal lies when the lengths in use differ; default "top_left"; one of "bottom_right",
     * "top_left" */
    const char* causal_align;
    /* (left, right) tokens around the query's position, inclusive; -1 unbounded; one integer w is (w, 0) when
     * causal, else (w, w); default NULL: none */
    const int64_t* sliding_window;
    size_t sliding_window_count;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_scaled_dot_product_attention_backward_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_scaled_dot_product_attention_backward_init(ejk_scaled_dot_product_attention_backward_args* args) {
  memset(args, 0, sizeof *args);
  args->params.causal = false;
  args->params.causal_align = "top_left";
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_scaled_dot_product_attention_backward(const ejk_scaled_dot_product_attention_backward_args* args) {
  ejk_tensor inputs[11], outputs[4];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("scaled_dot_product_attention_backward", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key", args->inputs.key);
  ejk_ops_add(inputs, &num_inputs, "value", args->inputs.value);
  ejk_ops_add(inputs, &num_inputs, "bias", args->inputs.bias);
  ejk_ops_add(inputs, &num_inputs, "attention_mask", args->inputs.attention_mask);
  ejk_ops_add(inputs, &num_inputs, "query_seq_lengths", args->inputs.query_seq_lengths);
  ejk_ops_add(inputs, &num_inputs, "key_value_seq_lengths", args->inputs.key_value_seq_lengths);
  ejk_ops_add(inputs, &num_inputs, "out", args->inputs.out);
  ejk_ops_add(inputs, &num_inputs, "lse", args->inputs.lse);
  ejk_ops_add(inputs, &num_inputs, "d_out", args->inputs.d_out);
  ejk_ops_add(inputs, &num_inputs, "d_lse", args->inputs.d_lse);
  ejk_ops_add(outputs, &num_outputs, "query", args->outputs.query);
  ejk_ops_add(outputs, &num_outputs, "key", args->outputs.key);
  ejk_ops_add(outputs, &num_outputs, "value", args->outputs.value);
  ejk_ops_add(outputs, &num_outputs, "bias", args->outputs.bias);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.causal != false)
    status = ejk_params_set_bool(params, "causal", args->params.causal);
  if (status == EJK_OK && args->params.causal_align != NULL)
    status = ejk_params_set_str(params, "causal_align", args->params.causal_align);
  if (status == EJK_OK && args->params.sliding_window != NULL)
    status = ejk_params_set_i64s(params, "sliding_window", args->params.sliding_window, args->params.sliding_window_count);
  if (status == EJK_OK)
    status = ejk_execute("scaled_dot_product_attention_backward", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- page_attention ---- */

/* Decode attention over a paged cache: one query per sequence, windows, sinks, soft cap, 8-bit and int4 caches.
 * Kwon et al., PagedAttention (arXiv:2309.06180), section 4; split keys: Flash-Decoding (2023). */
typedef struct ejk_page_attention_args {
  struct {
    /* required; the newest token of each sequence: float[num_seqs, num_q_heads, head_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): stored[num_pages,
     * page_size, num_kv_heads, head_dim] ; stored[num_pages, num_kv_heads, page_size, head_dim] */
    const DLTensor* key_cache;
    /* required; values; value_dim may differ from head_dim: @key_cache[num_pages, page_size, num_kv_heads,
     * value_dim] ; @key_cache[num_pages, num_kv_heads, page_size, value_dim] */
    const DLTensor* value_cache;
    /* required; tokens of each sequence, the query's own included: int32[num_seqs] */
    const DLTensor* context_lens;
    /* required; pages of each sequence, in order; entries beyond its length are not read: int32[num_seqs,
     * max_num_pages] */
    const DLTensor* block_tables;
    /* may be NULL; sinks: extra logits in the denominator, neither scaled nor capped; rank 1 is shared by all
     * heads: float?[num_q_heads, num_sinks] | float?[num_sinks] */
    const DLTensor* softmax_aux;
    /* may be NULL; what stored keys are multiplied by: one, per head, or per group of 16, 32, 64, 128 or
     * head_dim elements: float32?[] | float32?[num_kv_heads] | float32?[num_pages, page_size, num_kv_heads,
     * num_k_groups] */
    const DLTensor* k_scale;
    /* may be NULL; of stored values: float32?[] | float32?[num_kv_heads] | float32?[num_pages, page_size,
     * num_kv_heads, num_v_groups] */
    const DLTensor* v_scale;
  } inputs;
  struct {
    /* attention; 0 for an empty sequence: @query[num_seqs, num_q_heads, value_dim] */
    const DLTensor* out;
    /* natural log of the softmax denominator, sinks included; -inf without key or sink: stats@query[num_seqs,
     * num_q_heads] */
    const DLTensor* lse;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of query @ key^T; absent: 1/sqrt(head_dim); default NULL: none */
    const double* softmax_scale;
    /* (left, right) tokens around the query's position, inclusive; -1 unbounded; one integer w is (w, 0); later
     * tokens are never seen; default NULL: none */
    const int64_t* sliding_window;
    size_t sliding_window_count;
    /* keys before this position are exempt from the window; default 0 */
    int64_t attention_sink_size;
    /* c: logits become c * tanh(logits / c); default NULL: none */
    const double* logits_soft_cap;
    /* a row's bits do not depend on the other rows of the call; default false */
    bool batch_invariant;
    /* page_major: [num_pages, page_size, num_kv_heads, head_dim]; head_major: [num_pages, num_kv_heads,
     * page_size, head_dim]; default "page_major"; one of "page_major", "head_major" */
    const char* cache_layout;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_page_attention_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_page_attention_init(ejk_page_attention_args* args) {
  memset(args, 0, sizeof *args);
  args->params.attention_sink_size = 0;
  args->params.batch_invariant = false;
  args->params.cache_layout = "page_major";
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_page_attention(const ejk_page_attention_args* args) {
  ejk_tensor inputs[8], outputs[2];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("page_attention", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key_cache", args->inputs.key_cache);
  ejk_ops_add(inputs, &num_inputs, "value_cache", args->inputs.value_cache);
  ejk_ops_add(inputs, &num_inputs, "context_lens", args->inputs.context_lens);
  ejk_ops_add(inputs, &num_inputs, "block_tables", args->inputs.block_tables);
  ejk_ops_add(inputs, &num_inputs, "softmax_aux", args->inputs.softmax_aux);
  ejk_ops_add(inputs, &num_inputs, "k_scale", args->inputs.k_scale);
  ejk_ops_add(inputs, &num_inputs, "v_scale", args->inputs.v_scale);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  ejk_ops_add(outputs, &num_outputs, "lse", args->outputs.lse);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.sliding_window != NULL)
    status = ejk_params_set_i64s(params, "sliding_window", args->params.sliding_window, args->params.sliding_window_count);
  if (status == EJK_OK && args->params.attention_sink_size != 0)
    status = ejk_params_set_i64(params, "attention_sink_size", args->params.attention_sink_size);
  if (status == EJK_OK && args->params.logits_soft_cap != NULL)
    status = ejk_params_set_f64(params, "logits_soft_cap", *args->params.logits_soft_cap);
  if (status == EJK_OK && args->params.batch_invariant != false)
    status = ejk_params_set_bool(params, "batch_invariant", args->params.batch_invariant);
  if (status == EJK_OK && args->params.cache_layout != NULL)
    status = ejk_params_set_str(params, "cache_layout", args->params.cache_layout);
  if (status == EJK_OK)
    status = ejk_execute("page_attention", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- page_append ---- */

/* Stores new keys and values in a paged cache, in place. Kwon et al., PagedAttention (arXiv:2309.06180), section
 * 4.3. */
typedef struct ejk_page_append_args {
  struct {
    /* required; keys of the new tokens of all sequences: float[total_tokens, num_kv_heads, head_dim] */
    const DLTensor* keys;
    /* required; their values: @keys[total_tokens, num_kv_heads, value_dim] */
    const DLTensor* values;
    /* required; written in place: number[num_pages, page_size, num_kv_heads, head_dim] ; number[num_pages,
     * num_kv_heads, page_size, head_dim] */
    const DLTensor* key_cache;
    /* required; written in place: @key_cache[num_pages, page_size, num_kv_heads, value_dim] ;
     * @key_cache[num_pages, num_kv_heads, page_size, value_dim] */
    const DLTensor* value_cache;
    /* required; tokens of each sequence, the new ones included: int32[num_seqs] */
    const DLTensor* context_lens;
    /* required; pages of each sequence, in order: int32[num_seqs, max_num_pages] */
    const DLTensor* block_tables;
    /* required; sequence s owns rows [s], [s+1): int32[num_seqs+1] */
    const DLTensor* query_start_loc;
    /* may be NULL; keys are stored as key / k_scale, rounded to nearest even and saturated: float32?[] |
     * float32?[num_kv_heads] */
    const DLTensor* k_scale;
    /* may be NULL; of values: float32?[] | float32?[num_kv_heads] */
    const DLTensor* v_scale;
  } inputs;
  struct {
    /* the cache itself: @key_cache&[num_pages, page_size, num_kv_heads, head_dim] ; @key_cache&[num_pages,
     * num_kv_heads, page_size, head_dim]; the input itself, updated in place, or NULL */
    const DLTensor* key_cache;
    /* the cache itself: @value_cache&[num_pages, page_size, num_kv_heads, value_dim] ; @value_cache&[num_pages,
     * num_kv_heads, page_size, value_dim]; the input itself, updated in place, or NULL */
    const DLTensor* value_cache;
  } outputs; /* NULL: not wanted */
  struct {
    /* page_major: [num_pages, page_size, num_kv_heads, head_dim]; head_major: [num_pages, num_kv_heads,
     * page_size, head_dim]; default "page_major"; one of "page_major", "head_major" */
    const char* cache_layout;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_page_append_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_page_append_init(ejk_page_append_args* args) {
  memset(args, 0, sizeof *args);
  args->params.cache_layout = "page_major";
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_page_append(const ejk_page_append_args* args) {
  ejk_tensor inputs[9], outputs[2];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("page_append", &params);
  ejk_ops_add(inputs, &num_inputs, "keys", args->inputs.keys);
  ejk_ops_add(inputs, &num_inputs, "values", args->inputs.values);
  ejk_ops_add(inputs, &num_inputs, "key_cache", args->inputs.key_cache);
  ejk_ops_add(inputs, &num_inputs, "value_cache", args->inputs.value_cache);
  ejk_ops_add(inputs, &num_inputs, "context_lens", args->inputs.context_lens);
  ejk_ops_add(inputs, &num_inputs, "block_tables", args->inputs.block_tables);
  ejk_ops_add(inputs, &num_inputs, "query_start_loc", args->inputs.query_start_loc);
  ejk_ops_add(inputs, &num_inputs, "k_scale", args->inputs.k_scale);
  ejk_ops_add(inputs, &num_inputs, "v_scale", args->inputs.v_scale);
  ejk_ops_add(outputs, &num_outputs, "key_cache", args->outputs.key_cache);
  ejk_ops_add(outputs, &num_outputs, "value_cache", args->outputs.value_cache);
  if (status == EJK_OK && args->params.cache_layout != NULL)
    status = ejk_params_set_str(params, "cache_layout", args->params.cache_layout);
  if (status == EJK_OK)
    status = ejk_execute("page_append", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- ragged_decode_attention ---- */

/* Decode attention over a contiguous cache, from a start to an end of its own in each batch entry. Vaswani et
 * al. (arXiv:1706.03762), section 3.2, one row of it; split keys: Flash-Decoding (2023). */
typedef struct ejk_ragged_decode_attention_args {
  struct {
    /* required; the token at sequence_end - 1: float[batch, num_q_heads, head_dim] ; float[batch, 1,
     * num_q_heads, head_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): stored[batch, kv_len,
     * num_kv_heads, head_dim] */
    const DLTensor* key;
    /* required; values; value_dim may differ from head_dim: @key[batch, kv_len, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* required; first token in use: int32[batch] */
    const DLTensor* sequence_start;
    /* required; past the last token in use; at or before the start: none is: int32[batch] */
    const DLTensor* sequence_end;
    /* may be NULL; sinks: extra logits in the denominator, neither scaled nor capped; rank 1 is shared by all
     * heads: float?[num_q_heads, num_sinks] | float?[num_sinks] */
    const DLTensor* softmax_aux;
    /* may be NULL; what stored keys are multiplied by: one, per head, or per group of 16, 32, 64, 128 or
     * head_dim elements: float32?[] | float32?[num_kv_heads] | float32?[batch, kv_len, num_kv_heads,
     * num_k_groups] */
    const DLTensor* k_scale;
    /* may be NULL; of stored values: float32?[] | float32?[num_kv_heads] | float32?[batch, kv_len, num_kv_heads,
     * num_v_groups] */
    const DLTensor* v_scale;
  } inputs;
  struct {
    /* attention; 0 where no token is in use: @query[batch, num_q_heads, value_dim] ; @query[batch, 1,
     * num_q_heads, value_dim] */
    const DLTensor* out;
    /* natural log of the softmax denominator, sinks included; -inf without key or sink: stats@query[batch,
     * num_q_heads] */
    const DLTensor* lse;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of query @ key^T; absent: 1/sqrt(head_dim); default NULL: none */
    const double* softmax_scale;
    /* (left, right) tokens around the query's position, inclusive; -1 unbounded; one integer w is (w, 0); later
     * tokens are never seen; default NULL: none */
    const int64_t* sliding_window;
    size_t sliding_window_count;
    /* keys before this position are exempt from the window; default 0 */
    int64_t attention_sink_size;
    /* c: logits become c * tanh(logits / c); default NULL: none */
    const double* logits_soft_cap;
    /* a row's bits do not depend on the other rows of the call; default false */
    bool batch_invariant;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_ragged_decode_attention_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_ragged_decode_attention_init(ejk_ragged_decode_attention_args* args) {
  memset(args, 0, sizeof *args);
  args->params.attention_sink_size = 0;
  args->params.batch_invariant = false;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_ragged_decode_attention(const ejk_ragged_decode_attention_args* args) {
  ejk_tensor inputs[8], outputs[2];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("ragged_decode_attention", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key", args->inputs.key);
  ejk_ops_add(inputs, &num_inputs, "value", args->inputs.value);
  ejk_ops_add(inputs, &num_inputs, "sequence_start", args->inputs.sequence_start);
  ejk_ops_add(inputs, &num_inputs, "sequence_end", args->inputs.sequence_end);
  ejk_ops_add(inputs, &num_inputs, "softmax_aux", args->inputs.softmax_aux);
  ejk_ops_add(inputs, &num_inputs, "k_scale", args->inputs.k_scale);
  ejk_ops_add(inputs, &num_inputs, "v_scale", args->inputs.v_scale);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  ejk_ops_add(outputs, &num_outputs, "lse", args->outputs.lse);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.sliding_window != NULL)
    status = ejk_params_set_i64s(params, "sliding_window", args->params.sliding_window, args->params.sliding_window_count);
  if (status == EJK_OK && args->params.attention_sink_size != 0)
    status = ejk_params_set_i64(params, "attention_sink_size", args->params.attention_sink_size);
  if (status == EJK_OK && args->params.logits_soft_cap != NULL)
    status = ejk_params_set_f64(params, "logits_soft_cap", *args->params.logits_soft_cap);
  if (status == EJK_OK && args->params.batch_invariant != false)
    status = ejk_params_set_bool(params, "batch_invariant", args->params.batch_invariant);
  if (status == EJK_OK)
    status = ejk_execute("ragged_decode_attention", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- ragged_page_attention ---- */

/* Attention of packed queries, prefill and decode mixed, over a paged cache of interleaved keys and values. Kwon
 * et al., PagedAttention (arXiv:2309.06180); Agrawal et al., Sarathi-Serve (arXiv:2403.02310), mixed batches. */
typedef struct ejk_ragged_page_attention_args {
  struct {
    /* required; the newest tokens of all sequences: float[total_tokens, num_q_heads, head_dim] */
    const DLTensor* queries;
    /* required; keys of kv head g at 2g, its values at 2g + 1; query head h reads kv head h div (num_q_heads /
     * num_kv_heads): stored[num_pages, page_size, 2*num_kv_heads, head_dim] */
    const DLTensor* kv_pages;
    /* required; tokens of each sequence, the new ones included: int32[max_num_seqs] */
    const DLTensor* context_lens;
    /* required; pages of each sequence, in order; entries beyond its length are not read: int32[max_num_seqs,
     * max_num_pages] */
    const DLTensor* block_tables;
    /* required; sequence s owns query rows [s], [s+1): int32[max_num_seqs+1] */
    const DLTensor* query_start_loc;
    /* required; sequences in use, the first ones: int32[1] */
    const DLTensor* num_seqs;
    /* may be NULL; sinks: extra logits in the denominator, neither scaled nor capped; rank 1 is shared by all
     * heads: float?[num_q_heads, num_sinks] | float?[num_sinks] */
    const DLTensor* softmax_aux;
    /* may be NULL; what stored keys are multiplied by: one, per head, or per group of 16, 32, 64, 128 or
     * head_dim elements: float32?[] | float32?[num_kv_heads] | float32?[num_pages, page_size, num_kv_heads,
     * num_k_groups] */
    const DLTensor* k_scale;
    /* may be NULL; of stored values: float32?[] | float32?[num_kv_heads] | float32?[num_pages, page_size,
     * num_kv_heads, num_v_groups] */
    const DLTensor* v_scale;
  } inputs;
  struct {
    /* attention; 0 for rows of no sequence and for rows that see nothing: @queries[total_tokens, num_q_heads,
     * head_dim] */
    const DLTensor* out;
    /* natural log of the softmax denominator, sinks included; -inf without key or sink:
     * stats@queries[num_q_heads, total_tokens] */
    const DLTensor* lse;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of query @ key^T; absent: 1/sqrt(head_dim); default NULL: none */
    const double* softmax_scale;
    /* (left, right) tokens around the query's position, inclusive; -1 unbounded; one integer w is (w, 0); later
     * tokens are never seen; default NULL: none */
    const int64_t* sliding_window;
    size_t sliding_window_count;
    /* keys before this position are exempt from the window; default 0 */
    int64_t attention_sink_size;
    /* c: logits become c * tanh(logits / c); default NULL: none */
    const double* logits_soft_cap;
    /* a row's bits do not depend on the other rows of the call; default false */
    bool batch_invariant;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_ragged_page_attention_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_ragged_page_attention_init(ejk_ragged_page_attention_args* args) {
  memset(args, 0, sizeof *args);
  args->params.attention_sink_size = 0;
  args->params.batch_invariant = false;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_ragged_page_attention(const ejk_ragged_page_attention_args* args) {
  ejk_tensor inputs[9], outputs[2];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("ragged_page_attention", &params);
  ejk_ops_add(inputs, &num_inputs, "queries", args->inputs.queries);
  ejk_ops_add(inputs, &num_inputs, "kv_pages", args->inputs.kv_pages);
  ejk_ops_add(inputs, &num_inputs, "context_lens", args->inputs.context_lens);
  ejk_ops_add(inputs, &num_inputs, "block_tables", args->inputs.block_tables);
  ejk_ops_add(inputs, &num_inputs, "query_start_loc", args->inputs.query_start_loc);
  ejk_ops_add(inputs, &num_inputs, "num_seqs", args->inputs.num_seqs);
  ejk_ops_add(inputs, &num_inputs, "softmax_aux", args->inputs.softmax_aux);
  ejk_ops_add(inputs, &num_inputs, "k_scale", args->inputs.k_scale);
  ejk_ops_add(inputs, &num_inputs, "v_scale", args->inputs.v_scale);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  ejk_ops_add(outputs, &num_outputs, "lse", args->outputs.lse);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.sliding_window != NULL)
    status = ejk_params_set_i64s(params, "sliding_window", args->params.sliding_window, args->params.sliding_window_count);
  if (status == EJK_OK && args->params.attention_sink_size != 0)
    status = ejk_params_set_i64(params, "attention_sink_size", args->params.attention_sink_size);
  if (status == EJK_OK && args->params.logits_soft_cap != NULL)
    status = ejk_params_set_f64(params, "logits_soft_cap", *args->params.logits_soft_cap);
  if (status == EJK_OK && args->params.batch_invariant != false)
    status = ejk_params_set_bool(params, "batch_invariant", args->params.batch_invariant);
  if (status == EJK_OK)
    status = ejk_execute("ragged_page_attention", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- ragged_page_attention_v3 ---- */

/* Stores new keys and values in a paged cache, then attends: prefill and decode mixed. Kwon et al.,
 * PagedAttention (arXiv:2309.06180); Agrawal et al., Sarathi-Serve (arXiv:2403.02310), mixed batches. */
typedef struct ejk_ragged_page_attention_v3_args {
  struct {
    /* required; the newest tokens of all sequences: float[total_tokens, num_q_heads, head_dim] */
    const DLTensor* queries;
    /* required; their keys; query head h reads kv head h div (num_q_heads / num_kv_heads):
     * @queries[total_tokens, num_kv_heads, head_dim] */
    const DLTensor* keys;
    /* required; their values: @queries[total_tokens, num_kv_heads, head_dim] */
    const DLTensor* values;
    /* required; written in place: keys of kv head g at 2g, its values at 2g + 1: number[num_pages, page_size,
     * 2*num_kv_heads, head_dim] */
    const DLTensor* kv_cache;
    /* required; tokens of each sequence, the new ones included: int32[max_num_seqs] */
    const DLTensor* context_lens;
    /* required; pages of each sequence, in order: table_num_pages / max_num_seqs of each, one sequence after the
     * other: int32[table_num_pages] */
    const DLTensor* block_tables;
    /* required; sequence s owns rows [s], [s+1): int32[max_num_seqs+1] */
    const DLTensor* query_start_loc;
    /* required; (decode_end, prefill_end, total): total sequences are in use, the first ones; results do not
     * depend on the other two: int32[3] */
    const DLTensor* distribution;
    /* may be NULL; sinks: extra logits in the denominator, neither scaled nor capped; rank 1 is shared by all
     * heads: float?[num_q_heads, num_sinks] | float?[num_sinks] */
    const DLTensor* softmax_aux;
    /* may be NULL; what the logits are multiplied by: float32?[] */
    const DLTensor* q_scale;
    /* may be NULL; keys are stored as key / k_scale, rounded to nearest even and saturated: float32?[] |
     * float32?[num_kv_heads] */
    const DLTensor* k_scale;
    /* may be NULL; of values: float32?[] | float32?[num_kv_heads] */
    const DLTensor* v_scale;
  } inputs;
  struct {
    /* attention; 0 for rows of no sequence and for rows that see nothing: @queries[total_tokens, num_q_heads,
     * head_dim] */
    const DLTensor* out;
    /* the cache itself: @kv_cache&[num_pages, page_size, 2*num_kv_heads, head_dim]; the input itself, updated in
     * place, or NULL */
    const DLTensor* kv_cache;
    /* natural log of the softmax denominator, sinks included; -inf without key or sink:
     * stats@queries[num_q_heads, total_tokens] */
    const DLTensor* lse;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of query @ key^T; absent: 1/sqrt(head_dim); default NULL: none */
    const double* softmax_scale;
    /* (left, right) tokens around the query's position, inclusive; -1 unbounded; one integer w is (w, 0); later
     * tokens are never seen; default NULL: none */
    const int64_t* sliding_window;
    size_t sliding_window_count;
    /* keys before this position are exempt from the window; default 0 */
    int64_t attention_sink_size;
    /* c: logits become c * tanh(logits / c); default NULL: none */
    const double* logits_soft_cap;
    /* a row's bits do not depend on the other rows of the call; default false */
    bool batch_invariant;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_ragged_page_attention_v3_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_ragged_page_attention_v3_init(ejk_ragged_page_attention_v3_args* args) {
  memset(args, 0, sizeof *args);
  args->params.attention_sink_size = 0;
  args->params.batch_invariant = false;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_ragged_page_attention_v3(const ejk_ragged_page_attention_v3_args* args) {
  ejk_tensor inputs[12], outputs[3];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("ragged_page_attention_v3", &params);
  ejk_ops_add(inputs, &num_inputs, "queries", args->inputs.queries);
  ejk_ops_add(inputs, &num_inputs, "keys", args->inputs.keys);
  ejk_ops_add(inputs, &num_inputs, "values", args->inputs.values);
  ejk_ops_add(inputs, &num_inputs, "kv_cache", args->inputs.kv_cache);
  ejk_ops_add(inputs, &num_inputs, "context_lens", args->inputs.context_lens);
  ejk_ops_add(inputs, &num_inputs, "block_tables", args->inputs.block_tables);
  ejk_ops_add(inputs, &num_inputs, "query_start_loc", args->inputs.query_start_loc);
  ejk_ops_add(inputs, &num_inputs, "distribution", args->inputs.distribution);
  ejk_ops_add(inputs, &num_inputs, "softmax_aux", args->inputs.softmax_aux);
  ejk_ops_add(inputs, &num_inputs, "q_scale", args->inputs.q_scale);
  ejk_ops_add(inputs, &num_inputs, "k_scale", args->inputs.k_scale);
  ejk_ops_add(inputs, &num_inputs, "v_scale", args->inputs.v_scale);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  ejk_ops_add(outputs, &num_outputs, "kv_cache", args->outputs.kv_cache);
  ejk_ops_add(outputs, &num_outputs, "lse", args->outputs.lse);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.sliding_window != NULL)
    status = ejk_params_set_i64s(params, "sliding_window", args->params.sliding_window, args->params.sliding_window_count);
  if (status == EJK_OK && args->params.attention_sink_size != 0)
    status = ejk_params_set_i64(params, "attention_sink_size", args->params.attention_sink_size);
  if (status == EJK_OK && args->params.logits_soft_cap != NULL)
    status = ejk_params_set_f64(params, "logits_soft_cap", *args->params.logits_soft_cap);
  if (status == EJK_OK && args->params.batch_invariant != false)
    status = ejk_params_set_bool(params, "batch_invariant", args->params.batch_invariant);
  if (status == EJK_OK)
    status = ejk_execute("ragged_page_attention_v3", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- mean_pooling ---- */

/* Mean over each sequence's rows, or over each chunk of them: masked, packed, per chunk. Reimers and Gurevych,
 * Sentence-BERT (arXiv:1908.10084), section 3. Gradient: mean_pooling_backward. */
typedef struct ejk_mean_pooling_args {
  struct {
    /* required; the rows; 4-d (packed: 3-d) with a chunk_size: float[batch, num_tokens, dim] ; float[num_tokens,
     * dim] ; float[batch, num_tokens, num_heads, dim] ; float[num_tokens, num_heads, dim] */
    const DLTensor* x;
    /* may be NULL; true: the row counts; what other rows hold reaches no result: bool?[batch, num_tokens] ; - ;
     * - ; - */
    const DLTensor* mask;
    /* may be NULL; packed: sequence s owns rows [s], [s+1); an end before its start is an empty sequence: - ;
     * int32[num_seqs+1] ; - ; int32[num_seqs+1] */
    const DLTensor* cu_seqlens;
  } inputs;
  struct {
    /* the means; 0 where there is nothing to average. A last chunk divides by its own count. Packed chunks stand
     * in order in ceil(num_tokens / chunk_size) + num_seqs rows; rows past the last are 0: @x[batch, dim] ;
     * @x[num_seqs, dim] ; @x[batch, total_chunks, num_heads, dim] ; @x[total_chunks, num_heads, dim] */
    const DLTensor* out;
    /* chunks of sequence s are rows [s], [s+1) of out: - ; - ; - ; int32[num_seqs+1] */
    const DLTensor* chunk_offsets;
  } outputs; /* NULL: not wanted */
  struct {
    /* rows per chunk, counted from the start of each sequence; absent: whole sequences; default NULL: none */
    const int64_t* chunk_size;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_mean_pooling_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_mean_pooling_init(ejk_mean_pooling_args* args) {
  memset(args, 0, sizeof *args);
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_mean_pooling(const ejk_mean_pooling_args* args) {
  ejk_tensor inputs[3], outputs[2];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("mean_pooling", &params);
  ejk_ops_add(inputs, &num_inputs, "x", args->inputs.x);
  ejk_ops_add(inputs, &num_inputs, "mask", args->inputs.mask);
  ejk_ops_add(inputs, &num_inputs, "cu_seqlens", args->inputs.cu_seqlens);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  ejk_ops_add(outputs, &num_outputs, "chunk_offsets", args->outputs.chunk_offsets);
  if (status == EJK_OK && args->params.chunk_size != NULL)
    status = ejk_params_set_i64(params, "chunk_size", *args->params.chunk_size);
  if (status == EJK_OK)
    status = ejk_execute("mean_pooling", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- mean_pooling_backward ---- */

/* Gradient of mean_pooling for x. Reimers and Gurevych, Sentence-BERT (arXiv:1908.10084), section 3. */
typedef struct ejk_mean_pooling_backward_args {
  struct {
    /* required; cotangent of out; its rows past the last chunk are not read: float[batch, dim] ; float[num_seqs,
     * dim] ; float[batch, total_chunks, num_heads, dim] ; float[total_chunks, num_heads, dim] */
    const DLTensor* d_out;
    /* may be NULL; the forward's mask: bool?[batch, num_tokens] ; - ; - ; - */
    const DLTensor* mask;
    /* may be NULL; the forward's cu_seqlens: - ; int32[num_seqs+1] ; - ; int32[num_seqs+1] */
    const DLTensor* cu_seqlens;
  } inputs;
  struct {
    /* gradient of x: @d_out[batch, num_tokens, dim] ; @d_out[num_tokens, dim] ; @d_out[batch, num_tokens,
     * num_heads, dim] ; @d_out[num_tokens, num_heads, dim] */
    const DLTensor* x;
  } outputs; /* NULL: not wanted */
  struct {
    /* the forward's chunk_size; default NULL: none */
    const int64_t* chunk_size;
    /* rows of the forward's x; absent: the mask's, which must be given then; default NULL: none */
    const int64_t* num_tokens;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_mean_pooling_backward_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_mean_pooling_backward_init(ejk_mean_pooling_backward_args* args) {
  memset(args, 0, sizeof *args);
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_mean_pooling_backward(const ejk_mean_pooling_backward_args* args) {
  ejk_tensor inputs[3], outputs[1];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("mean_pooling_backward", &params);
  ejk_ops_add(inputs, &num_inputs, "d_out", args->inputs.d_out);
  ejk_ops_add(inputs, &num_inputs, "mask", args->inputs.mask);
  ejk_ops_add(inputs, &num_inputs, "cu_seqlens", args->inputs.cu_seqlens);
  ejk_ops_add(outputs, &num_outputs, "x", args->outputs.x);
  if (status == EJK_OK && args->params.chunk_size != NULL)
    status = ejk_params_set_i64(params, "chunk_size", *args->params.chunk_size);
  if (status == EJK_OK && args->params.num_tokens != NULL)
    status = ejk_params_set_i64(params, "num_tokens", *args->params.num_tokens);
  if (status == EJK_OK)
    status = ejk_execute("mean_pooling_backward", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- recurrent_attention ---- */

/* Linear attention with a decaying state: scalar, per-head, key-wise and value-wise gates, initial and final
 * state, packing. Yang et al., Gated Linear Attention Transformers with Hardware-Efficient Training
 * (arXiv:2312.06635), sections 2 to 4. Gradient: recurrent_attention_backward. */
typedef struct ejk_recurrent_attention_args {
  struct {
    /* required; queries: float[batch, seq_len, num_q_heads, key_dim] ; float[num_tokens, num_q_heads, key_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): @query[batch, seq_len,
     * num_kv_heads, key_dim] ; @query[num_tokens, num_kv_heads, key_dim] */
    const DLTensor* key;
    /* required; values; value_dim may differ from key_dim: @query[batch, seq_len, num_kv_heads, value_dim] ;
     * @query[num_tokens, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* may be NULL; log decay of a token: one number for the whole state: float?[batch, seq_len, num_q_heads] ;
     * float?[num_tokens, num_q_heads] */
    const DLTensor* g;
    /* may be NULL; log decay of a head, the same for every token: float?[num_q_heads] */
    const DLTensor* g_gamma;
    /* may be NULL; log decay of a token for each row of the state: float?[batch, seq_len, num_q_heads, key_dim]
     * ; float?[num_tokens, num_q_heads, key_dim] */
    const DLTensor* gk;
    /* may be NULL; log decay of a token for each column of the state: float?[batch, seq_len, num_q_heads,
     * value_dim] ; float?[num_tokens, num_q_heads, value_dim] */
    const DLTensor* gv;
    /* may be NULL; the state before a sequence's first token; absent: 0. A bfloat16 one halves what a decoding
     * step moves: float?[batch, num_q_heads, key_dim, value_dim] ; float?[num_seqs, num_q_heads, key_dim,
     * value_dim] */
    const DLTensor* initial_state;
    /* may be NULL; packed: sequence s owns rows [s], [s+1); an end before its start is an empty sequence: - ;
     * int32[num_seqs+1] */
    const DLTensor* cu_seqlens;
  } inputs;
  struct {
    /* what each token reads, after its own update; 0 in rows of no sequence: @query[batch, seq_len, num_q_heads,
     * value_dim] ; @query[num_tokens, num_q_heads, value_dim] */
    const DLTensor* out;
    /* the state after a sequence's last token; an empty sequence's is its initial state: state@query[batch,
     * num_q_heads, key_dim, value_dim] ; state@query[num_seqs, num_q_heads, key_dim, value_dim] */
    const DLTensor* final_state;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of out; absent: 1/sqrt(key_dim); default NULL: none */
    const double* softmax_scale;
    /* from the last token to the first; default false */
    bool reverse;
    /* dtype of final_state; absent: float32 (float64 for float64 queries); default NULL: none */
    const char* state_dtype;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_recurrent_attention_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_recurrent_attention_init(ejk_recurrent_attention_args* args) {
  memset(args, 0, sizeof *args);
  args->params.reverse = false;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_recurrent_attention(const ejk_recurrent_attention_args* args) {
  ejk_tensor inputs[9], outputs[2];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("recurrent_attention", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key", args->inputs.key);
  ejk_ops_add(inputs, &num_inputs, "value", args->inputs.value);
  ejk_ops_add(inputs, &num_inputs, "g", args->inputs.g);
  ejk_ops_add(inputs, &num_inputs, "g_gamma", args->inputs.g_gamma);
  ejk_ops_add(inputs, &num_inputs, "gk", args->inputs.gk);
  ejk_ops_add(inputs, &num_inputs, "gv", args->inputs.gv);
  ejk_ops_add(inputs, &num_inputs, "initial_state", args->inputs.initial_state);
  ejk_ops_add(inputs, &num_inputs, "cu_seqlens", args->inputs.cu_seqlens);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  ejk_ops_add(outputs, &num_outputs, "final_state", args->outputs.final_state);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.reverse != false)
    status = ejk_params_set_bool(params, "reverse", args->params.reverse);
  if (status == EJK_OK && args->params.state_dtype != NULL)
    status = ejk_params_set_str(params, "state_dtype", args->params.state_dtype);
  if (status == EJK_OK)
    status = ejk_execute("recurrent_attention", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- recurrent_attention_backward ---- */

/* Gradient of recurrent_attention for query, key, value, every gate and the initial state. Yang et al., Gated
 * Linear Attention Transformers with Hardware-Efficient Training (arXiv:2312.06635), sections 2 to 4. */
typedef struct ejk_recurrent_attention_backward_args {
  struct {
    /* required; queries: float[batch, seq_len, num_q_heads, key_dim] ; float[num_tokens, num_q_heads, key_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): @query[batch, seq_len,
     * num_kv_heads, key_dim] ; @query[num_tokens, num_kv_heads, key_dim] */
    const DLTensor* key;
    /* required; values; value_dim may differ from key_dim: @query[batch, seq_len, num_kv_heads, value_dim] ;
     * @query[num_tokens, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* may be NULL; log decay of a token: one number for the whole state: float?[batch, seq_len, num_q_heads] ;
     * float?[num_tokens, num_q_heads] */
    const DLTensor* g;
    /* may be NULL; log decay of a head, the same for every token: float?[num_q_heads] */
    const DLTensor* g_gamma;
    /* may be NULL; log decay of a token for each row of the state: float?[batch, seq_len, num_q_heads, key_dim]
     * ; float?[num_tokens, num_q_heads, key_dim] */
    const DLTensor* gk;
    /* may be NULL; log decay of a token for each column of the state: float?[batch, seq_len, num_q_heads,
     * value_dim] ; float?[num_tokens, num_q_heads, value_dim] */
    const DLTensor* gv;
    /* may be NULL; the state before a sequence's first token; absent: 0. A bfloat16 one halves what a decoding
     * step moves: float?[batch, num_q_heads, key_dim, value_dim] ; float?[num_seqs, num_q_heads, key_dim,
     * value_dim] */
    const DLTensor* initial_state;
    /* may be NULL; packed: sequence s owns rows [s], [s+1); an end before its start is an empty sequence: - ;
     * int32[num_seqs+1] */
    const DLTensor* cu_seqlens;
    /* may be NULL; cotangent of out; absent: zero: @query?[batch, seq_len, num_q_heads, value_dim] ;
     * @query?[num_tokens, num_q_heads, value_dim] */
    const DLTensor* d_out;
    /* may be NULL; cotangent of final_state; absent: zero: state@query?[batch, num_q_heads, key_dim, value_dim]
     * ; state@query?[num_seqs, num_q_heads, key_dim, value_dim] */
    const DLTensor* d_final_state;
  } inputs;
  struct {
    /* gradient of query: @query[batch, seq_len, num_q_heads, key_dim] ; @query[num_tokens, num_q_heads, key_dim] */
    const DLTensor* query;
    /* gradient of key, summed over its query heads: @key[batch, seq_len, num_kv_heads, key_dim] ;
     * @key[num_tokens, num_kv_heads, key_dim] */
    const DLTensor* key;
    /* gradient of value, summed over its query heads: @value[batch, seq_len, num_kv_heads, value_dim] ;
     * @value[num_tokens, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* gradient of g: @g?[batch, seq_len, num_q_heads] ; @g?[num_tokens, num_q_heads] */
    const DLTensor* g;
    /* gradient of g_gamma, summed over the tokens: @g_gamma?[num_q_heads] */
    const DLTensor* g_gamma;
    /* gradient of gk: @gk?[batch, seq_len, num_q_heads, key_dim] ; @gk?[num_tokens, num_q_heads, key_dim] */
    const DLTensor* gk;
    /* gradient of gv: @gv?[batch, seq_len, num_q_heads, value_dim] ; @gv?[num_tokens, num_q_heads, value_dim] */
    const DLTensor* gv;
    /* gradient of initial_state: @initial_state?[batch, num_q_heads, key_dim, value_dim] ;
     * @initial_state?[num_seqs, num_q_heads, key_dim, value_dim] */
    const DLTensor* initial_state;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of out; absent: 1/sqrt(key_dim); default NULL: none */
    const double* softmax_scale;
    /* from the last token to the first; default false */
    bool reverse;
    /* dtype of final_state; absent: float32 (float64 for float64 queries); default NULL: none */
    const char* state_dtype;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_recurrent_attention_backward_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_recurrent_attention_backward_init(ejk_recurrent_attention_backward_args* args) {
  memset(args, 0, sizeof *args);
  args->params.reverse = false;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_recurrent_attention_backward(const ejk_recurrent_attention_backward_args* args) {
  ejk_tensor inputs[11], outputs[8];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("recurrent_attention_backward", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key", args->inputs.key);
  ejk_ops_add(inputs, &num_inputs, "value", args->inputs.value);
  ejk_ops_add(inputs, &num_inputs, "g", args->inputs.g);
  ejk_ops_add(inputs, &num_inputs, "g_gamma", args->inputs.g_gamma);
  ejk_ops_add(inputs, &num_inputs, "gk", args->inputs.gk);
  ejk_ops_add(inputs, &num_inputs, "gv", args->inputs.gv);
  ejk_ops_add(inputs, &num_inputs, "initial_state", args->inputs.initial_state);
  ejk_ops_add(inputs, &num_inputs, "cu_seqlens", args->inputs.cu_seqlens);
  ejk_ops_add(inputs, &num_inputs, "d_out", args->inputs.d_out);
  ejk_ops_add(inputs, &num_inputs, "d_final_state", args->inputs.d_final_state);
  ejk_ops_add(outputs, &num_outputs, "query", args->outputs.query);
  ejk_ops_add(outputs, &num_outputs, "key", args->outputs.key);
  ejk_ops_add(outputs, &num_outputs, "value", args->outputs.value);
  ejk_ops_add(outputs, &num_outputs, "g", args->outputs.g);
  ejk_ops_add(outputs, &num_outputs, "g_gamma", args->outputs.g_gamma);
  ejk_ops_add(outputs, &num_outputs, "gk", args->outputs.gk);
  ejk_ops_add(outputs, &num_outputs, "gv", args->outputs.gv);
  ejk_ops_add(outputs, &num_outputs, "initial_state", args->outputs.initial_state);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.reverse != false)
    status = ejk_params_set_bool(params, "reverse", args->params.reverse);
  if (status == EJK_OK && args->params.state_dtype != NULL)
    status = ejk_params_set_str(params, "state_dtype", args->params.state_dtype);
  if (status == EJK_OK)
    status = ejk_execute("recurrent_attention_backward", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- gla_attention ---- */

/* Gated linear attention: recurrent_attention whose state decays by a gate per token and key dimension. Yang et
 * al., Gated Linear Attention Transformers with Hardware-Efficient Training (arXiv:2312.06635), sections 2 to 4.
 * Gradient: gla_attention_backward. */
typedef struct ejk_gla_attention_args {
  struct {
    /* required; queries: float[batch, seq_len, num_q_heads, key_dim] ; float[num_tokens, num_q_heads, key_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): @query[batch, seq_len,
     * num_kv_heads, key_dim] ; @query[num_tokens, num_kv_heads, key_dim] */
    const DLTensor* key;
    /* required; values; value_dim may differ from key_dim: @query[batch, seq_len, num_kv_heads, value_dim] ;
     * @query[num_tokens, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* may be NULL; log decay of a token for each row of the state: float?[batch, seq_len, num_q_heads, key_dim]
     * ; float?[num_tokens, num_q_heads, key_dim] */
    const DLTensor* gk;
    /* may be NULL; log decay of a head, the same for every token: float?[num_q_heads] */
    const DLTensor* g_gamma;
    /* may be NULL; the state before a sequence's first token; absent: 0. A bfloat16 one halves what a decoding
     * step moves: float?[batch, num_q_heads, key_dim, value_dim] ; float?[num_seqs, num_q_heads, key_dim,
     * value_dim] */
    const DLTensor* initial_state;
    /* may be NULL; packed: sequence s owns rows [s], [s+1); an end before its start is an empty sequence: - ;
     * int32[num_seqs+1] */
    const DLTensor* cu_seqlens;
  } inputs;
  struct {
    /* what each token reads, after its own update; 0 in rows of no sequence: @query[batch, seq_len, num_q_heads,
     * value_dim] ; @query[num_tokens, num_q_heads, value_dim] */
    const DLTensor* out;
    /* the state after a sequence's last token; an empty sequence's is its initial state: state@query[batch,
     * num_q_heads, key_dim, value_dim] ; state@query[num_seqs, num_q_heads, key_dim, value_dim] */
    const DLTensor* final_state;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of out; absent: 1/sqrt(key_dim); default NULL: none */
    const double* softmax_scale;
    /* from the last token to the first; default false */
    bool reverse;
    /* dtype of final_state; absent: float32 (float64 for float64 queries); default NULL: none */
    const char* state_dtype;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_gla_attention_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_gla_attention_init(ejk_gla_attention_args* args) {
  memset(args, 0, sizeof *args);
  args->params.reverse = false;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_gla_attention(const ejk_gla_attention_args* args) {
  ejk_tensor inputs[7], outputs[2];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("gla_attention", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key", args->inputs.key);
  ejk_ops_add(inputs, &num_inputs, "value", args->inputs.value);
  ejk_ops_add(inputs, &num_inputs, "gk", args->inputs.gk);
  ejk_ops_add(inputs, &num_inputs, "g_gamma", args->inputs.g_gamma);
  ejk_ops_add(inputs, &num_inputs, "initial_state", args->inputs.initial_state);
  ejk_ops_add(inputs, &num_inputs, "cu_seqlens", args->inputs.cu_seqlens);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  ejk_ops_add(outputs, &num_outputs, "final_state", args->outputs.final_state);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.reverse != false)
    status = ejk_params_set_bool(params, "reverse", args->params.reverse);
  if (status == EJK_OK && args->params.state_dtype != NULL)
    status = ejk_params_set_str(params, "state_dtype", args->params.state_dtype);
  if (status == EJK_OK)
    status = ejk_execute("gla_attention", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- gla_attention_backward ---- */

/* Gradient of gla_attention for query, key, value, both gates and the initial state. Yang et al., Gated Linear
 * Attention Transformers with Hardware-Efficient Training (arXiv:2312.06635), sections 2 to 4. */
typedef struct ejk_gla_attention_backward_args {
  struct {
    /* required; queries: float[batch, seq_len, num_q_heads, key_dim] ; float[num_tokens, num_q_heads, key_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): @query[batch, seq_len,
     * num_kv_heads, key_dim] ; @query[num_tokens, num_kv_heads, key_dim] */
    const DLTensor* key;
    /* required; values; value_dim may differ from key_dim: @query[batch, seq_len, num_kv_heads, value_dim] ;
     * @query[num_tokens, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* may be NULL; log decay of a token for each row of the state: float?[batch, seq_len, num_q_heads, key_dim]
     * ; float?[num_tokens, num_q_heads, key_dim] */
    const DLTensor* gk;
    /* may be NULL; log decay of a head, the same for every token: float?[num_q_heads] */
    const DLTensor* g_gamma;
    /* may be NULL; the state before a sequence's first token; absent: 0. A bfloat16 one halves what a decoding
     * step moves: float?[batch, num_q_heads, key_dim, value_dim] ; float?[num_seqs, num_q_heads, key_dim,
     * value_dim] */
    const DLTensor* initial_state;
    /* may be NULL; packed: sequence s owns rows [s], [s+1); an end before its start is an empty sequence: - ;
     * int32[num_seqs+1] */
    const DLTensor* cu_seqlens;
    /* may be NULL; cotangent of out; absent: zero: @query?[batch, seq_len, num_q_heads, value_dim] ;
     * @query?[num_tokens, num_q_heads, value_dim] */
    const DLTensor* d_out;
    /* may be NULL; cotangent of final_state; absent: zero: state@query?[batch, num_q_heads, key_dim, value_dim]
     * ; state@query?[num_seqs, num_q_heads, key_dim, value_dim] */
    const DLTensor* d_final_state;
  } inputs;
  struct {
    /* gradient of query: @query[batch, seq_len, num_q_heads, key_dim] ; @query[num_tokens, num_q_heads, key_dim] */
    const DLTensor* query;
    /* gradient of key, summed over its query heads: @key[batch, seq_len, num_kv_heads, key_dim] ;
     * @key[num_tokens, num_kv_heads, key_dim] */
    const DLTensor* key;
    /* gradient of value, summed over its query heads: @value[batch, seq_len, num_kv_heads, value_dim] ;
     * @value[num_tokens, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* gradient of gk: @gk?[batch, seq_len, num_q_heads, key_dim] ; @gk?[num_tokens, num_q_heads, key_dim] */
    const DLTensor* gk;
    /* gradient of g_gamma, summed over the tokens: @g_gamma?[num_q_heads] */
    const DLTensor* g_gamma;
    /* gradient of initial_state: @initial_state?[batch, num_q_heads, key_dim, value_dim] ;
     * @initial_state?[num_seqs, num_q_heads, key_dim, value_dim] */
    const DLTensor* initial_state;
  } outputs; /* NULL: not wanted */
  struct {
    /* factor of out; absent: 1/sqrt(key_dim); default NULL: none */
    const double* softmax_scale;
    /* from the last token to the first; default false */
    bool reverse;
    /* dtype of final_state; absent: float32 (float64 for float64 queries); default NULL: none */
    const char* state_dtype;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_gla_attention_backward_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_gla_attention_backward_init(ejk_gla_attention_backward_args* args) {
  memset(args, 0, sizeof *args);
  args->params.reverse = false;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_gla_attention_backward(const ejk_gla_attention_backward_args* args) {
  ejk_tensor inputs[9], outputs[6];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("gla_attention_backward", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key", args->inputs.key);
  ejk_ops_add(inputs, &num_inputs, "value", args->inputs.value);
  ejk_ops_add(inputs, &num_inputs, "gk", args->inputs.gk);
  ejk_ops_add(inputs, &num_inputs, "g_gamma", args->inputs.g_gamma);
  ejk_ops_add(inputs, &num_inputs, "initial_state", args->inputs.initial_state);
  ejk_ops_add(inputs, &num_inputs, "cu_seqlens", args->inputs.cu_seqlens);
  ejk_ops_add(inputs, &num_inputs, "d_out", args->inputs.d_out);
  ejk_ops_add(inputs, &num_inputs, "d_final_state", args->inputs.d_final_state);
  ejk_ops_add(outputs, &num_outputs, "query", args->outputs.query);
  ejk_ops_add(outputs, &num_outputs, "key", args->outputs.key);
  ejk_ops_add(outputs, &num_outputs, "value", args->outputs.value);
  ejk_ops_add(outputs, &num_outputs, "gk", args->outputs.gk);
  ejk_ops_add(outputs, &num_outputs, "g_gamma", args->outputs.g_gamma);
  ejk_ops_add(outputs, &num_outputs, "initial_state", args->outputs.initial_state);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.reverse != false)
    status = ejk_params_set_bool(params, "reverse", args->params.reverse);
  if (status == EJK_OK && args->params.state_dtype != NULL)
    status = ejk_params_set_str(params, "state_dtype", args->params.state_dtype);
  if (status == EJK_OK)
    status = ejk_execute("gla_attention_backward", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- lightning_attention ---- */

/* Lightning attention: recurrent_attention whose heads decay at fixed rates, slower in later layers. Qin et al.,
 * Lightning Attention-2 (arXiv:2401.04658), sections 2 and 3; MiniMax-01 (arXiv:2501.08313), section 2.2.
 * Gradient: lightning_attention_backward. */
typedef struct ejk_lightning_attention_args {
  struct {
    /* required; queries: float[batch, seq_len, num_q_heads, key_dim] ; float[num_tokens, num_q_heads, key_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): @query[batch, seq_len,
     * num_kv_heads, key_dim] ; @query[num_tokens, num_kv_heads, key_dim] */
    const DLTensor* key;
    /* required; values; value_dim may differ from key_dim: @query[batch, seq_len, num_kv_heads, value_dim] ;
     * @query[num_tokens, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* may be NULL; the state before a sequence's first token; absent: 0. A bfloat16 one halves what a decoding
     * step moves: float?[batch, num_q_heads, key_dim, value_dim] ; float?[num_seqs, num_q_heads, key_dim,
     * value_dim] */
    const DLTensor* initial_state;
    /* may be NULL; packed: sequence s owns rows [s], [s+1); an end before its start is an empty sequence: - ;
     * int32[num_seqs+1] */
    const DLTensor* cu_seqlens;
  } inputs;
  struct {
    /* what each token reads, after its own update; 0 in rows of no sequence: @query[batch, seq_len, num_q_heads,
     * value_dim] ; @query[num_tokens, num_q_heads, value_dim] */
    const DLTensor* out;
    /* the state after a sequence's last token; an empty sequence's is its initial state: state@query[batch,
     * num_q_heads, key_dim, value_dim] ; state@query[num_seqs, num_q_heads, key_dim, value_dim] */
    const DLTensor* final_state;
  } outputs; /* NULL: not wanted */
  struct {
    /* the layer's number, from 0 to num_layers - 1; must be given; default NULL: none */
    const int64_t* layer_idx;
    /* layers of the model; must be given; default NULL: none */
    const int64_t* num_layers;
    /* factor of out; absent: 1/sqrt(key_dim); default NULL: none */
    const double* softmax_scale;
    /* from the last token to the first; default false */
    bool reverse;
    /* dtype of final_state; absent: float32 (float64 for float64 queries); default NULL: none */
    const char* state_dtype;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_lightning_attention_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_lightning_attention_init(ejk_lightning_attention_args* args) {
  memset(args, 0, sizeof *args);
  args->params.reverse = false;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_lightning_attention(const ejk_lightning_attention_args* args) {
  ejk_tensor inputs[5], outputs[2];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("lightning_attention", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key", args->inputs.key);
  ejk_ops_add(inputs, &num_inputs, "value", args->inputs.value);
  ejk_ops_add(inputs, &num_inputs, "initial_state", args->inputs.initial_state);
  ejk_ops_add(inputs, &num_inputs, "cu_seqlens", args->inputs.cu_seqlens);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  ejk_ops_add(outputs, &num_outputs, "final_state", args->outputs.final_state);
  if (status == EJK_OK && args->params.layer_idx != NULL)
    status = ejk_params_set_i64(params, "layer_idx", *args->params.layer_idx);
  if (status == EJK_OK && args->params.num_layers != NULL)
    status = ejk_params_set_i64(params, "num_layers", *args->params.num_layers);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.reverse != false)
    status = ejk_params_set_bool(params, "reverse", args->params.reverse);
  if (status == EJK_OK && args->params.state_dtype != NULL)
    status = ejk_params_set_str(params, "state_dtype", args->params.state_dtype);
  if (status == EJK_OK)
    status = ejk_execute("lightning_attention", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- lightning_attention_backward ---- */

/* Gradient of lightning_attention for query, key, value and the initial state. Qin et al., Lightning Attention-2
 * (arXiv:2401.04658), sections 2 and 3; MiniMax-01 (arXiv:2501.08313), section 2.2. */
typedef struct ejk_lightning_attention_backward_args {
  struct {
    /* required; queries: float[batch, seq_len, num_q_heads, key_dim] ; float[num_tokens, num_q_heads, key_dim] */
    const DLTensor* query;
    /* required; keys; query head h reads kv head h div (num_q_heads / num_kv_heads): @query[batch, seq_len,
     * num_kv_heads, key_dim] ; @query[num_tokens, num_kv_heads, key_dim] */
    const DLTensor* key;
    /* required; values; value_dim may differ from key_dim: @query[batch, seq_len, num_kv_heads, value_dim] ;
     * @query[num_tokens, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* may be NULL; the state before a sequence's first token; absent: 0. A bfloat16 one halves what a decoding
     * step moves: float?[batch, num_q_heads, key_dim, value_dim] ; float?[num_seqs, num_q_heads, key_dim,
     * value_dim] */
    const DLTensor* initial_state;
    /* may be NULL; packed: sequence s owns rows [s], [s+1); an end before its start is an empty sequence: - ;
     * int32[num_seqs+1] */
    const DLTensor* cu_seqlens;
    /* may be NULL; cotangent of out; absent: zero: @query?[batch, seq_len, num_q_heads, value_dim] ;
     * @query?[num_tokens, num_q_heads, value_dim] */
    const DLTensor* d_out;
    /* may be NULL; cotangent of final_state; absent: zero: state@query?[batch, num_q_heads, key_dim, value_dim]
     * ; state@query?[num_seqs, num_q_heads, key_dim, value_dim] */
    const DLTensor* d_final_state;
  } inputs;
  struct {
    /* gradient of query: @query[batch, seq_len, num_q_heads, key_dim] ; @query[num_tokens, num_q_heads, key_dim] */
    const DLTensor* query;
    /* gradient of key, summed over its query heads: @key[batch, seq_len, num_kv_heads, key_dim] ;
     * @key[num_tokens, num_kv_heads, key_dim] */
    const DLTensor* key;
    /* gradient of value, summed over its query heads: @value[batch, seq_len, num_kv_heads, value_dim] ;
     * @value[num_tokens, num_kv_heads, value_dim] */
    const DLTensor* value;
    /* gradient of initial_state: @initial_state?[batch, num_q_heads, key_dim, value_dim] ;
     * @initial_state?[num_seqs, num_q_heads, key_dim, value_dim] */
    const DLTensor* initial_state;
  } outputs; /* NULL: not wanted */
  struct {
    /* the layer's number, from 0 to num_layers - 1; must be given; default NULL: none */
    const int64_t* layer_idx;
    /* layers of the model; must be given; default NULL: none */
    const int64_t* num_layers;
    /* factor of out; absent: 1/sqrt(key_dim); default NULL: none */
    const double* softmax_scale;
    /* from the last token to the first; default false */
    bool reverse;
    /* dtype of final_state; absent: float32 (float64 for float64 queries); default NULL: none */
    const char* state_dtype;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_lightning_attention_backward_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_lightning_attention_backward_init(ejk_lightning_attention_backward_args* args) {
  memset(args, 0, sizeof *args);
  args->params.reverse = false;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_lightning_attention_backward(const ejk_lightning_attention_backward_args* args) {
  ejk_tensor inputs[7], outputs[4];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("lightning_attention_backward", &params);
  ejk_ops_add(inputs, &num_inputs, "query", args->inputs.query);
  ejk_ops_add(inputs, &num_inputs, "key", args->inputs.key);
  ejk_ops_add(inputs, &num_inputs, "value", args->inputs.value);
  ejk_ops_add(inputs, &num_inputs, "initial_state", args->inputs.initial_state);
  ejk_ops_add(inputs, &num_inputs, "cu_seqlens", args->inputs.cu_seqlens);
  ejk_ops_add(inputs, &num_inputs, "d_out", args->inputs.d_out);
  ejk_ops_add(inputs, &num_inputs, "d_final_state", args->inputs.d_final_state);
  ejk_ops_add(outputs, &num_outputs, "query", args->outputs.query);
  ejk_ops_add(outputs, &num_outputs, "key", args->outputs.key);
  ejk_ops_add(outputs, &num_outputs, "value", args->outputs.value);
  ejk_ops_add(outputs, &num_outputs, "initial_state", args->outputs.initial_state);
  if (status == EJK_OK && args->params.layer_idx != NULL)
    status = ejk_params_set_i64(params, "layer_idx", *args->params.layer_idx);
  if (status == EJK_OK && args->params.num_layers != NULL)
    status = ejk_params_set_i64(params, "num_layers", *args->params.num_layers);
  if (status == EJK_OK && args->params.softmax_scale != NULL)
    status = ejk_params_set_f64(params, "softmax_scale", *args->params.softmax_scale);
  if (status == EJK_OK && args->params.reverse != false)
    status = ejk_params_set_bool(params, "reverse", args->params.reverse);
  if (status == EJK_OK && args->params.state_dtype != NULL)
    status = ejk_params_set_str(params, "state_dtype", args->params.state_dtype);
  if (status == EJK_OK)
    status = ejk_execute("lightning_attention_backward", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- grouped_matmul ---- */

/* Products of groups of rows with a matrix per group: ragged, batched, block-sparse, 8-bit. Gale et al.,
 * MegaBlocks (arXiv:2211.15841), section 3. Gradient: grouped_matmul_backward. */
typedef struct ejk_grouped_matmul_args {
  struct {
    /* required; the rows; ragged: those of group 0, then those of group 1, …. 8-bit ones are codes, scaled by
     * lhs_scale: number[m, k] ; number[m, k] ; number[batch, num_groups, m, k] ; number[batch, num_groups, m, k] */
    const DLTensor* lhs;
    /* required; a matrix for each group from group_offset on; lhs's dtype, or an 8-bit one (codes, scaled by
     * rhs_scale): number[num_groups, k, n] ; number[num_groups, n, k] ; number[batch, num_groups, k, n] ;
     * number[batch, num_groups, n, k] */
    const DLTensor* rhs;
    /* may be NULL; ragged: rows of every group, in order; a negative size counts as 0, and rows end where lhs
     * does: int32[num_all_groups] ; int32[num_all_groups] ; - ; - */
    const DLTensor* group_sizes;
    /* may be NULL; what the products are added to; absent: 0: result@lhs?[m, n] ; result@lhs?[m, n] ;
     * result@lhs?[batch, num_groups, m, n] ; result@lhs?[batch, num_groups, m, n] */
    const DLTensor* existing_out;
    /* may be NULL; scale of 8-bit rows: one, per row, or per row and block of 128 of k; absent: 1: float32?[] |
     * float32?[m] | float32?[m, num_k_blocks] ; float32?[] | float32?[m] | float32?[m, num_k_blocks] ;
     * float32?[] ; float32?[] */
    const DLTensor* lhs_scale;
    /* may be NULL; scale of 8-bit matrices: one, per group and column of out, or per block of 128 by 128;
     * absent: 1: float32?[] | float32?[num_groups, n] | float32?[num_groups, num_k_blocks, num_n_blocks] ;
     * float32?[] | float32?[num_groups, n] | float32?[num_groups, num_k_blocks, num_n_blocks] ; float32?[] ;
     * float32?[] */
    const DLTensor* rhs_scale;
    /* may be NULL; false: this block of block_k by block_n of rhs counts as 0, whatever it holds:
     * bool?[num_groups, num_mask_k_blocks, num_mask_n_blocks] ; bool?[num_groups, num_mask_k_blocks,
     * num_mask_n_blocks] ; - ; - */
    const DLTensor* rhs_mask;
    /* may be NULL; false: the product is 0 in this block of block_m by block_n of out, and gives no gradient:
     * bool?[num_mask_m_blocks, num_mask_n_blocks] ; bool?[num_mask_m_blocks, num_mask_n_blocks] ; - ; - */
    const DLTensor* out_mask;
  } inputs;
  struct {
    /* existing_out plus the products; rows that belong to no group with a matrix are existing_out's, or 0:
     * result@lhs[m, n] ; result@lhs[m, n] ; result@lhs[batch, num_groups, m, n] ; result@lhs[batch, num_groups,
     * m, n] */
    const DLTensor* out;
  } outputs; /* NULL: not wanted */
  struct {
    /* rhs holds [n, k] instead of [k, n]; default false */
    bool transpose_rhs;
    /* the group that rhs begins with; rows of groups without a matrix get no product; default 0 */
    int64_t group_offset;
    /* dtype of out; absent: lhs's (bf16 for 8-bit rows); default NULL: none */
    const char* out_dtype;
    /* rows of out_mask's blocks; default NULL: none */
    const int64_t* block_m;
    /* extent along k of rhs_mask's blocks; default NULL: none */
    const int64_t* block_k;
    /* extent along n of both masks' blocks; default NULL: none */
    const int64_t* block_n;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_grouped_matmul_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_grouped_matmul_init(ejk_grouped_matmul_args* args) {
  memset(args, 0, sizeof *args);
  args->params.transpose_rhs = false;
  args->params.group_offset = 0;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_grouped_matmul(const ejk_grouped_matmul_args* args) {
  ejk_tensor inputs[8], outputs[1];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("grouped_matmul", &params);
  ejk_ops_add(inputs, &num_inputs, "lhs", args->inputs.lhs);
  ejk_ops_add(inputs, &num_inputs, "rhs", args->inputs.rhs);
  ejk_ops_add(inputs, &num_inputs, "group_sizes", args->inputs.group_sizes);
  ejk_ops_add(inputs, &num_inputs, "existing_out", args->inputs.existing_out);
  ejk_ops_add(inputs, &num_inputs, "lhs_scale", args->inputs.lhs_scale);
  ejk_ops_add(inputs, &num_inputs, "rhs_scale", args->inputs.rhs_scale);
  ejk_ops_add(inputs, &num_inputs, "rhs_mask", args->inputs.rhs_mask);
  ejk_ops_add(inputs, &num_inputs, "out_mask", args->inputs.out_mask);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  if (status == EJK_OK && args->params.transpose_rhs != false)
    status = ejk_params_set_bool(params, "transpose_rhs", args->params.transpose_rhs);
  if (status == EJK_OK && args->params.group_offset != 0)
    status = ejk_params_set_i64(params, "group_offset", args->params.group_offset);
  if (status == EJK_OK && args->params.out_dtype != NULL)
    status = ejk_params_set_str(params, "out_dtype", args->params.out_dtype);
  if (status == EJK_OK && args->params.block_m != NULL)
    status = ejk_params_set_i64(params, "block_m", *args->params.block_m);
  if (status == EJK_OK && args->params.block_k != NULL)
    status = ejk_params_set_i64(params, "block_k", *args->params.block_k);
  if (status == EJK_OK && args->params.block_n != NULL)
    status = ejk_params_set_i64(params, "block_n", *args->params.block_n);
  if (status == EJK_OK)
    status = ejk_execute("grouped_matmul", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- grouped_matmul_backward ---- */

/* Gradient of grouped_matmul for lhs, rhs and existing_out. Gale et al., MegaBlocks (arXiv:2211.15841), section
 * 3. */
typedef struct ejk_grouped_matmul_backward_args {
  struct {
    /* required; the forward's lhs: 8-bit codes have no gradient: float[m, k] ; float[m, k] ; float[batch,
     * num_groups, m, k] ; float[batch, num_groups, m, k] */
    const DLTensor* lhs;
    /* required; the forward's rhs: @lhs[num_groups, k, n] ; @lhs[num_groups, n, k] ; @lhs[batch, num_groups, k,
     * n] ; @lhs[batch, num_groups, n, k] */
    const DLTensor* rhs;
    /* may be NULL; the forward's: int32[num_all_groups] ; int32[num_all_groups] ; - ; - */
    const DLTensor* group_sizes;
    /* may be NULL; the forward's; its numbers are not read: result@lhs?[m, n] ; result@lhs?[m, n] ;
     * result@lhs?[batch, num_groups, m, n] ; result@lhs?[batch, num_groups, m, n] */
    const DLTensor* existing_out;
    /* may be NULL; the forward's: bool?[num_groups, num_mask_k_blocks, num_mask_n_blocks] ; bool?[num_groups,
     * num_mask_k_blocks, num_mask_n_blocks] ; - ; - */
    const DLTensor* rhs_mask;
    /* may be NULL; the forward's: bool?[num_mask_m_blocks, num_mask_n_blocks] ; bool?[num_mask_m_blocks,
     * num_mask_n_blocks] ; - ; - */
    const DLTensor* out_mask;
    /* required; cotangent of out: result@lhs[m, n] ; result@lhs[m, n] ; result@lhs[batch, num_groups, m, n] ;
     * result@lhs[batch, num_groups, m, n] */
    const DLTensor* d_out;
  } inputs;
  struct {
    /* gradient of lhs; 0 in rows that belong to no group with a matrix: @lhs[m, k] ; @lhs[m, k] ; @lhs[batch,
     * num_groups, m, k] ; @lhs[batch, num_groups, m, k] */
    const DLTensor* lhs;
    /* gradient of rhs; 0 for a group without rows and in blocks that rhs_mask takes for 0: @rhs[num_groups, k,
     * n] ; @rhs[num_groups, n, k] ; @rhs[batch, num_groups, k, n] ; @rhs[batch, num_groups, n, k] */
    const DLTensor* rhs;
    /* gradient of existing_out: d_out: @existing_out?[m, n] ; @existing_out?[m, n] ; @existing_out?[batch,
     * num_groups, m, n] ; @existing_out?[batch, num_groups, m, n] */
    const DLTensor* existing_out;
  } outputs; /* NULL: not wanted */
  struct {
    /* rhs holds [n, k] instead of [k, n]; default false */
    bool transpose_rhs;
    /* the group that rhs begins with; rows of groups without a matrix get no product; default 0 */
    int64_t group_offset;
    /* dtype of out; absent: lhs's (bf16 for 8-bit rows); default NULL: none */
    const char* out_dtype;
    /* rows of out_mask's blocks; default NULL: none */
    const int64_t* block_m;
    /* extent along k of rhs_mask's blocks; default NULL: none */
    const int64_t* block_k;
    /* extent along n of both masks' blocks; default NULL: none */
    const int64_t* block_n;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_grouped_matmul_backward_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_grouped_matmul_backward_init(ejk_grouped_matmul_backward_args* args) {
  memset(args, 0, sizeof *args);
  args->params.transpose_rhs = false;
  args->params.group_offset = 0;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_grouped_matmul_backward(const ejk_grouped_matmul_backward_args* args) {
  ejk_tensor inputs[7], outputs[3];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("grouped_matmul_backward", &params);
  ejk_ops_add(inputs, &num_inputs, "lhs", args->inputs.lhs);
  ejk_ops_add(inputs, &num_inputs, "rhs", args->inputs.rhs);
  ejk_ops_add(inputs, &num_inputs, "group_sizes", args->inputs.group_sizes);
  ejk_ops_add(inputs, &num_inputs, "existing_out", args->inputs.existing_out);
  ejk_ops_add(inputs, &num_inputs, "rhs_mask", args->inputs.rhs_mask);
  ejk_ops_add(inputs, &num_inputs, "out_mask", args->inputs.out_mask);
  ejk_ops_add(inputs, &num_inputs, "d_out", args->inputs.d_out);
  ejk_ops_add(outputs, &num_outputs, "lhs", args->outputs.lhs);
  ejk_ops_add(outputs, &num_outputs, "rhs", args->outputs.rhs);
  ejk_ops_add(outputs, &num_outputs, "existing_out", args->outputs.existing_out);
  if (status == EJK_OK && args->params.transpose_rhs != false)
    status = ejk_params_set_bool(params, "transpose_rhs", args->params.transpose_rhs);
  if (status == EJK_OK && args->params.group_offset != 0)
    status = ejk_params_set_i64(params, "group_offset", args->params.group_offset);
  if (status == EJK_OK && args->params.out_dtype != NULL)
    status = ejk_params_set_str(params, "out_dtype", args->params.out_dtype);
  if (status == EJK_OK && args->params.block_m != NULL)
    status = ejk_params_set_i64(params, "block_m", *args->params.block_m);
  if (status == EJK_OK && args->params.block_k != NULL)
    status = ejk_params_set_i64(params, "block_k", *args->params.block_k);
  if (status == EJK_OK && args->params.block_n != NULL)
    status = ejk_params_set_i64(params, "block_n", *args->params.block_n);
  if (status == EJK_OK)
    status = ejk_execute("grouped_matmul_backward", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- transposed_grouped_matmul ---- */

/* A matrix per group: the transposed rows of one tensor times those of another. The gradient of grouped_matmul
 * for rhs. Gale et al., MegaBlocks (arXiv:2211.15841), section 3. */
typedef struct ejk_transposed_grouped_matmul_args {
  struct {
    /* required; the rows of grouped_matmul's lhs: float[m, k] */
    const DLTensor* lhs;
    /* required; as many rows of another tensor: the cotangent of grouped_matmul's out: float[m, n] */
    const DLTensor* d_out;
    /* required; rows of every group, in order; a negative size counts as 0, and rows end where lhs does:
     * int32[num_all_groups] */
    const DLTensor* group_sizes;
    /* may be NULL; false: this block of block_k by block_n of a group's matrix is 0: bool?[num_groups,
     * num_mask_k_blocks, num_mask_n_blocks] */
    const DLTensor* rhs_mask;
    /* may be NULL; false: this block of block_m by block_n of d_out counts as 0, whatever it holds:
     * bool?[num_mask_m_blocks, num_mask_n_blocks] */
    const DLTensor* out_mask;
  } inputs;
  struct {
    /* a matrix per group; 0 for a group without rows: result@lhs[num_groups, k, n] ; result@lhs[num_groups, n,
     * k] */
    const DLTensor* out;
  } outputs; /* NULL: not wanted */
  struct {
    /* out holds [n, k] instead of [k, n]; default false */
    bool transpose_rhs;
    /* the group that out begins with; default 0 */
    int64_t group_offset;
    /* groups that get a matrix; absent: rhs_mask's, or all from group_offset on; default NULL: none */
    const int64_t* num_groups;
    /* dtype of out; absent: lhs's; default NULL: none */
    const char* out_dtype;
    /* rows of out_mask's blocks; default NULL: none */
    const int64_t* block_m;
    /* extent along k of rhs_mask's blocks; default NULL: none */
    const int64_t* block_k;
    /* extent along n of both masks' blocks; default NULL: none */
    const int64_t* block_n;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_transposed_grouped_matmul_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_transposed_grouped_matmul_init(ejk_transposed_grouped_matmul_args* args) {
  memset(args, 0, sizeof *args);
  args->params.transpose_rhs = false;
  args->params.group_offset = 0;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_transposed_grouped_matmul(const ejk_transposed_grouped_matmul_args* args) {
  ejk_tensor inputs[5], outputs[1];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("transposed_grouped_matmul", &params);
  ejk_ops_add(inputs, &num_inputs, "lhs", args->inputs.lhs);
  ejk_ops_add(inputs, &num_inputs, "d_out", args->inputs.d_out);
  ejk_ops_add(inputs, &num_inputs, "group_sizes", args->inputs.group_sizes);
  ejk_ops_add(inputs, &num_inputs, "rhs_mask", args->inputs.rhs_mask);
  ejk_ops_add(inputs, &num_inputs, "out_mask", args->inputs.out_mask);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  if (status == EJK_OK && args->params.transpose_rhs != false)
    status = ejk_params_set_bool(params, "transpose_rhs", args->params.transpose_rhs);
  if (status == EJK_OK && args->params.group_offset != 0)
    status = ejk_params_set_i64(params, "group_offset", args->params.group_offset);
  if (status == EJK_OK && args->params.num_groups != NULL)
    status = ejk_params_set_i64(params, "num_groups", *args->params.num_groups);
  if (status == EJK_OK && args->params.out_dtype != NULL)
    status = ejk_params_set_str(params, "out_dtype", args->params.out_dtype);
  if (status == EJK_OK && args->params.block_m != NULL)
    status = ejk_params_set_i64(params, "block_m", *args->params.block_m);
  if (status == EJK_OK && args->params.block_k != NULL)
    status = ejk_params_set_i64(params, "block_k", *args->params.block_k);
  if (status == EJK_OK && args->params.block_n != NULL)
    status = ejk_params_set_i64(params, "block_n", *args->params.block_n);
  if (status == EJK_OK)
    status = ejk_execute("transposed_grouped_matmul", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- rnn ---- */

/* Recurrent networks of LSTM, GRU or vanilla cells: layers, two directions, sequences of their own lengths.
 * Hochreiter and Schmidhuber, Long Short-Term Memory (1997); Cho et al., Learning Phrase Representations
 * (arXiv:1406.1078), section 2.3, as PyTorch's nn.LSTM, nn.GRU and nn.RNN. Gradient: rnn_backward. */
typedef struct ejk_rnn_args {
  struct {
    /* required; the sequences: float[batch, seq_len, input_size] */
    const DLTensor* input;
    /* may be NULL; h before the first step, of every layer (outer) and direction, forward first; without the
     * first axis where there is one; absent: 0: @input?[num_states, batch, hidden_size] | @input?[batch,
     * hidden_size] */
    const DLTensor* hidden;
    /* may be NULL; lstm: c before the first step, likewise: @input?[num_states, batch, hidden_size] |
     * @input?[batch, hidden_size] ; - ; @input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ;
     * - */
    const DLTensor* cell;
    /* required; W_ih of the first layer; rows of the gates i f g o (lstm) or r z n (gru), hidden_size each:
     * @input[num_directions, gate_rows, input_size] */
    const DLTensor* weight_ih;
    /* may be NULL; W_ih of the other layers and their directions, in the order of the states: @input?[num_upper,
     * gate_rows, layer_size] */
    const DLTensor* weight_ih_upper;
    /* required; W_hh, in the order of the states: @input[num_states, gate_rows, hidden_size] */
    const DLTensor* weight_hh;
    /* may be NULL; b_ih, likewise; absent: 0: @input?[num_states, gate_rows] */
    const DLTensor* bias_ih;
    /* may be NULL; b_hh, likewise; absent: 0: @input?[num_states, gate_rows] */
    const DLTensor* bias_hh;
    /* may be NULL; steps that each sequence has, clamped to [0, seq_len]; absent: all. Steps past them are not
     * read: int32?[batch] */
    const DLTensor* lengths;
  } inputs;
  struct {
    /* h of the last layer at every step, the directions side by side; 0 past a sequence's length: @input[batch,
     * seq_len, layer_size] */
    const DLTensor* out;
    /* h after each sequence's own last step (backwards: after its first); hidden for an empty one:
     * @input[num_states, batch, hidden_size] */
    const DLTensor* final_hidden;
    /* lstm: c, likewise: @input[num_states, batch, hidden_size] ; - ; @input[num_states, batch, hidden_size] ; - */
    const DLTensor* final_cell;
    /* with keep_gates: after their functions i f g o (lstm), r z n and W_hn·h + b_hn (gru) or h (rnn),
     * hidden_size numbers each; 0 past a sequence's length: - ; - ; stats@input[num_states, batch, seq_len,
     * kept_size] ; stats@input[num_states, batch, seq_len, kept_size] */
    const DLTensor* gates;
  } outputs; /* NULL: not wanted */
  struct {
    /* which cell; default "lstm"; one of "lstm", "gru", "rnn" */
    const char* cell_type;
    /* of the vanilla cell (rnn); the others have their own; default "tanh"; one of "tanh", "relu", "sigmoid",
     * "identity" */
    const char* activation;
    /* each layer also runs backwards; default false */
    bool bidirectional;
    /* layers, each on the output of the one below; default 1 */
    int64_t num_layers;
    /* also give the gates, which the gradient then does not compute anew; default false */
    bool keep_gates;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_rnn_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_rnn_init(ejk_rnn_args* args) {
  memset(args, 0, sizeof *args);
  args->params.cell_type = "lstm";
  args->params.activation = "tanh";
  args->params.bidirectional = false;
  args->params.num_layers = 1;
  args->params.keep_gates = false;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_rnn(const ejk_rnn_args* args) {
  ejk_tensor inputs[9], outputs[4];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("rnn", &params);
  ejk_ops_add(inputs, &num_inputs, "input", args->inputs.input);
  ejk_ops_add(inputs, &num_inputs, "hidden", args->inputs.hidden);
  ejk_ops_add(inputs, &num_inputs, "cell", args->inputs.cell);
  ejk_ops_add(inputs, &num_inputs, "weight_ih", args->inputs.weight_ih);
  ejk_ops_add(inputs, &num_inputs, "weight_ih_upper", args->inputs.weight_ih_upper);
  ejk_ops_add(inputs, &num_inputs, "weight_hh", args->inputs.weight_hh);
  ejk_ops_add(inputs, &num_inputs, "bias_ih", args->inputs.bias_ih);
  ejk_ops_add(inputs, &num_inputs, "bias_hh", args->inputs.bias_hh);
  ejk_ops_add(inputs, &num_inputs, "lengths", args->inputs.lengths);
  ejk_ops_add(outputs, &num_outputs, "out", args->outputs.out);
  ejk_ops_add(outputs, &num_outputs, "final_hidden", args->outputs.final_hidden);
  ejk_ops_add(outputs, &num_outputs, "final_cell", args->outputs.final_cell);
  ejk_ops_add(outputs, &num_outputs, "gates", args->outputs.gates);
  if (status == EJK_OK && args->params.cell_type != NULL)
    status = ejk_params_set_str(params, "cell_type", args->params.cell_type);
  if (status == EJK_OK && args->params.activation != NULL)
    status = ejk_params_set_str(params, "activation", args->params.activation);
  if (status == EJK_OK && args->params.bidirectional != false)
    status = ejk_params_set_bool(params, "bidirectional", args->params.bidirectional);
  if (status == EJK_OK && args->params.num_layers != 1)
    status = ejk_params_set_i64(params, "num_layers", args->params.num_layers);
  if (status == EJK_OK && args->params.keep_gates != false)
    status = ejk_params_set_bool(params, "keep_gates", args->params.keep_gates);
  if (status == EJK_OK)
    status = ejk_execute("rnn", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

/* ---- rnn_backward ---- */

/* Gradient of rnn for input, states, weights and biases. Hochreiter and Schmidhuber, Long Short-Term Memory
 * (1997); Cho et al., Learning Phrase Representations (arXiv:1406.1078), section 2.3, as PyTorch's nn.LSTM,
 * nn.GRU and nn.RNN. */
typedef struct ejk_rnn_backward_args {
  struct {
    /* required; the sequences: float[batch, seq_len, input_size] */
    const DLTensor* input;
    /* may be NULL; h before the first step, of every layer (outer) and direction, forward first; without the
     * first axis where there is one; absent: 0: @input?[num_states, batch, hidden_size] | @input?[batch,
     * hidden_size] */
    const DLTensor* hidden;
    /* may be NULL; lstm: c before the first step, likewise: @input?[num_states, batch, hidden_size] |
     * @input?[batch, hidden_size] ; - ; @input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ;
     * - */
    const DLTensor* cell;
    /* required; W_ih of the first layer; rows of the gates i f g o (lstm) or r z n (gru), hidden_size each:
     * @input[num_directions, gate_rows, input_size] */
    const DLTensor* weight_ih;
    /* may be NULL; W_ih of the other layers and their directions, in the order of the states: @input?[num_upper,
     * gate_rows, layer_size] */
    const DLTensor* weight_ih_upper;
    /* required; W_hh, in the order of the states: @input[num_states, gate_rows, hidden_size] */
    const DLTensor* weight_hh;
    /* may be NULL; b_ih, likewise; absent: 0: @input?[num_states, gate_rows] */
    const DLTensor* bias_ih;
    /* may be NULL; b_hh, likewise; absent: 0: @input?[num_states, gate_rows] */
    const DLTensor* bias_hh;
    /* may be NULL; steps that each sequence has, clamped to [0, seq_len]; absent: all. Steps past them are not
     * read: int32?[batch] */
    const DLTensor* lengths;
    /* may be NULL; the forward's, not read past a sequence's length; absent: computed anew: - ; - ;
     * stats@input?[num_states, batch, seq_len, kept_size] ; stats@input?[num_states, batch, seq_len, kept_size] */
    const DLTensor* gates;
    /* may be NULL; cotangent of out, not read past a sequence's length; absent: zero: @input?[batch, seq_len,
     * layer_size] */
    const DLTensor* d_out;
    /* may be NULL; cotangent of final_hidden; absent: zero: @input?[num_states, batch, hidden_size] */
    const DLTensor* d_final_hidden;
    /* may be NULL; cotangent of final_cell; absent: zero: @input?[num_states, batch, hidden_size] ; - ;
     * @input?[num_states, batch, hidden_size] ; - */
    const DLTensor* d_final_cell;
  } inputs;
  struct {
    /* gradient of input; 0 past a sequence's length: @input[batch, seq_len, input_size] */
    const DLTensor* input;
    /* gradient of hidden: @input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] */
    const DLTensor* hidden;
    /* gradient of cell: @input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ; - ;
     * @input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ; - */
    const DLTensor* cell;
    /* gradient of weight_ih, summed over the steps of all sequences, as the next ones are:
     * @input[num_directions, gate_rows, input_size] */
    const DLTensor* weight_ih;
    /* gradient of weight_ih_upper: @input?[num_upper, gate_rows, layer_size] */
    const DLTensor* weight_ih_upper;
    /* gradient of weight_hh: @input[num_states, gate_rows, hidden_size] */
    const DLTensor* weight_hh;
    /* gradient of bias_ih: @input?[num_states, gate_rows] */
    const DLTensor* bias_ih;
    /* gradient of bias_hh: @input?[num_states, gate_rows] */
    const DLTensor* bias_hh;
  } outputs; /* NULL: not wanted */
  struct {
    /* which cell; default "lstm"; one of "lstm", "gru", "rnn" */
    const char* cell_type;
    /* of the vanilla cell (rnn); the others have their own; default "tanh"; one of "tanh", "relu", "sigmoid",
     * "identity" */
    const char* activation;
    /* each layer also runs backwards; default false */
    bool bidirectional;
    /* layers, each on the output of the one below; default 1 */
    int64_t num_layers;
    /* also give the gates, which the gradient then does not compute anew; default false */
    bool keep_gates;
  } params;
  const ejk_plan_options* plan; /* NULL: none */
  const ejk_run_options* run;   /* NULL: none */
} ejk_rnn_backward_args;

/* Every tensor absent, every parameter at its default. */
static inline void ejk_rnn_backward_init(ejk_rnn_backward_args* args) {
  memset(args, 0, sizeof *args);
  args->params.cell_type = "lstm";
  args->params.activation = "tanh";
  args->params.bidirectional = false;
  args->params.num_layers = 1;
  args->params.keep_gates = false;
}

/* Errors as ejk_execute. */
static inline ejk_status ejk_rnn_backward(const ejk_rnn_backward_args* args) {
  ejk_tensor inputs[13], outputs[8];
  size_t num_inputs = 0, num_outputs = 0;
  ejk_params_t* params = NULL;
  ejk_status status = ejk_params_new("rnn_backward", &params);
  ejk_ops_add(inputs, &num_inputs, "input", args->inputs.input);
  ejk_ops_add(inputs, &num_inputs, "hidden", args->inputs.hidden);
  ejk_ops_add(inputs, &num_inputs, "cell", args->inputs.cell);
  ejk_ops_add(inputs, &num_inputs, "weight_ih", args->inputs.weight_ih);
  ejk_ops_add(inputs, &num_inputs, "weight_ih_upper", args->inputs.weight_ih_upper);
  ejk_ops_add(inputs, &num_inputs, "weight_hh", args->inputs.weight_hh);
  ejk_ops_add(inputs, &num_inputs, "bias_ih", args->inputs.bias_ih);
  ejk_ops_add(inputs, &num_inputs, "bias_hh", args->inputs.bias_hh);
  ejk_ops_add(inputs, &num_inputs, "lengths", args->inputs.lengths);
  ejk_ops_add(inputs, &num_inputs, "gates", args->inputs.gates);
  ejk_ops_add(inputs, &num_inputs, "d_out", args->inputs.d_out);
  ejk_ops_add(inputs, &num_inputs, "d_final_hidden", args->inputs.d_final_hidden);
  ejk_ops_add(inputs, &num_inputs, "d_final_cell", args->inputs.d_final_cell);
  ejk_ops_add(outputs, &num_outputs, "input", args->outputs.input);
  ejk_ops_add(outputs, &num_outputs, "hidden", args->outputs.hidden);
  ejk_ops_add(outputs, &num_outputs, "cell", args->outputs.cell);
  ejk_ops_add(outputs, &num_outputs, "weight_ih", args->outputs.weight_ih);
  ejk_ops_add(outputs, &num_outputs, "weight_ih_upper", args->outputs.weight_ih_upper);
  ejk_ops_add(outputs, &num_outputs, "weight_hh", args->outputs.weight_hh);
  ejk_ops_add(outputs, &num_outputs, "bias_ih", args->outputs.bias_ih);
  ejk_ops_add(outputs, &num_outputs, "bias_hh", args->outputs.bias_hh);
  if (status == EJK_OK && args->params.cell_type != NULL)
    status = ejk_params_set_str(params, "cell_type", args->params.cell_type);
  if (status == EJK_OK && args->params.activation != NULL)
    status = ejk_params_set_str(params, "activation", args->params.activation);
  if (status == EJK_OK && args->params.bidirectional != false)
    status = ejk_params_set_bool(params, "bidirectional", args->params.bidirectional);
  if (status == EJK_OK && args->params.num_layers != 1)
    status = ejk_params_set_i64(params, "num_layers", args->params.num_layers);
  if (status == EJK_OK && args->params.keep_gates != false)
    status = ejk_params_set_bool(params, "keep_gates", args->params.keep_gates);
  if (status == EJK_OK)
    status = ejk_execute("rnn_backward", inputs, num_inputs, outputs, num_outputs, params, args->plan, args->run);
  ejk_params_free(params);
  return status;
}

#endif /* EJKERNEL_EJKERNEL_OPS_H_ */
