"""Masks of attention and segment ids: who attends whom, and numbers that are equal where they do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ejkernel._library import InvalidArgument
from ejkernel.xla_utils.sequences import on_host


def segment_ids_to_mask(q_segment_ids: jax.Array, kv_segment_ids: jax.Array | None = None) -> jax.Array:
    """bool [batch, 1, q_len, kv_len] of ids [batch, length]: equal ids attend, negative ones are padding."""
    q = jnp.asarray(q_segment_ids)
    kv = q if kv_segment_ids is None else jnp.asarray(kv_segment_ids)
    return ((q[:, :, None] == kv[:, None, :]) & (q[:, :, None] >= 0))[:, None]


def mask_to_segment_ids(mask: Any) -> tuple[jax.Array, jax.Array]:
    """(q_segment_ids, kv_segment_ids) of a mask [q_len, kv_len], [batch, q_len, kv_len] or [batch, heads, q_len,
    kv_len], numbered in the order of the first query, -1 where nothing is attended. An error where no ids mean this
    mask (a causal one, heads that differ). On the host."""
    rows = on_host("mask_to_segment_ids", mask) != 0
    if rows.ndim == 4:
        if (rows != rows[:, :1]).any():
            raise InvalidArgument(
                "mask_to_segment_ids: segments are the same for all heads, got heads that differ; pass the mask"
            )
        rows = rows[:, 0]
    if rows.ndim not in (2, 3):
        raise InvalidArgument(f"mask_to_segment_ids: a mask of rank 2, 3 or 4 was expected, got rank {rows.ndim}")
    ids = [_segments(matrix) for matrix in (rows[None] if rows.ndim == 2 else rows)]
    if not ids:
        return tuple(jnp.zeros((0, extent), jnp.int32) for extent in rows.shape[1:])
    q, kv = (jnp.asarray(np.stack(part)) for part in zip(*ids, strict=True))
    return (q[0], kv[0]) if rows.ndim == 2 else (q, kv)


def _segments(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    q = np.full(mask.shape[0], -1, np.int32)
    kv = np.full(mask.shape[1], -1, np.int32)
    seen: dict[bytes, int] = {}
    for i, row in enumerate(mask):
        if not row.any():
            continue
        new = row.tobytes() not in seen
        q[i] = seen.setdefault(row.tobytes(), len(seen))
        if new:
            if (kv[row] != -1).any():
                raise InvalidArgument(
                    f"mask_to_segment_ids: queries that share a key must share all, got query {i} that shares some "
                    "with another one; pass the mask itself"
                )
            kv[row] = q[i]
    return q, kv
