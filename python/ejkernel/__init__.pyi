# Made by `python -m ejkernel._stubs --write` from the library's declarations.
# fmt: off
# ruff: noqa: I001
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, overload

# JAX arrays, NumPy arrays or torch tensors: results are of the kind that is passed.
Array = TypeVar("Array")

from ejkernel import kernels as kernels
from ejkernel import modules as modules
from ejkernel import ops as ops
from ejkernel import xla_utils as xla_utils
from ejkernel._explain import explain as explain
from ejkernel._explain import tune as tune
from ejkernel._labels import autotune_lowered as autotune_lowered
from ejkernel._labels import extract_labels_from_hlo_text as extract_labels_from_hlo_text
from ejkernel._labels import find_labels_in_lowered as find_labels_in_lowered
from ejkernel._labels import labels_to_configs as labels_to_configs
from ejkernel._labels import planned_calls_in as planned_calls_in
from ejkernel._library import EjkernelError as EjkernelError
from ejkernel._library import Internal as Internal
from ejkernel._library import InvalidArgument as InvalidArgument
from ejkernel._library import NoConfig as NoConfig
from ejkernel._library import OutOfMemory as OutOfMemory
from ejkernel._library import Unsupported as Unsupported
from ejkernel.kernels._platforms import Backend as Backend
from ejkernel.kernels._platforms import Platform as Platform
from ejkernel.kernels._registry import kernel_registry as kernel_registry
__version__: str

class FlashAttentionResult(NamedTuple, Generic[Array]):
    out: Annotated[Array, "result@query[batch, q_len, num_q_heads, value_dim] ; result@query[total_q, num_q_heads, value_dim]"]
    lse: Annotated[Array, "stats@query[batch, num_q_heads, q_len] ; stats@query[num_q_heads, total_q]"]

class FlashAttentionBackwardResult(NamedTuple, Generic[Array]):
    query: Annotated[Array, "@query[batch, q_len, num_q_heads, head_dim] ; @query[total_q, num_q_heads, head_dim]"]
    key: Annotated[Array, "@key[batch, kv_len, num_kv_heads, head_dim] ; @key[total_k, num_kv_heads, head_dim]"]
    value: Annotated[Array, "@value[batch, kv_len, num_kv_heads, value_dim] ; @value[total_k, num_kv_heads, value_dim]"]
    bias: Annotated[Array, "@bias?[batch/1, num_q_heads/1, q_len/1, kv_len] ; -"] | None
    softmax_aux: Annotated[Array, "@softmax_aux?[num_q_heads, num_sinks] | @softmax_aux?[num_sinks]"] | None

class AttentionResult(NamedTuple, Generic[Array]):
    out: Annotated[Array, "result@query[batch, q_len, num_q_heads, value_dim]"]
    weights: Annotated[Array, "@query[batch, num_q_heads, q_len, kv_len]"]

class AttentionBackwardResult(NamedTuple, Generic[Array]):
    query: Annotated[Array, "@query[batch, q_len, num_q_heads, head_dim]"]
    key: Annotated[Array, "@key[batch, kv_len, num_kv_heads, head_dim]"]
    value: Annotated[Array, "@value[batch, kv_len, num_kv_heads, value_dim]"]
    bias: Annotated[Array, "@bias?[batch/1, num_q_heads/1, q_len/1, kv_len]"] | None
    softmax_aux: Annotated[Array, "@softmax_aux?[num_q_heads, num_sinks] | @softmax_aux?[num_sinks]"] | None

class ScaledDotProductAttentionResult(NamedTuple, Generic[Array]):
    out: Annotated[Array, "@query[batch, q_len, num_q_heads, value_dim]"]
    lse: Annotated[Array, "stats@query[batch, num_q_heads, q_len]"]

class ScaledDotProductAttentionBackwardResult(NamedTuple, Generic[Array]):
    query: Annotated[Array, "@query[batch, q_len, num_q_heads, head_dim]"]
    key: Annotated[Array, "@key[batch, kv_len, num_kv_heads, head_dim]"]
    value: Annotated[Array, "@value[batch, kv_len, num_kv_heads, value_dim]"]
    bias: Annotated[Array, "@bias?[batch/1, num_q_heads/1, q_len/1, kv_len]"] | None

class PageAttentionResult(NamedTuple, Generic[Array]):
    out: Annotated[Array, "@query[num_seqs, num_q_heads, value_dim]"]
    lse: Annotated[Array, "stats@query[num_seqs, num_q_heads]"]

class PageAppendResult(NamedTuple, Generic[Array]):
    key_cache: Annotated[Array, "@key_cache&[num_pages, page_size, num_kv_heads, head_dim] ; @key_cache&[num_pages, num_kv_heads, page_size, head_dim]"]
    value_cache: Annotated[Array, "@value_cache&[num_pages, page_size, num_kv_heads, value_dim] ; @value_cache&[num_pages, num_kv_heads, page_size, value_dim]"]

class RaggedDecodeAttentionResult(NamedTuple, Generic[Array]):
    out: Annotated[Array, "@query[batch, num_q_heads, value_dim] ; @query[batch, 1, num_q_heads, value_dim]"]
    lse: Annotated[Array, "stats@query[batch, num_q_heads]"]

class RaggedPageAttentionResult(NamedTuple, Generic[Array]):
    out: Annotated[Array, "@queries[total_tokens, num_q_heads, head_dim]"]
    lse: Annotated[Array, "stats@queries[num_q_heads, total_tokens]"]

class RaggedPageAttentionV3Result(NamedTuple, Generic[Array]):
    out: Annotated[Array, "@queries[total_tokens, num_q_heads, head_dim]"]
    kv_cache: Annotated[Array, "@kv_cache&[num_pages, page_size, 2*num_kv_heads, head_dim]"]
    lse: Annotated[Array, "stats@queries[num_q_heads, total_tokens]"]

class MeanPoolingResult(NamedTuple, Generic[Array]):
    out: Annotated[Array, "@x[batch, dim] ; @x[num_seqs, dim] ; @x[batch, total_chunks, num_heads, dim] ; @x[total_chunks, num_heads, dim]"]
    chunk_offsets: Annotated[Array, "- ; - ; - ; int32[num_seqs+1]"] | None

class RecurrentAttentionResult(NamedTuple, Generic[Array]):
    out: Annotated[Array, "@query[batch, seq_len, num_q_heads, value_dim] ; @query[num_tokens, num_q_heads, value_dim]"]
    final_state: Annotated[Array, "state@query[batch, num_q_heads, key_dim, value_dim] ; state@query[num_seqs, num_q_heads, key_dim, value_dim]"]

class RecurrentAttentionBackwardResult(NamedTuple, Generic[Array]):
    query: Annotated[Array, "@query[batch, seq_len, num_q_heads, key_dim] ; @query[num_tokens, num_q_heads, key_dim]"]
    key: Annotated[Array, "@key[batch, seq_len, num_kv_heads, key_dim] ; @key[num_tokens, num_kv_heads, key_dim]"]
    value: Annotated[Array, "@value[batch, seq_len, num_kv_heads, value_dim] ; @value[num_tokens, num_kv_heads, value_dim]"]
    g: Annotated[Array, "@g?[batch, seq_len, num_q_heads] ; @g?[num_tokens, num_q_heads]"] | None
    g_gamma: Annotated[Array, "@g_gamma?[num_q_heads]"] | None
    gk: Annotated[Array, "@gk?[batch, seq_len, num_q_heads, key_dim] ; @gk?[num_tokens, num_q_heads, key_dim]"] | None
    gv: Annotated[Array, "@gv?[batch, seq_len, num_q_heads, value_dim] ; @gv?[num_tokens, num_q_heads, value_dim]"] | None
    initial_state: Annotated[Array, "@initial_state?[batch, num_q_heads, key_dim, value_dim] ; @initial_state?[num_seqs, num_q_heads, key_dim, value_dim]"] | None

class GlaAttentionResult(NamedTuple, Generic[Array]):
    out: Annotated[Array, "@query[batch, seq_len, num_q_heads, value_dim] ; @query[num_tokens, num_q_heads, value_dim]"]
    final_state: Annotated[Array, "state@query[batch, num_q_heads, key_dim, value_dim] ; state@query[num_seqs, num_q_heads, key_dim, value_dim]"]

class GlaAttentionBackwardResult(NamedTuple, Generic[Array]):
    query: Annotated[Array, "@query[batch, seq_len, num_q_heads, key_dim] ; @query[num_tokens, num_q_heads, key_dim]"]
    key: Annotated[Array, "@key[batch, seq_len, num_kv_heads, key_dim] ; @key[num_tokens, num_kv_heads, key_dim]"]
    value: Annotated[Array, "@value[batch, seq_len, num_kv_heads, value_dim] ; @value[num_tokens, num_kv_heads, value_dim]"]
    gk: Annotated[Array, "@gk?[batch, seq_len, num_q_heads, key_dim] ; @gk?[num_tokens, num_q_heads, key_dim]"] | None
    g_gamma: Annotated[Array, "@g_gamma?[num_q_heads]"] | None
    initial_state: Annotated[Array, "@initial_state?[batch, num_q_heads, key_dim, value_dim] ; @initial_state?[num_seqs, num_q_heads, key_dim, value_dim]"] | None

class LightningAttentionResult(NamedTuple, Generic[Array]):
    out: Annotated[Array, "@query[batch, seq_len, num_q_heads, value_dim] ; @query[num_tokens, num_q_heads, value_dim]"]
    final_state: Annotated[Array, "state@query[batch, num_q_heads, key_dim, value_dim] ; state@query[num_seqs, num_q_heads, key_dim, value_dim]"]

class LightningAttentionBackwardResult(NamedTuple, Generic[Array]):
    query: Annotated[Array, "@query[batch, seq_len, num_q_heads, key_dim] ; @query[num_tokens, num_q_heads, key_dim]"]
    key: Annotated[Array, "@key[batch, seq_len, num_kv_heads, key_dim] ; @key[num_tokens, num_kv_heads, key_dim]"]
    value: Annotated[Array, "@value[batch, seq_len, num_kv_heads, value_dim] ; @value[num_tokens, num_kv_heads, value_dim]"]
    initial_state: Annotated[Array, "@initial_state?[batch, num_q_heads, key_dim, value_dim] ; @initial_state?[num_seqs, num_q_heads, key_dim, value_dim]"] | None

class GroupedMatmulBackwardResult(NamedTuple, Generic[Array]):
    lhs: Annotated[Array, "@lhs[m, k] ; @lhs[m, k] ; @lhs[batch, num_groups, m, k] ; @lhs[batch, num_groups, m, k]"]
    rhs: Annotated[Array, "@rhs[num_groups, k, n] ; @rhs[num_groups, n, k] ; @rhs[batch, num_groups, k, n] ; @rhs[batch, num_groups, n, k]"]
    existing_out: Annotated[Array, "@existing_out?[m, n] ; @existing_out?[m, n] ; @existing_out?[batch, num_groups, m, n] ; @existing_out?[batch, num_groups, m, n]"] | None

class RnnResult(NamedTuple, Generic[Array]):
    out: Annotated[Array, "@input[batch, seq_len, layer_size]"]
    final_hidden: Annotated[Array, "@input[num_states, batch, hidden_size]"]
    final_cell: Annotated[Array, "@input[num_states, batch, hidden_size] ; - ; @input[num_states, batch, hidden_size] ; -"] | None
    gates: Annotated[Array, "- ; - ; stats@input[num_states, batch, seq_len, kept_size] ; stats@input[num_states, batch, seq_len, kept_size]"] | None

class RnnBackwardResult(NamedTuple, Generic[Array]):
    input: Annotated[Array, "@input[batch, seq_len, input_size]"]
    hidden: Annotated[Array, "@input?[num_states, batch, hidden_size] | @input?[batch, hidden_size]"] | None
    cell: Annotated[Array, "@input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ; - ; @input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ; -"] | None
    weight_ih: Annotated[Array, "@input[num_directions, gate_rows, input_size]"]
    weight_ih_upper: Annotated[Array, "@input?[num_upper, gate_rows, layer_size]"] | None
    weight_hh: Annotated[Array, "@input[num_states, gate_rows, hidden_size]"]
    bias_ih: Annotated[Array, "@input?[num_states, gate_rows]"] | None
    bias_hh: Annotated[Array, "@input?[num_states, gate_rows]"] | None

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
def flash_attention_backward(
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
    out: Annotated[Array, "result@query[batch, q_len, num_q_heads, value_dim] ; result@query[total_q, num_q_heads, value_dim]"] | None = None,
    lse: Annotated[Array, "stats@query[batch, num_q_heads, q_len] ; stats@query[num_q_heads, total_q]"] | None = None,
    d_out: Annotated[Array, "result@query[batch, q_len, num_q_heads, value_dim] ; result@query[total_q, num_q_heads, value_dim]"] | None = None,
    d_lse: Annotated[Array, "stats@query?[batch, num_q_heads, q_len] ; stats@query?[num_q_heads, total_q]"] | None = None,
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
) -> FlashAttentionBackwardResult[Array]:
    """Gradient of flash_attention for query, key, value, bias and sinks."""
@overload
def flash_attention_backward(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

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
def attention_backward(
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
    d_out: Annotated[Array, "result@query?[batch, q_len, num_q_heads, value_dim]"] | None = None,
    d_weights: Annotated[Array, "@query?[batch, num_q_heads, q_len, kv_len]"] | None = None,
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
) -> AttentionBackwardResult[Array]:
    """Gradient of attention for query, key, value, bias and sinks."""
@overload
def attention_backward(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

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
def scaled_dot_product_attention_backward(
    query: Annotated[Array, "float[batch, q_len, num_q_heads, head_dim]"],
    key: Annotated[Array, "@query[batch, kv_len, num_kv_heads, head_dim]"],
    value: Annotated[Array, "@query[batch, kv_len, num_kv_heads, value_dim]"],
    bias: Annotated[Array, "float?[batch/1, num_q_heads/1, q_len/1, kv_len]"] | None = None,
    attention_mask: Annotated[Array, "bool?[batch/1, num_q_heads/1, q_len/1, kv_len]"] | None = None,
    query_seq_lengths: Annotated[Array, "int32?[batch]"] | None = None,
    key_value_seq_lengths: Annotated[Array, "int32?[batch]"] | None = None,
    out: Annotated[Array, "@query[batch, q_len, num_q_heads, value_dim]"] | None = None,
    lse: Annotated[Array, "stats@query[batch, num_q_heads, q_len]"] | None = None,
    d_out: Annotated[Array, "@query[batch, q_len, num_q_heads, value_dim]"] | None = None,
    d_lse: Annotated[Array, "stats@query?[batch, num_q_heads, q_len]"] | None = None,
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
) -> ScaledDotProductAttentionBackwardResult[Array]:
    """Gradient of scaled_dot_product_attention for query, key, value and bias."""
@overload
def scaled_dot_product_attention_backward(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def page_attention(
    query: Annotated[Array, "float[num_seqs, num_q_heads, head_dim]"],
    key_cache: Annotated[Array, "stored[num_pages, page_size, num_kv_heads, head_dim] ; stored[num_pages, num_kv_heads, page_size, head_dim]"],
    value_cache: Annotated[Array, "@key_cache[num_pages, page_size, num_kv_heads, value_dim] ; @key_cache[num_pages, num_kv_heads, page_size, value_dim]"],
    context_lens: Annotated[Array, "int32[num_seqs]"],
    block_tables: Annotated[Array, "int32[num_seqs, max_num_pages]"],
    softmax_aux: Annotated[Array, "float?[num_q_heads, num_sinks] | float?[num_sinks]"] | None = None,
    k_scale: Annotated[Array, "float32?[] | float32?[num_kv_heads] | float32?[num_pages, page_size, num_kv_heads, num_k_groups]"] | None = None,
    v_scale: Annotated[Array, "float32?[] | float32?[num_kv_heads] | float32?[num_pages, page_size, num_kv_heads, num_v_groups]"] | None = None,
    *,
    softmax_scale: float | None = None,
    sliding_window: int | tuple[int, int] | None = None,
    attention_sink_size: int = 0,
    logits_soft_cap: float | None = None,
    batch_invariant: bool = False,
    cache_layout: Literal["page_major", "head_major"] = "page_major",
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> PageAttentionResult[Array]:
    """Decode attention over a paged cache: one query per sequence, windows, sinks, soft cap, 8-bit and int4 caches."""
@overload
def page_attention(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def page_append(
    keys: Annotated[Array, "float[total_tokens, num_kv_heads, head_dim]"],
    values: Annotated[Array, "@keys[total_tokens, num_kv_heads, value_dim]"],
    key_cache: Annotated[Array, "number[num_pages, page_size, num_kv_heads, head_dim] ; number[num_pages, num_kv_heads, page_size, head_dim]"],
    value_cache: Annotated[Array, "@key_cache[num_pages, page_size, num_kv_heads, value_dim] ; @key_cache[num_pages, num_kv_heads, page_size, value_dim]"],
    context_lens: Annotated[Array, "int32[num_seqs]"],
    block_tables: Annotated[Array, "int32[num_seqs, max_num_pages]"],
    query_start_loc: Annotated[Array, "int32[num_seqs+1]"],
    k_scale: Annotated[Array, "float32?[] | float32?[num_kv_heads]"] | None = None,
    v_scale: Annotated[Array, "float32?[] | float32?[num_kv_heads]"] | None = None,
    *,
    cache_layout: Literal["page_major", "head_major"] = "page_major",
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> PageAppendResult[Array]:
    """Stores new keys and values in a paged cache, in place."""
@overload
def page_append(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def ragged_decode_attention(
    query: Annotated[Array, "float[batch, num_q_heads, head_dim] ; float[batch, 1, num_q_heads, head_dim]"],
    key: Annotated[Array, "stored[batch, kv_len, num_kv_heads, head_dim]"],
    value: Annotated[Array, "@key[batch, kv_len, num_kv_heads, value_dim]"],
    sequence_start: Annotated[Array, "int32[batch]"],
    sequence_end: Annotated[Array, "int32[batch]"],
    softmax_aux: Annotated[Array, "float?[num_q_heads, num_sinks] | float?[num_sinks]"] | None = None,
    k_scale: Annotated[Array, "float32?[] | float32?[num_kv_heads] | float32?[batch, kv_len, num_kv_heads, num_k_groups]"] | None = None,
    v_scale: Annotated[Array, "float32?[] | float32?[num_kv_heads] | float32?[batch, kv_len, num_kv_heads, num_v_groups]"] | None = None,
    *,
    softmax_scale: float | None = None,
    sliding_window: int | tuple[int, int] | None = None,
    attention_sink_size: int = 0,
    logits_soft_cap: float | None = None,
    batch_invariant: bool = False,
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> RaggedDecodeAttentionResult[Array]:
    """Decode attention over a contiguous cache, from a start to an end of its own in each batch entry."""
@overload
def ragged_decode_attention(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def ragged_page_attention(
    queries: Annotated[Array, "float[total_tokens, num_q_heads, head_dim]"],
    kv_pages: Annotated[Array, "stored[num_pages, page_size, 2*num_kv_heads, head_dim]"],
    context_lens: Annotated[Array, "int32[max_num_seqs]"],
    block_tables: Annotated[Array, "int32[max_num_seqs, max_num_pages]"],
    query_start_loc: Annotated[Array, "int32[max_num_seqs+1]"],
    num_seqs: Annotated[Array, "int32[1]"],
    softmax_aux: Annotated[Array, "float?[num_q_heads, num_sinks] | float?[num_sinks]"] | None = None,
    k_scale: Annotated[Array, "float32?[] | float32?[num_kv_heads] | float32?[num_pages, page_size, num_kv_heads, num_k_groups]"] | None = None,
    v_scale: Annotated[Array, "float32?[] | float32?[num_kv_heads] | float32?[num_pages, page_size, num_kv_heads, num_v_groups]"] | None = None,
    *,
    softmax_scale: float | None = None,
    sliding_window: int | tuple[int, int] | None = None,
    attention_sink_size: int = 0,
    logits_soft_cap: float | None = None,
    batch_invariant: bool = False,
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> RaggedPageAttentionResult[Array]:
    """Attention of packed queries, prefill and decode mixed, over a paged cache of interleaved keys and values."""
@overload
def ragged_page_attention(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def ragged_page_attention_v3(
    queries: Annotated[Array, "float[total_tokens, num_q_heads, head_dim]"],
    keys: Annotated[Array, "@queries[total_tokens, num_kv_heads, head_dim]"],
    values: Annotated[Array, "@queries[total_tokens, num_kv_heads, head_dim]"],
    kv_cache: Annotated[Array, "number[num_pages, page_size, 2*num_kv_heads, head_dim]"],
    context_lens: Annotated[Array, "int32[max_num_seqs]"],
    block_tables: Annotated[Array, "int32[table_num_pages]"],
    query_start_loc: Annotated[Array, "int32[max_num_seqs+1]"],
    distribution: Annotated[Array, "int32[3]"],
    softmax_aux: Annotated[Array, "float?[num_q_heads, num_sinks] | float?[num_sinks]"] | None = None,
    q_scale: Annotated[Array, "float32?[]"] | None = None,
    k_scale: Annotated[Array, "float32?[] | float32?[num_kv_heads]"] | None = None,
    v_scale: Annotated[Array, "float32?[] | float32?[num_kv_heads]"] | None = None,
    *,
    softmax_scale: float | None = None,
    sliding_window: int | tuple[int, int] | None = None,
    attention_sink_size: int = 0,
    logits_soft_cap: float | None = None,
    batch_invariant: bool = False,
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> RaggedPageAttentionV3Result[Array]:
    """Stores new keys and values in a paged cache, then attends: prefill and decode mixed."""
@overload
def ragged_page_attention_v3(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

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
def mean_pooling_backward(
    d_out: Annotated[Array, "float[batch, dim] ; float[num_seqs, dim] ; float[batch, total_chunks, num_heads, dim] ; float[total_chunks, num_heads, dim]"],
    mask: Annotated[Array, "bool?[batch, num_tokens] ; - ; - ; -"] | None = None,
    cu_seqlens: Annotated[Array, "- ; int32[num_seqs+1] ; - ; int32[num_seqs+1]"] | None = None,
    *,
    chunk_size: int | None = None,
    num_tokens: int | None = None,
    platform: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    config: Mapping[str, int] | None = None,
    policy: Literal["autotune", "heuristics", "cached"] | None = None,
    return_status: Literal[False] = False,
) -> Annotated[Array, "@d_out[batch, num_tokens, dim] ; @d_out[num_tokens, dim] ; @d_out[batch, num_tokens, num_heads, dim] ; @d_out[num_tokens, num_heads, dim]"]:
    """Gradient of mean_pooling for x."""
@overload
def mean_pooling_backward(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

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
def recurrent_attention_backward(
    query: Annotated[Array, "float[batch, seq_len, num_q_heads, key_dim] ; float[num_tokens, num_q_heads, key_dim]"],
    key: Annotated[Array, "@query[batch, seq_len, num_kv_heads, key_dim] ; @query[num_tokens, num_kv_heads, key_dim]"],
    value: Annotated[Array, "@query[batch, seq_len, num_kv_heads, value_dim] ; @query[num_tokens, num_kv_heads, value_dim]"],
    g: Annotated[Array, "float?[batch, seq_len, num_q_heads] ; float?[num_tokens, num_q_heads]"] | None = None,
    g_gamma: Annotated[Array, "float?[num_q_heads]"] | None = None,
    gk: Annotated[Array, "float?[batch, seq_len, num_q_heads, key_dim] ; float?[num_tokens, num_q_heads, key_dim]"] | None = None,
    gv: Annotated[Array, "float?[batch, seq_len, num_q_heads, value_dim] ; float?[num_tokens, num_q_heads, value_dim]"] | None = None,
    initial_state: Annotated[Array, "float?[batch, num_q_heads, key_dim, value_dim] ; float?[num_seqs, num_q_heads, key_dim, value_dim]"] | None = None,
    cu_seqlens: Annotated[Array, "- ; int32[num_seqs+1]"] | None = None,
    d_out: Annotated[Array, "@query?[batch, seq_len, num_q_heads, value_dim] ; @query?[num_tokens, num_q_heads, value_dim]"] | None = None,
    d_final_state: Annotated[Array, "state@query?[batch, num_q_heads, key_dim, value_dim] ; state@query?[num_seqs, num_q_heads, key_dim, value_dim]"] | None = None,
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
) -> RecurrentAttentionBackwardResult[Array]:
    """Gradient of recurrent_attention for query, key, value, every gate and the initial state."""
@overload
def recurrent_attention_backward(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

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
def gla_attention_backward(
    query: Annotated[Array, "float[batch, seq_len, num_q_heads, key_dim] ; float[num_tokens, num_q_heads, key_dim]"],
    key: Annotated[Array, "@query[batch, seq_len, num_kv_heads, key_dim] ; @query[num_tokens, num_kv_heads, key_dim]"],
    value: Annotated[Array, "@query[batch, seq_len, num_kv_heads, value_dim] ; @query[num_tokens, num_kv_heads, value_dim]"],
    gk: Annotated[Array, "float?[batch, seq_len, num_q_heads, key_dim] ; float?[num_tokens, num_q_heads, key_dim]"] | None = None,
    g_gamma: Annotated[Array, "float?[num_q_heads]"] | None = None,
    initial_state: Annotated[Array, "float?[batch, num_q_heads, key_dim, value_dim] ; float?[num_seqs, num_q_heads, key_dim, value_dim]"] | None = None,
    cu_seqlens: Annotated[Array, "- ; int32[num_seqs+1]"] | None = None,
    d_out: Annotated[Array, "@query?[batch, seq_len, num_q_heads, value_dim] ; @query?[num_tokens, num_q_heads, value_dim]"] | None = None,
    d_final_state: Annotated[Array, "state@query?[batch, num_q_heads, key_dim, value_dim] ; state@query?[num_seqs, num_q_heads, key_dim, value_dim]"] | None = None,
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
) -> GlaAttentionBackwardResult[Array]:
    """Gradient of gla_attention for query, key, value, both gates and the initial state."""
@overload
def gla_attention_backward(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

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
def lightning_attention_backward(
    query: Annotated[Array, "float[batch, seq_len, num_q_heads, key_dim] ; float[num_tokens, num_q_heads, key_dim]"],
    key: Annotated[Array, "@query[batch, seq_len, num_kv_heads, key_dim] ; @query[num_tokens, num_kv_heads, key_dim]"],
    value: Annotated[Array, "@query[batch, seq_len, num_kv_heads, value_dim] ; @query[num_tokens, num_kv_heads, value_dim]"],
    initial_state: Annotated[Array, "float?[batch, num_q_heads, key_dim, value_dim] ; float?[num_seqs, num_q_heads, key_dim, value_dim]"] | None = None,
    cu_seqlens: Annotated[Array, "- ; int32[num_seqs+1]"] | None = None,
    d_out: Annotated[Array, "@query?[batch, seq_len, num_q_heads, value_dim] ; @query?[num_tokens, num_q_heads, value_dim]"] | None = None,
    d_final_state: Annotated[Array, "state@query?[batch, num_q_heads, key_dim, value_dim] ; state@query?[num_seqs, num_q_heads, key_dim, value_dim]"] | None = None,
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
) -> LightningAttentionBackwardResult[Array]:
    """Gradient of lightning_attention for query, key, value and the initial state."""
@overload
def lightning_attention_backward(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

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
def grouped_matmul_backward(
    lhs: Annotated[Array, "float[m, k] ; float[m, k] ; float[batch, num_groups, m, k] ; float[batch, num_groups, m, k]"],
    rhs: Annotated[Array, "@lhs[num_groups, k, n] ; @lhs[num_groups, n, k] ; @lhs[batch, num_groups, k, n] ; @lhs[batch, num_groups, n, k]"],
    group_sizes: Annotated[Array, "int32[num_all_groups] ; int32[num_all_groups] ; - ; -"] | None = None,
    existing_out: Annotated[Array, "result@lhs?[m, n] ; result@lhs?[m, n] ; result@lhs?[batch, num_groups, m, n] ; result@lhs?[batch, num_groups, m, n]"] | None = None,
    rhs_mask: Annotated[Array, "bool?[num_groups, num_mask_k_blocks, num_mask_n_blocks] ; bool?[num_groups, num_mask_k_blocks, num_mask_n_blocks] ; - ; -"] | None = None,
    out_mask: Annotated[Array, "bool?[num_mask_m_blocks, num_mask_n_blocks] ; bool?[num_mask_m_blocks, num_mask_n_blocks] ; - ; -"] | None = None,
    d_out: Annotated[Array, "result@lhs[m, n] ; result@lhs[m, n] ; result@lhs[batch, num_groups, m, n] ; result@lhs[batch, num_groups, m, n]"] | None = None,
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
) -> GroupedMatmulBackwardResult[Array]:
    """Gradient of grouped_matmul for lhs, rhs and existing_out."""
@overload
def grouped_matmul_backward(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

@overload
def transposed_grouped_matmul(
    lhs: Annotated[Array, "float[m, k]"],
    d_out: Annotated[Array, "float[m, n]"],
    group_sizes: Annotated[Array, "int32[num_all_groups]"],
    rhs_mask: Annotated[Array, "bool?[num_groups, num_mask_k_blocks, num_mask_n_blocks]"] | None = None,
    out_mask: Annotated[Array, "bool?[num_mask_m_blocks, num_mask_n_blocks]"] | None = None,
    *,
    transpose_rhs: bool = False,
    group_offset: int = 0,
    num_groups: int | None = None,
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
) -> Annotated[Array, "result@lhs[num_groups, k, n] ; result@lhs[num_groups, n, k]"]:
    """A matrix per group: the transposed rows of one tensor times those of another. The gradient of grouped_matmul for rhs."""
@overload
def transposed_grouped_matmul(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...

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

@overload
def rnn_backward(
    input: Annotated[Array, "float[batch, seq_len, input_size]"],
    hidden: Annotated[Array, "@input?[num_states, batch, hidden_size] | @input?[batch, hidden_size]"] | None = None,
    cell: Annotated[Array, "@input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ; - ; @input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ; -"] | None = None,
    weight_ih: Annotated[Array, "@input[num_directions, gate_rows, input_size]"] | None = None,
    weight_ih_upper: Annotated[Array, "@input?[num_upper, gate_rows, layer_size]"] | None = None,
    weight_hh: Annotated[Array, "@input[num_states, gate_rows, hidden_size]"] | None = None,
    bias_ih: Annotated[Array, "@input?[num_states, gate_rows]"] | None = None,
    bias_hh: Annotated[Array, "@input?[num_states, gate_rows]"] | None = None,
    lengths: Annotated[Array, "int32?[batch]"] | None = None,
    gates: Annotated[Array, "- ; - ; stats@input?[num_states, batch, seq_len, kept_size] ; stats@input?[num_states, batch, seq_len, kept_size]"] | None = None,
    d_out: Annotated[Array, "@input?[batch, seq_len, layer_size]"] | None = None,
    d_final_hidden: Annotated[Array, "@input?[num_states, batch, hidden_size]"] | None = None,
    d_final_cell: Annotated[Array, "@input?[num_states, batch, hidden_size] ; - ; @input?[num_states, batch, hidden_size] ; -"] | None = None,
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
) -> RnnBackwardResult[Array]:
    """Gradient of rnn for input, states, weights and biases."""
@overload
def rnn_backward(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ...
