"""Which keys a query row sees, by position: lengths in use, causal mask, window and sink tokens.

Everything is per query row and has the axes [batch, head, row, key] of the scores, so that it broadcasts against them;
packed tensors are one batch entry whose rows belong to several sequences.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ejkernel._xla.sequences import Spans, clamp_lengths, of_owner, owners


class Rows(NamedTuple):
    """What decides the keys of each query row: int32 [batch, 1, rows, 1] each."""

    sequence: jax.Array  # batch entry or packed sequence
    position: jax.Array  # in its sequence
    offset: jax.Array  # aligned position minus position
    k_begin: jax.Array  # first row of its sequence among the keys
    k_len: jax.Array  # keys in use, 0 for a row that is of no sequence or not in use


def batched_rows(batch: int, q_len: int, kv_len: int, q_used, k_used, bottom_right: bool) -> Rows:
    """`q_used` and `k_used` are int32 [batch] or None: the first rows of each batch entry are in use."""
    q_used = jnp.broadcast_to(clamp_lengths(q_used, q_len), batch).astype(jnp.int32)[:, None, None, None]
    k_used = jnp.broadcast_to(clamp_lengths(k_used, kv_len), batch).astype(jnp.int32)[:, None, None, None]
    position = jnp.arange(q_len, dtype=jnp.int32)[None, None, :, None]
    rows = Rows(
        sequence=jnp.arange(batch, dtype=jnp.int32)[:, None, None, None],
        position=position,
        offset=k_used - q_used if bottom_right else jnp.int32(0),
        k_begin=jnp.int32(0),
        k_len=jnp.where(position < q_used, k_used, 0),
    )
    return Rows(*(jnp.broadcast_to(x, (batch, 1, q_len, 1)) for x in rows))


def packed_rows(q: Spans, k: Spans, total_q: int, k_used, bottom_right: bool) -> Rows:
    """`k_used` is int32 [num_sequences] or None. A row that several sequences claim belongs to the last of them."""
    k_used = clamp_lengths(k_used, k.length)
    owner = owners(q, total_q)
    rows = Rows(
        sequence=owner,
        position=jnp.arange(total_q, dtype=jnp.int32) - of_owner(q.begin, owner),
        offset=of_owner(k_used - q.length if bottom_right else jnp.zeros_like(k_used), owner),
        k_begin=of_owner(k.begin, owner),
        k_len=of_owner(k_used, owner),
    )
    return Rows(*(x[None, None, :, None] for x in rows))


def key_positions(rows: Rows, num_keys: int) -> jax.Array:
    """Each key's position in the sequence of each row; outside [0, k_len) it is another's."""
    return jnp.arange(num_keys, dtype=jnp.int32) - rows.k_begin


def positions_visible(rows: Rows, num_keys: int, causal: bool, window: tuple | None, sink_tokens: int) -> jax.Array:
    """bool [batch, 1, rows, num_keys]. Keys before `sink_tokens` are exempt from the window and from nothing else."""
    j = key_positions(rows, num_keys)
    aligned = rows.position + rows.offset
    visible = (j >= 0) & (j < rows.k_len)
    if causal:
        visible &= j <= aligned
    left, right = (-1, -1) if window is None else window
    far = 2**30  # any window may be given: keep the sums in range
    inside = jnp.bool_(True)
    if left >= 0:
        inside &= j >= aligned - min(left, far)
    if right >= 0:
        inside &= j <= aligned + min(right, far)
    return visible & (inside | (j < min(sink_tokens, far)))
