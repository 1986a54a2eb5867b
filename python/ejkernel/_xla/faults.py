"""The status word: which contents of index arrays were not what they should be, as every kernel reports them. The
implementations clamp and mask; here is only said whether they had to."""

import jax
import jax.numpy as jnp

from ejkernel._xla.grouped import group_ends
from ejkernel._xla.sequences import clamp_lengths, packed_spans

PAGE_ID, LENGTH, OFFSETS, GROUP_SIZE = 1, 2, 4, 8


def status(inputs: dict, params: dict) -> jax.Array:
    """uint32[1], of any operation: what an array's name means is the same in all of them."""
    faults = [*_of_sequences(inputs, params), *_of_caches(inputs, params), *_of_groups(inputs)]
    word = jnp.zeros(1, jnp.uint32)
    for bit, any_fault in faults:
        word |= jnp.where(any_fault, jnp.uint32(bit), jnp.uint32(0))
    return word


def _outside(x: jax.Array, most) -> jax.Array:
    return (x < 0) | (x > most)


def _falls(offsets: jax.Array, total: int) -> jax.Array:
    """Of each sequence: whether one of its offsets is outside, or the second below the first."""
    outside = _outside(offsets, total)
    return outside[:-1] | outside[1:] | (offsets[1:] < offsets[:-1])


def _of_sequences(inputs: dict, params: dict):
    """Lengths in use, and sequences of packed tensors."""
    capacity = None
    for suffix, rows, used in (("q", "query", "query_seq_lengths"), ("k", "key", "seqused_k")):
        offsets = inputs.get(f"cu_seqlens_{suffix}")
        if offsets is not None:
            total = inputs[rows].shape[0]
            longest = params.get(f"max_seqlen_{suffix}")
            spans = packed_spans(offsets, total)
            yield OFFSETS, jnp.any(_falls(offsets, total))
            if longest is not None:
                yield LENGTH, jnp.any(spans.length > min(longest, total))
            capacity = packed_spans(offsets, total, longest).length
        elif inputs.get(rows) is not None:
            capacity = inputs[rows].shape[-3]
        for name in (used, "key_value_seq_lengths") if suffix == "k" else (used,):
            if inputs.get(name) is not None:
                yield LENGTH, jnp.any(_outside(inputs[name], capacity))
    if inputs.get("lengths") is not None:
        yield LENGTH, jnp.any(_outside(inputs["lengths"], inputs["input"].shape[1]))
    if inputs.get("cu_seqlens") is not None:
        yield OFFSETS, jnp.any(_falls(inputs["cu_seqlens"], _num_packed(inputs, params)))


def _num_packed(inputs: dict, params: dict) -> int:
    rows = inputs.get("x", inputs.get("query"))
    return rows.shape[0] if rows is not None else params["num_tokens"]


def _of_groups(inputs: dict):
    sizes = inputs.get("group_sizes")
    if sizes is not None:
        num_rows = inputs["lhs"].shape[0]
        begins = jnp.append(jnp.zeros(1, sizes.dtype), group_ends(sizes, num_rows))[:-1]
        yield GROUP_SIZE, jnp.any((sizes < 0) | (sizes > num_rows - begins))


# ---- caches ----


def _of_caches(inputs: dict, params: dict):
    if "sequence_start" in inputs:
        slots = inputs["key"].shape[1]
        yield OFFSETS, jnp.any(_outside(inputs["sequence_start"], slots) | _outside(inputs["sequence_end"], slots))
    if "block_tables" in inputs:
        yield from _of_pages(inputs, params)


def _of_pages(inputs: dict, params: dict):
    cache = next(inputs[name] for name in ("kv_pages", "kv_cache", "key_cache") if name in inputs)
    num_pages, page_size = cache.shape[0], cache.shape[2 if params.get("cache_layout") == "head_major" else 1]
    lengths = inputs["context_lens"]
    num_sequences = lengths.shape[0]
    table = inputs["block_tables"].reshape(num_sequences, -1) if num_sequences > 0 else jnp.zeros((0, 0), jnp.int32)
    slots = table.shape[1] * page_size

    used = jnp.ones(num_sequences, bool)
    counts = inputs.get("num_seqs", inputs.get("distribution"))
    if counts is not None:
        count = counts[-1]
        yield LENGTH, (num_sequences > 0) & _outside(count, num_sequences)
        used = jnp.arange(num_sequences) < count
    yield LENGTH, jnp.any(used & _outside(lengths, slots))
    lengths = clamp_lengths(lengths, slots)

    num_rows = jnp.ones(num_sequences, jnp.int32)
    if "query_start_loc" in inputs:
        total = inputs["keys" if "keys" in inputs else "queries"].shape[0]
        yield OFFSETS, jnp.any(used & _falls(inputs["query_start_loc"], total))
        num_rows = packed_spans(inputs["query_start_loc"], total).length

    begins = jnp.arange(table.shape[1], dtype=jnp.int32) * page_size
    missing = (table < 0) | (table >= num_pages)
    used &= num_rows > 0
    if "keys" in inputs:  # which are written
        yield LENGTH, jnp.any(used & (num_rows > lengths))
        first = jnp.maximum(lengths - num_rows, 0)[:, None]
        written = (begins < lengths[:, None]) & (begins + page_size > first)
        yield PAGE_ID, jnp.any(used[:, None] & written & missing)
    if "softmax_aux" in inputs:  # attention
        yield PAGE_ID, jnp.any(used[:, None] & _read(lengths, num_rows, begins, page_size, params) & missing)


def _read(lengths: jax.Array, num_rows: jax.Array, begins: jax.Array, page_size: int, params: dict) -> jax.Array:
    """Whether a row of a sequence may see something in each of its pages. Windows slide: what lies before the first
    row's and after the sink tokens is needed by none."""
    left, right = params["sliding_window"] or (-1, -1)
    far = 2**30
    first = jnp.zeros_like(lengths) if left < 0 else jnp.clip(lengths - num_rows - min(left, far), 0, lengths)
    sinks = jnp.zeros_like(lengths)
    if (left, right) != (-1, -1):
        sinks = jnp.minimum(lengths, min(params["attention_sink_size"] or 0, far))
    ends = jnp.minimum(begins + page_size, lengths[:, None])
    return (begins < lengths[:, None]) & ((ends > first[:, None]) | (begins < sinks[:, None]))
