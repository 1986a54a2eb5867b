"""mean_pooling and its gradient: means over whole sequences or over chunks of them, batched or packed."""

import functools

import jax
import jax.numpy as jnp

from ejkernel._xla.sequences import Spans, of_owner, over_layers, packed_spans


def mean_pooling(inputs: dict, params: dict) -> dict:
    x, chunk_size = inputs["x"], params["chunk_size"]
    wide = x.astype(_accumulator(x.dtype))
    if inputs["cu_seqlens"] is not None:
        means, first_means = _packed_means(wide, inputs["cu_seqlens"], chunk_size)
        results = {"out": means.astype(x.dtype)}
        return results if chunk_size is None else {**results, "chunk_offsets": first_means}
    if chunk_size is not None:
        chunks = _in_chunks(wide, chunk_size)
        count = _chunk_counts(x.shape[1], chunk_size)[:, None, None]
        return {"out": (chunks.sum(axis=2) / count).astype(x.dtype)}
    if inputs["mask"] is None:
        return {"out": (wide.sum(axis=1) / max(x.shape[1], 1)).astype(x.dtype)}
    selected = inputs["mask"].astype(bool)[:, :, None]
    count = jnp.maximum(selected.sum(axis=1), 1)
    return {"out": (jnp.where(selected, wide, 0).sum(axis=1) / count).astype(x.dtype)}


def mean_pooling_backward(inputs: dict, params: dict) -> dict:
    d_out, mask, chunk_size = inputs["d_out"], inputs["mask"], params["chunk_size"]
    num_tokens = mask.shape[1] if params["num_tokens"] is None else params["num_tokens"]
    wide = d_out.astype(_accumulator(d_out.dtype))
    if inputs["cu_seqlens"] is not None:
        d_x = _packed_gradient(wide, inputs["cu_seqlens"], num_tokens, chunk_size)
    elif chunk_size is not None:
        share = wide / _chunk_counts(num_tokens, chunk_size)[:, None, None]
        d_x = jnp.repeat(share, _rows_per_mean(num_tokens, chunk_size), axis=1)[:, :num_tokens]
    elif mask is None:
        share = wide / max(num_tokens, 1)
        d_x = jnp.broadcast_to(share[:, None], (share.shape[0], num_tokens, share.shape[1]))
    else:
        selected = mask.astype(bool)[:, :, None]
        share = wide / jnp.maximum(selected.sum(axis=1), 1)
        d_x = jnp.where(selected, share[:, None], 0)
    return {"x": d_x.astype(d_out.dtype)}


def _accumulator(dtype):
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def _rows_per_mean(num_tokens: int, chunk_size: int | None) -> int:
    """At least 1; a chunk larger than the tensor is as large as it, so that positions keep to 32 bits."""
    return max(num_tokens if chunk_size is None else min(chunk_size, num_tokens), 1)


def _in_chunks(x: jax.Array, chunk_size: int) -> jax.Array:
    """[batch, num_tokens, heads, dim] to [batch, chunks, chunk_size, heads, dim], the last one filled with 0."""
    batch, num_tokens, heads, dim = x.shape
    chunk_size = _rows_per_mean(num_tokens, chunk_size)
    missing = -num_tokens % chunk_size
    padded = jnp.pad(x, ((0, 0), (0, missing), (0, 0), (0, 0)))
    return padded.reshape(batch, (num_tokens + missing) // chunk_size, chunk_size, heads, dim)


def _chunk_counts(num_tokens: int, chunk_size: int) -> jax.Array:
    """Rows of each chunk, int32 [chunks]: only the last has fewer."""
    chunk_size = _rows_per_mean(num_tokens, chunk_size)
    starts = jnp.arange(-(-num_tokens // chunk_size), dtype=jnp.int32) * chunk_size
    return jnp.minimum(num_tokens - starts, chunk_size)


@functools.partial(jax.jit, static_argnames="chunk_size")  # else the loop is compiled at every call
def _packed_means(x: jax.Array, cu_seqlens: jax.Array, chunk_size: int | None) -> tuple[jax.Array, jax.Array]:
    """The means in order, and where each sequence's begin. Every pass adds each row to the mean of one sequence."""
    num_tokens = x.shape[0]
    spans, first_means, num_means = _packed_layout(cu_seqlens, num_tokens, chunk_size)

    def add_layer(owner, sums_and_counts):
        mean, _ = _mean_of_row(spans, first_means, num_means, chunk_size, owner)
        return jax.tree.map(lambda total, rows: total.at[mean].add(rows), sums_and_counts, (x, ones))

    # One mean more than there are takes the rows that belong to none, and is cut off again.
    ones = jnp.ones(num_tokens, jnp.int32)
    nothing = (jnp.zeros((num_means + 1, *x.shape[1:]), x.dtype), jnp.zeros(num_means + 1, jnp.int32))
    sums, counts = over_layers(spans, num_tokens, add_layer, nothing)
    counts = jnp.maximum(counts[:-1], 1).reshape(-1, *[1] * (x.ndim - 1))
    return sums[:-1] / counts, first_means


@functools.partial(jax.jit, static_argnames=("num_tokens", "chunk_size"))
def _packed_gradient(d_out: jax.Array, cu_seqlens: jax.Array, num_tokens: int, chunk_size: int | None) -> jax.Array:
    """Every pass adds to each row the share of one sequence that claims it."""
    spans, first_means, num_means = _packed_layout(cu_seqlens, num_tokens, chunk_size)
    cotangents = jnp.concatenate([d_out, jnp.zeros((1, *d_out.shape[1:]), d_out.dtype)])

    def add_layer(owner, d_x):
        mean, count = _mean_of_row(spans, first_means, num_means, chunk_size, owner)
        return d_x + cotangents[mean] / count.reshape(-1, *[1] * (d_out.ndim - 1))

    return over_layers(spans, num_tokens, add_layer, jnp.zeros((num_tokens, *d_out.shape[1:]), d_out.dtype))


def _packed_layout(cu_seqlens: jax.Array, num_tokens: int, chunk_size: int | None) -> tuple[Spans, jax.Array, int]:
    """The sequences, the first mean of each (one entry more than there are sequences), and the number of means."""
    spans = packed_spans(cu_seqlens, num_tokens)
    num_sequences = cu_seqlens.shape[0] - 1
    if chunk_size is None:
        return spans, jnp.arange(num_sequences + 1, dtype=jnp.int32), num_sequences
    chunk_size = _rows_per_mean(num_tokens, chunk_size)
    num_means = -(-num_tokens // chunk_size) + num_sequences
    # Sequences that overlap may have more chunks than there are rows of out: the sum stops there, before it overflows.
    chunks = jnp.append(jnp.zeros(1, jnp.int32), -(-spans.length // chunk_size))
    return spans, jax.lax.associative_scan(lambda a, b: jnp.minimum(a + b, num_means), chunks), num_means


def _mean_of_row(spans: Spans, first_means, num_means: int, chunk_size: int | None, owner) -> tuple:
    """The mean that each row counts in as a row of its owner, `num_means` for none, and how many rows it has."""
    num_tokens = owner.shape[0]
    chunk_size = _rows_per_mean(num_tokens, chunk_size)
    position = jnp.arange(num_tokens, dtype=jnp.int32) - of_owner(spans.begin, owner)
    chunk = position // chunk_size
    count = jnp.minimum(of_owner(spans.length, owner) - chunk * chunk_size, chunk_size)
    mean = jnp.where(owner >= 0, jnp.minimum(first_means[owner] + chunk, num_means), num_means)
    return mean, jnp.maximum(count, 1)
