# Made by `python -m ejkernel._stubs --write` from the library's declarations.
# fmt: off
# ruff: noqa: I001
from collections.abc import Mapping
from typing import Annotated, Any, Literal, overload

from torch import Tensor as Array

from ejkernel import AttentionResult, FlashAttentionResult, GlaAttentionResult, LightningAttentionResult, MeanPoolingResult, RecurrentAttentionResult, RnnResult, ScaledDotProductAttentionResult

@overload
def flash_attention(
    query: Annotated[Array, "number[batch, q_len, num_q_heads, head_dim] ; number[total_q, num_q_heads, head_dim]"],
    key: Annotated[Array, "@query[batch, kv_len, num_kv_heads, head_dim] ; @query[total_k, num_kv_heads, head_dim]"],
    value: Annotated[Array, "@query[batch, kv_len, num_kv_heads, value_dim] ; @query[total_k, num_kv_heads, value_dim]"],
    bias: Annotated[Array, "float?[batch/1, num_q_heads/1, q_len/1, kv_len] ; -"] | None = None,
    attention_mask: Annotated[Array, "bool?[batch/1, num_q_heads/1, q_len/1, kv_len] ; -"] | None = None,
    q_segment_ids: Annotated[Array, "int32?[batch, q_len] ; -"] | None = None,
    kv_segment_ids: Annotated[Array, "int32?[batch, kv_len] ; -"] | None = None,
    softmax_aux: Annotated[Array, "float?[num_q_heads, num_sinks] | float?[num_sinks]"] | None = None,
    dropout_seed: Annotated[Array, "uint32?[2]"] | None = None,
    q_scale: Annotated[Array, "float32?[] | float32?[num_q_heads] | float32?[batch, num_q_blocks, num_q_heads] ; float32?[] | float32?[num_q_heads]"] | None = None,
    k_scale: Annotated[Array, "float32?[] | float32?[num_kv_heads] | float32?[batch, num_kv_blocks, num_kv_heads] ; float32?[] | float32?[num_kv_heads]"] | None = None,
    v_scale: Annotated[Array, "float32?[] | float32?[num_kv_heads] | float32?[batch, num_kv_blocks, num_kv_heads] ; float32?[] | float32?[num_kv_heads]"] | None = None,
    cu_seqlens_q: Annotated[Array, "- ; int32[num_seqs+1]"] | None = None,
    cu_seqlens_k: Annotated[Array, "- ; int32[num_seqs+1]"] | None = None,
    seqused_k: Annotated[Array, "int32?[batch] ; int32?[num_seqs]"] | None = None,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    causal_align: Literal["bottom_right", "top_left"] = "bottom_right",
    sliding_window: int | tuple[int, int] | None = None,
    attention_sink_size: int = 0,
    logits_soft_cap: float | None = None,
    dropout_prob: float = 0.0,
    deterministic: bool = False,
    out_dtype: Any | None = None,
    normalize_output: bool = True,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> FlashAttentionResult[Array]:
    """Softmax attention without the score matrix: grouped heads, masks, windows, sinks, soft cap, dropout, packing."""
@overload
def flash_attention(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def attention(
    query: Annotated[Array, "float[batch, q_len, num_q_heads, head_dim]"],
    key: Annotated[Array, "@query[batch, kv_len, num_kv_heads, head_dim]"],
    value: Annotated[Array, "@query[batch, kv_len, num_kv_heads, value_dim]"],
    bias: Annotated[Array, "float?[batch/1, num_q_heads/1, q_len/1, kv_len]"] | None = None,
    attention_mask: Annotated[Array, "bool?[batch/1, num_q_heads/1, q_len/1, kv_len]"] | None = None,
    q_segment_ids: Annotated[Array, "int32?[batch, q_len]"] | None = None,
    kv_segment_ids: Annotated[Array, "int32?[batch, kv_len]"] | None = None,
    softmax_aux: Annotated[Array, "float?[num_q_heads, num_sinks] | float?[num_sinks]"] | None = None,
    dropout_seed: Annotated[Array, "uint32?[2]"] | None = None,
    seqused_k: Annotated[Array, "int32?[batch]"] | None = None,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    causal_align: Literal["bottom_right", "top_left"] = "bottom_right",
    sliding_window: int | tuple[int, int] | None = None,
    attention_sink_size: int = 0,
    logits_soft_cap: float | None = None,
    dropout_prob: float = 0.0,
    deterministic: bool = False,
    out_dtype: Any | None = None,
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> AttentionResult[Array]:
    """Softmax attention that returns the weights as well: grouped heads, masks, windows, sinks, soft cap, dropout."""
@overload
def attention(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def scaled_dot_product_attention(
    query: Annotated[Array, "float[batch, q_len, num_q_heads, head_dim]"],
    key: Annotated[Array, "@query[batch, kv_len, num_kv_heads, head_dim]"],
    value: Annotated[Array, "@query[batch, kv_len, num_kv_heads, value_dim]"],
    bias: Annotated[Array, "float?[batch/1, num_q_heads/1, q_len/1, kv_len]"] | None = None,
    attention_mask: Annotated[Array, "bool?[batch/1, num_q_heads/1, q_len/1, kv_len]"] | None = None,
    query_seq_lengths: Annotated[Array, "int32?[batch]"] | None = None,
    key_value_seq_lengths: Annotated[Array, "int32?[batch]"] | None = None,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    causal_align: Literal["bottom_right", "top_left"] = "top_left",
    sliding_window: int | tuple[int, int] | None = None,
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> ScaledDotProductAttentionResult[Array]:
    """flash_attention behind the usual signature: lengths per batch entry, causal from the top left."""
@overload
def scaled_dot_product_attention(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def mean_pooling(
    x: Annotated[Array, "float[batch, num_tokens, dim] ; float[num_tokens, dim] ; float[batch, num_tokens, num_heads, dim] ; float[num_tokens, num_heads, dim]"],
    mask: Annotated[Array, "bool?[batch, num_tokens] ; - ; - ; -"] | None = None,
    cu_seqlens: Annotated[Array, "- ; int32[num_seqs+1] ; - ; int32[num_seqs+1]"] | None = None,
    *,
    chunk_size: int | None = None,
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> MeanPoolingResult[Array]:
    """Mean over each sequence's rows, or over each chunk of them: masked, packed, per chunk."""
@overload
def mean_pooling(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def recurrent_attention(
    query: Annotated[Array, "float[batch, seq_len, num_q_heads, key_dim] ; float[num_tokens, num_q_heads, key_dim]"],
    key: Annotated[Array, "@query[batch, seq_len, num_kv_heads, key_dim] ; @query[num_tokens, num_kv_heads, key_dim]"],
    value: Annotated[Array, "@query[batch, seq_len, num_kv_heads, value_dim] ; @query[num_tokens, num_kv_heads, value_dim]"],
    g: Annotated[Array, "float?[batch, seq_len, num_q_heads] ; float?[num_tokens, num_q_heads]"] | None = None,
    g_gamma: Annotated[Array, "float?[num_q_heads]"] | None = None,
    gk: Annotated[Array, "float?[batch, seq_len, num_q_heads, key_dim] ; float?[num_tokens, num_q_heads, key_dim]"] | None = None,
    gv: Annotated[Array, "float?[batch, seq_len, num_q_heads, value_dim] ; float?[num_tokens, num_q_heads, value_dim]"] | None = None,
    initial_state: Annotated[Array, "float?[batch, num_q_heads, key_dim, value_dim] ; float?[num_seqs, num_q_heads, key_dim, value_dim]"] | None = None,
    cu_seqlens: Annotated[Array, "- ; int32[num_seqs+1]"] | None = None,
    *,
    softmax_scale: float | None = None,
    reverse: bool = False,
    state_dtype: Any | None = None,
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> RecurrentAttentionResult[Array]:
    """Linear attention with a decaying state: scalar, per-head, key-wise and value-wise gates, initial and final state, packing."""
@overload
def recurrent_attention(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def gla_attention(
    query: Annotated[Array, "float[batch, seq_len, num_q_heads, key_dim] ; float[num_tokens, num_q_heads, key_dim]"],
    key: Annotated[Array, "@query[batch, seq_len, num_kv_heads, key_dim] ; @query[num_tokens, num_kv_heads, key_dim]"],
    value: Annotated[Array, "@query[batch, seq_len, num_kv_heads, value_dim] ; @query[num_tokens, num_kv_heads, value_dim]"],
    gk: Annotated[Array, "float?[batch, seq_len, num_q_heads, key_dim] ; float?[num_tokens, num_q_heads, key_dim]"] | None = None,
    g_gamma: Annotated[Array, "float?[num_q_heads]"] | None = None,
    initial_state: Annotated[Array, "float?[batch, num_q_heads, key_dim, value_dim] ; float?[num_seqs, num_q_heads, key_dim, value_dim]"] | None = None,
    cu_seqlens: Annotated[Array, "- ; int32[num_seqs+1]"] | None = None,
    *,
    softmax_scale: float | None = None,
    reverse: bool = False,
    state_dtype: Any | None = None,
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> GlaAttentionResult[Array]:
    """Gated linear attention: recurrent_attention whose state decays by a gate per token and key dimension."""
@overload
def gla_attention(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def lightning_attention(
    query: Annotated[Array, "float[batch, seq_len, num_q_heads, key_dim] ; float[num_tokens, num_q_heads, key_dim]"],
    key: Annotated[Array, "@query[batch, seq_len, num_kv_heads, key_dim] ; @query[num_tokens, num_kv_heads, key_dim]"],
    value: Annotated[Array, "@query[batch, seq_len, num_kv_heads, value_dim] ; @query[num_tokens, num_kv_heads, value_dim]"],
    initial_state: Annotated[Array, "float?[batch, num_q_heads, key_dim, value_dim] ; float?[num_seqs, num_q_heads, key_dim, value_dim]"] | None = None,
    cu_seqlens: Annotated[Array, "- ; int32[num_seqs+1]"] | None = None,
    *,
    layer_idx: int | None = None,
    num_layers: int | None = None,
    softmax_scale: float | None = None,
    reverse: bool = False,
    state_dtype: Any | None = None,
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> LightningAttentionResult[Array]:
    """Lightning attention: recurrent_attention whose heads decay at fixed rates, slower in later layers."""
@overload
def lightning_attention(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def grouped_matmul(
    lhs: Annotated[Array, "number[m, k] ; number[m, k] ; number[batch, num_groups, m, k] ; number[batch, num_groups, m, k]"],
    rhs: Annotated[Array, "number[num_groups, k, n] ; number[num_groups, n, k] ; number[batch, num_groups, k, n] ; number[batch, num_groups, n, k]"],
    group_sizes: Annotated[Array, "int32[num_all_groups] ; int32[num_all_groups] ; - ; -"] | None = None,
    existing_out: Annotated[Array, "result@lhs?[m, n] ; result@lhs?[m, n] ; result@lhs?[batch, num_groups, m, n] ; result@lhs?[batch, num_groups, m, n]"] | None = None,
    lhs_scale: Annotated[Array, "float32?[] | float32?[m] | float32?[m, num_k_blocks] ; float32?[] | float32?[m] | float32?[m, num_k_blocks] ; float32?[] ; float32?[]"] | None = None,
    rhs_scale: Annotated[Array, "float32?[] | float32?[num_groups, n] | float32?[num_groups, num_k_blocks, num_n_blocks] ; float32?[] | float32?[num_groups, n] | float32?[num_groups, num_k_blocks, num_n_blocks] ; float32?[] ; float32?[]"] | None = None,
    rhs_mask: Annotated[Array, "bool?[num_groups, num_mask_k_blocks, num_mask_n_blocks] ; bool?[num_groups, num_mask_k_blocks, num_mask_n_blocks] ; - ; -"] | None = None,
    out_mask: Annotated[Array, "bool?[num_mask_m_blocks, num_mask_n_blocks] ; bool?[num_mask_m_blocks, num_mask_n_blocks] ; - ; -"] | None = None,
    *,
    transpose_rhs: bool = False,
    group_offset: int = 0,
    out_dtype: Any | None = None,
    block_m: int | None = None,
    block_k: int | None = None,
    block_n: int | None = None,
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> Annotated[Array, "result@lhs[m, n] ; result@lhs[m, n] ; result@lhs[batch, num_groups, m, n] ; result@lhs[batch, num_groups, m, n]"]:
    """Products of groups of rows with a matrix per group: ragged, batched, block-sparse, 8-bit."""
@overload
def grouped_matmul(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def rnn(
    input: Annotated[Array, "float[batch, seq_len, input_size]"],
    hidden: Annotated[Array, "@input?[num_states, batch, hidden_size] | @input?[batch, hidden_size]"] | None = None,
    cell: Annotated[Array, "@input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ; - ; @input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ; -"] | None = None,
    weight_ih: Annotated[Array, "@input[num_directions, gate_rows, input_size]"] | None = None,
    weight_ih_upper: Annotated[Array, "@input?[num_upper, gate_rows, layer_size]"] | None = None,
    weight_hh: Annotated[Array, "@input[num_states, gate_rows, hidden_size]"] | None = None,
    bias_ih: Annotated[Array, "@input?[num_states, gate_rows]"] | None = None,
    bias_hh: Annotated[Array, "@input?[num_states, gate_rows]"] | None = None,
    lengths: Annotated[Array, "int32?[batch]"] | None = None,
    *,
    cell_type: Literal["lstm", "gru", "rnn"] = "lstm",
    activation: Literal["tanh", "relu", "sigmoid", "identity"] = "tanh",
    bidirectional: bool = False,
    num_layers: int = 1,
    keep_gates: bool = False,
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> RnnResult[Array]:
    """Recurrent networks of LSTM, GRU or vanilla cells: layers, two directions, sequences of their own lengths."""
@overload
def rnn(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...
