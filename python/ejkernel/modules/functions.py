"""The operations with the argument order and the keywords of the Python library that came before. Every keyword that
ejkernel's own function of the name takes (causal_align, q_segment_ids, seqused_k, config, ...) is taken as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ejkernel.modules._call import call

Array = Any


def _seed(seed: Any) -> Any:
    """An integer, or two of them, or a key of jax.random, as the uint32[2] that dropout takes."""
    if seed is None:
        return None
    if isinstance(seed, int):
        return jnp.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], jnp.uint32)
    if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(seed).astype(jnp.uint32)[-2:]
    return jnp.asarray(seed).astype(jnp.uint32)


def _dropout(prob: float, seed: Any) -> dict[str, Any]:
    return {"dropout_prob": prob, "dropout_seed": _seed(seed)} if prob else {}


def flash_attention(
    query: Array,
    key: Array,
    value: Array,
    attention_mask: Array | None = None,
    bias: Array | None = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    dropout_prob: float = 0.0,
    dropout_seed: Any = None,
    *,
    sliding_window: int | tuple[int, int] | None = None,
    logits_soft_cap: float | None = None,
    cum_seqlens_q: Array | None = None,
    cum_seqlens_k: Array | None = None,
    softmax_aux: Array | None = None,
    normalize_output: bool = True,
    precision: Any = None,
    logits_dtype: Any = None,
    platform: Any = None,
    cfg: Any = None,
    _cfg: Any = None,
    **more: Any,
) -> Array:
    """softmax(softmax_scale * query key^T) value, [batch, q_len, num_q_heads, value_dim]. See
    ejkernel.flash_attention, which returns the log-sum-exp as well. `precision` and `logits_dtype` change nothing:
    logits are float32."""
    arguments = dict(
        query=query,
        key=key,
        value=value,
        attention_mask=attention_mask,
        bias=bias,
        causal=causal,
        softmax_scale=softmax_scale,
        sliding_window=sliding_window,
        logits_soft_cap=logits_soft_cap,
        cum_seqlens_q=cum_seqlens_q,
        cum_seqlens_k=cum_seqlens_k,
        softmax_aux=softmax_aux,
        normalize_output=normalize_output,
    )
    return call("flash_attention", arguments | _dropout(dropout_prob, dropout_seed) | more, platform, cfg, _cfg)


def attention(
    query: Array,
    key: Array,
    value: Array,
    attention_mask: Array | None = None,
    bias: Array | None = None,
    init_bias: Callable[[], Array] | None = None,
    deterministic: bool = True,
    dropout_rng: Any = None,
    softmax_aux: Array | None = None,
    softmax_scale: float | None = None,
    logits_soft_cap: float | None = None,
    dtype: Any = None,
    softmax_dtype: Any = None,
    dropout_prob: float = 0.0,
    causal: bool = False,
    sliding_window: int | tuple[int, int] | None = None,
    *,
    platform: Any = None,
    cfg: Any = None,
    _cfg: Any = None,
    **more: Any,
) -> tuple[Array, Array]:
    """Attention and its weights, [batch, num_heads, q_len, kv_len]. `deterministic` means without dropout, `dtype` is
    what query, key and value are cast to. `softmax_dtype` changes nothing: the softmax is float32."""
    if dtype is not None:
        query, key, value = (jnp.asarray(x).astype(dtype) for x in (query, key, value))
    arguments = dict(
        query=query,
        key=key,
        value=value,
        attention_mask=attention_mask,
        bias=init_bias() if bias is None and init_bias is not None else bias,
        softmax_aux=softmax_aux,
        softmax_scale=softmax_scale,
        logits_soft_cap=logits_soft_cap,
        causal=causal,
        sliding_window=sliding_window,
    )
    dropout = {} if deterministic else _dropout(dropout_prob, dropout_rng)
    return call("attention", arguments | dropout | more, platform, cfg, _cfg)


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    attention_mask: Array | None = None,
    bias: Array | None = None,
    init_bias: Callable[[], Array] | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    sliding_window: int | tuple[int, int] | None = None,
    cum_seqlens_q: Array | None = None,
    cum_seqlens_k: Array | None = None,
    *,
    platform: Any = None,
    cfg: Any = None,
    _cfg: Any = None,
    **more: Any,
) -> Array:
    """Attention as jax.nn.dot_product_attention has it. `cum_seqlens_q` and `cum_seqlens_k` are lengths per batch
    entry, whatever they are called; query_seq_lengths and key_value_seq_lengths are the same."""
    arguments = dict(
        query=query,
        key=key,
        value=value,
        attention_mask=attention_mask,
        bias=init_bias() if bias is None and init_bias is not None else bias,
        softmax_scale=softmax_scale,
        causal=causal,
        sliding_window=sliding_window,
    )
    # The library's own spellings are in `more`; both at once are an error there.
    lengths = {"cum_seqlens_q": cum_seqlens_q, "cum_seqlens_k": cum_seqlens_k}
    return call("scaled_dot_product_attention", arguments | lengths | more, platform, cfg, _cfg)


def mean_pooling(
    x: Array,
    mask: Array | None = None,
    cu_seqlens: Array | None = None,
    *,
    chunk_size: int | None = None,
    platform: Any = None,
    cfg: Any = None,
    _cfg: Any = None,
    **more: Any,
) -> Array:
    """Means over tokens, of a batch, of packed sequences, or of chunks; see ejkernel.mean_pooling, which returns the
    offsets of packed chunks as well."""
    arguments = dict(x=x, mask=mask, cu_seqlens=cu_seqlens, chunk_size=chunk_size)
    return call("mean_pooling", arguments | more, platform, cfg, _cfg)
