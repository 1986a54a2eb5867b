# Made by `python -m ejkernel._stubs --write` from the library's declarations.
# fmt: off
# ruff: noqa: I001
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

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

class MeanPoolingResult(NamedTuple, Generic[Array]):
    out: Annotated[Array, "@x[batch, dim] ; @x[num_seqs, dim] ; @x[batch, total_chunks, num_heads, dim] ; @x[total_chunks, num_heads, dim]"]
    chunk_offsets: Annotated[Array, "- ; - ; - ; int32[num_seqs+1]"] | None

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
) -> FlashAttentionResult[Array]:
    """Softmax attention without the score matrix: grouped heads, masks, windows, sinks, soft cap, dropout, packing."""

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
) -> FlashAttentionBackwardResult[Array]:
    """Gradient of flash_attention for query, key, value, bias and sinks."""

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
) -> AttentionResult[Array]:
    """Softmax attention that returns the weights as well: grouped heads, masks, windows, sinks, soft cap, dropout."""

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
) -> AttentionBackwardResult[Array]:
    """Gradient of attention for query, key, value, bias and sinks."""

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
) -> ScaledDotProductAttentionResult[Array]:
    """flash_attention behind the usual signature: lengths per batch entry, causal from the top left."""

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
) -> ScaledDotProductAttentionBackwardResult[Array]:
    """Gradient of scaled_dot_product_attention for query, key, value and bias."""

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
) -> MeanPoolingResult[Array]:
    """Mean over each sequence's rows, or over each chunk of them: masked, packed, per chunk."""

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
) -> Annotated[Array, "@d_out[batch, num_tokens, dim] ; @d_out[num_tokens, dim] ; @d_out[batch, num_tokens, num_heads, dim] ; @d_out[num_tokens, num_heads, dim]"]:
    """Gradient of mean_pooling for x."""
