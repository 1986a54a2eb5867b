"""Packed sequences: lengths, offsets (cu_seqlens), masks, and which sequence, position and chunk a token belongs to.

Offsets are int32 [num_seqs + 1] and begin with 0; sequences may be empty. Where a result has a row per token, `total`
says how many tokens there are: needed under a trace, else the last offset. Tokens past the last sequence have -1."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ejkernel._library import InvalidArgument


def cdiv(a: Any, b: Any) -> Any:
    """a / b, rounded up."""
    return -(-a // b)


def prepare_lens(cu_seqlens: jax.Array) -> jax.Array:
    """Lengths from offsets."""
    return cu_seqlens[1:] - cu_seqlens[:-1]


def prepare_cu_seqlens(lens: jax.Array, out_dtype: Any = jnp.int32) -> jax.Array:
    """Offsets from lengths."""
    return jnp.pad(jnp.cumsum(jnp.asarray(lens), dtype=out_dtype), (1, 0))


def prepare_mask(lens: jax.Array, max_length: int) -> jax.Array:
    """bool [num_seqs, max_length]: true for the first `lens` tokens of each row."""
    return jnp.arange(max_length) < jnp.asarray(lens)[:, None]


def prepare_lens_from_mask(mask: Any) -> jax.Array:
    """Lengths of a padding mask [num_seqs, max_length], whose rows are ones and then zeros. On the host."""
    rows = on_host("prepare_lens_from_mask", mask) != 0
    lens = rows.sum(axis=-1, dtype=np.int32)
    holes = (rows != (np.arange(rows.shape[-1]) < lens[:, None])).any(axis=-1)
    if holes.any():
        raise InvalidArgument(
            f"prepare_lens_from_mask: every row must be ones and then zeros, got another one in row {holes.argmax()}; "
            "move its tokens to the front, or pass a mask of attention instead of lengths"
        )
    return jnp.asarray(lens)


def prepare_cu_seqlens_from_mask(mask: Any, out_dtype: Any = jnp.int32) -> jax.Array:
    """Offsets of the sequences of a padding mask. On the host."""
    return prepare_cu_seqlens(prepare_lens_from_mask(mask), out_dtype)


def prepare_sequence_ids(cu_seqlens: jax.Array, total: int | None = None) -> jax.Array:
    """int32 [total]: the sequence of each token."""
    cu_seqlens, tokens = jnp.asarray(cu_seqlens), jnp.arange(_total(cu_seqlens, total), dtype=jnp.int32)
    ids = jnp.searchsorted(cu_seqlens[1:], tokens, side="right").astype(jnp.int32)
    return jnp.where(tokens < cu_seqlens[-1], ids, -1)


def prepare_position_ids(cu_seqlens: jax.Array, total: int | None = None) -> jax.Array:
    """int32 [total]: the place of each token in its sequence."""
    return prepare_token_indices(cu_seqlens, total)[:, 1]


def prepare_token_indices(cu_seqlens: jax.Array, total: int | None = None) -> jax.Array:
    """int32 [total, 2]: sequence and position of each token."""
    cu_seqlens = jnp.asarray(cu_seqlens)
    ids = prepare_sequence_ids(cu_seqlens, total)
    positions = jnp.arange(ids.shape[0], dtype=jnp.int32) - cu_seqlens[jnp.maximum(ids, 0)].astype(jnp.int32)
    return jnp.stack([ids, jnp.where(ids < 0, -1, positions)], axis=1)


def prepare_chunk_offsets(cu_seqlens: jax.Array, chunk_size: int) -> jax.Array:
    """Offsets of the sequences' chunks."""
    return prepare_cu_seqlens(cdiv(prepare_lens(jnp.asarray(cu_seqlens)), chunk_size))


def prepare_chunk_indices(cu_seqlens: jax.Array, chunk_size: int, total: int | None = None) -> jax.Array:
    """int32 [ceil(total / chunk_size) + num_seqs, 2]: sequence and number of each chunk, -1 past the last one."""
    cu_seqlens = jnp.asarray(cu_seqlens)
    rows = cdiv(_total(cu_seqlens, total), chunk_size) + cu_seqlens.shape[0] - 1
    return prepare_token_indices(prepare_chunk_offsets(cu_seqlens, chunk_size), rows)


def chunk_local_cumsum(
    g: jax.Array,
    chunk_size: int,
    reverse: bool = False,
    softmax_scale: float | None = None,
    cu_seqlens: jax.Array | None = None,
    head_first: bool = False,
    output_dtype: Any = None,
) -> jax.Array:
    """Inclusive sums over time that begin anew every `chunk_size` tokens, and with each sequence, times
    `softmax_scale`. `g` is [batch, time, heads, ...], or with `head_first` [batch, heads, time, ...]; packed
    sequences are a batch of one."""
    axis = 2 if head_first else 1
    indices = _indices(g, axis, cu_seqlens)
    groups = jnp.stack([indices[:, 0], indices[:, 1] // chunk_size], axis=1)
    return _grouped_cumsum(g, groups, axis, reverse, softmax_scale, output_dtype)


def chunk_global_cumsum(
    s: jax.Array,
    reverse: bool = False,
    cu_seqlens: jax.Array | None = None,
    softmax_scale: float | None = None,
    head_first: bool = False,
    output_dtype: Any = None,
) -> jax.Array:
    """Inclusive sums over time of each sequence, as `chunk_local_cumsum` without chunks."""
    axis = 2 if head_first else 1
    return _grouped_cumsum(s, _indices(s, axis, cu_seqlens)[:, :1], axis, reverse, softmax_scale, output_dtype)


def _indices(x: jax.Array, axis: int, cu_seqlens: jax.Array | None) -> jax.Array:
    """Sequence and position of each step of time."""
    time = x.shape[axis]
    if cu_seqlens is None:
        return prepare_token_indices(jnp.array([0, time], jnp.int32), time)
    if x.shape[0] != 1:
        raise InvalidArgument(
            f"cumsum: packed sequences are a batch of one, got a batch of {x.shape[0]}; concatenate them"
        )
    return prepare_token_indices(cu_seqlens, time)


def _grouped_cumsum(
    x: jax.Array, groups: jax.Array, axis: int, reverse: bool, scale: float | None, dtype: Any
) -> jax.Array:
    dtype = x.dtype if dtype is None else dtype
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32)) if jnp.issubdtype(x.dtype, jnp.floating) else x
    last = groups[1:] != groups[:-1]  # whether a step ends its group, but for the last step
    starts = jnp.pad(jnp.any(last, axis=1), (0, 1) if reverse else (1, 0), constant_values=True)
    starts = jnp.broadcast_to(jnp.expand_dims(starts, [i for i in range(x.ndim) if i != axis]), x.shape)

    def add(before: tuple, after: tuple) -> tuple:
        return jnp.where(after[1], after[0], before[0] + after[0]), before[1] | after[1]

    sums, _ = jax.lax.associative_scan(add, (wide, starts), reverse=reverse, axis=axis)
    return (sums if scale is None else sums * scale).astype(dtype)


def on_host(name: str, value: Any) -> np.ndarray:
    if isinstance(value, jax.core.Tracer):
        raise InvalidArgument(
            f"{name}: it may refuse what an array holds, so it needs the array itself; call it outside jit"
        )
    return np.asarray(value)


def _total(cu_seqlens: jax.Array, total: int | None) -> int:
    if total is not None:
        return total
    if isinstance(cu_seqlens, jax.core.Tracer):
        raise InvalidArgument(
            "cu_seqlens: the number of tokens is a shape, which a trace cannot read from it; pass total="
        )
    return int(cu_seqlens[-1])
