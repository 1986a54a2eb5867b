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

#endif /* EJKERNEL_EJKERNEL_OPS_H_ */
