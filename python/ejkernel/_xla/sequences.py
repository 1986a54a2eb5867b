"""Which rows belong together: lengths and cu_seqlens, whose contents are not trusted, per sequence and per row.

Lengths are clamped to what is there, offsets to [0, total]; an end before its start is an empty sequence.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Spans(NamedTuple):
    """Rows [begin, begin + length) of a packed tensor, int32 [num_sequences] each."""

    begin: jax.Array
    length: jax.Array


def packed_spans(cu_seqlens: jax.Array, total: int, max_length: int | None = None) -> Spans:
    """Sequences longer than `max_length` are cut to it."""
    offsets = jnp.clip(cu_seqlens, 0, total)
    longest = total if max_length is None else min(max_length, total)
    return Spans(offsets[:-1], jnp.clip(offsets[1:] - offsets[:-1], 0, longest))


def clamp_lengths(lengths: jax.Array | None, capacity):
    """Lengths in use, all of `capacity` when absent."""
    return capacity if lengths is None else jnp.clip(lengths, 0, capacity)


def owners(spans: Spans, total: int, below: jax.Array | int | None = None) -> jax.Array:
    """The last sequence (before number `below`, if given) that claims each row, -1 where none does: int32 [total]."""
    row = jnp.arange(total, dtype=jnp.int32)
    index = jnp.arange(spans.begin.shape[0], dtype=jnp.int32)[:, None]
    claimed = (spans.begin[:, None] <= row) & (row < (spans.begin + spans.length)[:, None])
    if below is not None:
        claimed &= index < below
    return jnp.max(jnp.where(claimed, index, -1), axis=0, initial=-1)


def whole_owners(spans: Spans, total: int, among: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of the sequences `among` all, some that share no rows, the last one included: the one that owns each row, -1 where
    none does, and which they are."""
    lengths = jnp.where(among, spans.length, 0)
    last = owners(Spans(spans.begin, lengths), total)
    count = lengths.shape[0]
    rows = jnp.zeros(count + 1, jnp.int32).at[jnp.where(last < 0, count, last)].add(1)[:-1]
    whole = among & (rows == lengths)
    return jnp.where(jnp.append(whole, False)[last], last, -1), whole


def of_owner(per_sequence: jax.Array, owner: jax.Array) -> jax.Array:
    """A value per sequence, at the owner of each row; 0 for rows of no sequence."""
    return jnp.append(per_sequence, jnp.zeros(1, per_sequence.dtype))[owner]  # -1 is the zero at the end


def over_layers(spans: Spans, total: int, add_layer, start):
    """Calls add_layer(owner, state) until every sequence had its rows: once, unless sequences overlap."""

    def step(layer):
        owner, state = layer
        return owners(spans, total, below=owner), add_layer(owner, state)

    first = (owners(spans, total), start)
    return jax.lax.while_loop(lambda layer: jnp.any(layer[0] >= 0), step, first)[1]
