"""Attention of each sequence's newest tokens over a cache: in pages, or contiguous with a start and an end. And what
stores new keys and values in pages.

Rows of queries go through in tiles of one sequence, whose keys are fetched for the tile: one batch entry of `Problem`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ejkernel._xla import masks, tiles
from ejkernel._xla.attention_formula import forward_block
from ejkernel._xla.attention_problem import Problem, as_heads
from ejkernel._xla.sequences import Spans, clamp_lengths, of_owner, over_layers, owners, packed_spans

_MAX_ROWS = 64  # of a tile


class Pages(NamedTuple):
    """A cache with its tables, and how much of it the sequences use."""

    key: jax.Array  # [num_pages, page_size, num_kv_heads, head_dim]; value likewise
    value: jax.Array
    table: jax.Array  # int32 [num_seqs, max_num_pages], of existing pages; where `exists` is false, of any
    exists: jax.Array  # bool, like the table

    @property
    def slots(self) -> int:
        """Of a sequence."""
        return self.table.shape[1] * self.key.shape[1]


def page_attention(inputs: dict, params: dict) -> dict:
    key, value = (_page_major(inputs[name], params) for name in ("key_cache", "value_cache"))
    pages = _pages(key, value, inputs["block_tables"])
    length = clamp_lengths(inputs["context_lens"], pages.slots)
    rows = tiles.of_one_row(inputs["query"].shape[0])
    results = _attend(inputs["query"], _last_rows(length), rows, _keys_in_pages(pages, inputs), inputs, params)
    return {"out": results["out"], "lse": results["lse"]}


def ragged_decode_attention(inputs: dict, params: dict) -> dict:
    query, key, value = inputs["query"], tiles.not_empty(inputs["key"]), tiles.not_empty(inputs["value"])
    begin, end = (jnp.clip(inputs[name], 0, key.shape[1]) for name in ("sequence_start", "sequence_end"))
    rows = _last_rows(jnp.maximum(end - begin, 0))._replace(k_begin=begin)

    def keys_of(entry):
        fetched = [
            _dequantised(x[entry], None if scale is None else scale[entry] if scale.ndim == 4 else scale, _wide(query))
            for x, scale in ((key, inputs["k_scale"]), (value, inputs["v_scale"]))
        ]
        return (*fetched, jnp.ones(key.shape[1], bool))

    flat = query.reshape(query.shape[0], *query.shape[-2:])
    results = _attend(flat, rows, tiles.of_one_row(query.shape[0]), keys_of, inputs, params)
    return {"out": results["out"].reshape(*query.shape[:-1], value.shape[-1]), "lse": results["lse"]}


def ragged_page_attention(inputs: dict, params: dict) -> dict:
    key, value = _apart(inputs["kv_pages"])
    pages = _pages(key, value, inputs["block_tables"])
    return _attend_packed(pages, inputs["num_seqs"][0], inputs, params)


def ragged_page_attention_v3(inputs: dict, params: dict) -> dict:
    cache, count = inputs["kv_cache"], inputs["distribution"][2]
    num_sequences = inputs["context_lens"].shape[0]
    width = inputs["block_tables"].shape[0] // max(num_sequences, 1)
    pages = _pages(*_apart(cache), inputs["block_tables"].reshape(num_sequences, width))
    sequences = _sequences(pages, count, inputs, inputs["queries"].shape[0])
    new = [_stored(inputs[x], inputs[scale], cache.dtype) for x, scale in (("keys", "k_scale"), ("values", "v_scale"))]
    cache = _append(cache, jnp.stack(new, axis=2).reshape(-1, *cache.shape[2:]), pages, sequences)
    written = pages._replace(**dict(zip(("key", "value"), _apart(cache))))
    return {**_attend_packed(written, count, inputs, params), "kv_cache": cache}


def page_append(inputs: dict, params: dict) -> dict:
    results = {}
    for rows, name, scale in (("keys", "key_cache", "k_scale"), ("values", "value_cache", "v_scale")):
        cache = _page_major(inputs[name], params)
        pages = _pages(cache, cache, inputs["block_tables"])
        sequences = _sequences(pages, None, inputs, inputs[rows].shape[0])
        written = _append(cache, _stored(inputs[rows], inputs[scale], cache.dtype), pages, sequences)
        results[name] = _page_major(written, params)
    return results


# ---- the cache ----


def _page_major(cache: jax.Array, params: dict) -> jax.Array:
    """[page, slot, head, dim] of either layout, and back."""
    return jnp.swapaxes(cache, 1, 2) if params["cache_layout"] == "head_major" else cache


def _apart(interleaved: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys and values of a cache that holds those of one head next to each other."""
    return interleaved[:, :, 0::2], interleaved[:, :, 1::2]


def _pages(key: jax.Array, value: jax.Array, table: jax.Array) -> Pages:
    exists = (table >= 0) & (table < key.shape[0])
    return Pages(key, value, jnp.where(exists, table, 0), exists)


def _wide(query: jax.Array):
    return jnp.float64 if query.dtype == jnp.float64 else jnp.float32


def _keys_in_pages(pages: Pages, inputs: dict):
    """keys_of(sequence) -> (key, value, exists), [slots, heads, dim] each and [slots]."""
    table, exists = tiles.not_empty(pages.table), tiles.not_empty(pages.exists)
    wide = _wide(inputs["query"] if "query" in inputs else inputs["queries"])
    page_size = pages.key.shape[1]

    def keys_of(sequence):
        def fetched(x, scale):
            def slots_of(x):
                return tiles.not_empty(x)[table[sequence]].reshape(pages.slots, *x.shape[2:])

            return _dequantised(slots_of(x), slots_of(scale) if scale is not None and scale.ndim == 4 else scale, wide)

        key, value = fetched(pages.key, inputs["k_scale"]), fetched(pages.value, inputs["v_scale"])
        return key, value, jnp.repeat(exists[sequence], page_size, total_repeat_length=pages.slots)

    return keys_of


def _dequantised(codes: jax.Array, scale: jax.Array | None, wide) -> jax.Array:
    """[slots, heads, dim]; `scale` is [], [heads] or [slots, heads, groups of dim]; absent: 1."""
    codes = codes.astype(wide)
    if scale is None:
        return codes
    if scale.ndim == 3:
        scale = jnp.repeat(scale, codes.shape[2] // scale.shape[2], axis=2)
    return codes * (scale[:, None] if scale.ndim == 1 else scale).astype(wide)


def _stored(rows: jax.Array, scale: jax.Array | None, dtype) -> jax.Array:
    """[rows, heads, dim] as the cache stores them: over their scale, rounded to nearest even and saturated."""
    x = rows.astype(_wide(rows))
    if scale is not None:
        x = x / (scale[:, None] if scale.ndim == 1 else scale).astype(x.dtype)
    if dtype == jnp.int8:
        return jnp.where(jnp.isnan(x), 0, jnp.clip(jnp.round(x), -128, 127)).astype(dtype)
    if dtype.itemsize == 1:
        largest = float(jnp.finfo(dtype).max)
        x = jnp.clip(x, -largest, largest)
    return x.astype(dtype)


# ---- the sequences ----


class Sequences(NamedTuple):
    rows: Spans
    length: jax.Array  # int32 [num_seqs]: tokens in the cache, the rows' own included


def _sequences(pages: Pages, count: jax.Array | None, inputs: dict, num_rows: int) -> Sequences:
    """The first `count` ones, all without it."""
    spans = packed_spans(inputs["query_start_loc"], num_rows)
    length = clamp_lengths(inputs["context_lens"], pages.slots)
    if count is not None:
        used = jnp.arange(length.shape[0], dtype=jnp.int32) < count
        spans, length = spans._replace(length=jnp.where(used, spans.length, 0)), jnp.where(used, length, 0)
    return Sequences(spans, length)


def _last_rows(length: jax.Array) -> masks.Rows:
    """One row for each sequence, its last token."""
    nothing = jnp.zeros_like(length)
    number = jnp.arange(length.shape[0], dtype=jnp.int32)
    return masks.Rows(sequence=number, position=nothing, offset=length - 1, k_begin=nothing, k_len=length)


def _packed_rows(sequences: Sequences, owner: jax.Array) -> masks.Rows:
    row = jnp.arange(owner.shape[0], dtype=jnp.int32)
    return masks.Rows(
        sequence=owner,
        position=row - of_owner(sequences.rows.begin, owner),
        offset=of_owner(sequences.length - sequences.rows.length, owner),
        k_begin=jnp.zeros_like(row),
        k_len=of_owner(sequences.length, owner),
    )


# ---- reading ----


def _attend_packed(pages: Pages, count: jax.Array, inputs: dict, params: dict) -> dict:
    queries = inputs["queries"]
    num_rows, num_sequences = queries.shape[0], pages.table.shape[0]
    sequences = _sequences(pages, count, inputs, num_rows)
    owner = owners(sequences.rows, num_rows)
    of_tile = tiles.cut(owner, num_sequences, tiles.rows_per_tile(num_rows, num_sequences, _MAX_ROWS))
    results = _attend(queries, _packed_rows(sequences, owner), of_tile, _keys_in_pages(pages, inputs), inputs, params)
    return {"out": results["out"], "lse": results["lse"].T}


def _attend(query: jax.Array, rows: masks.Rows, of_tile: tiles.Tiles, keys_of, inputs: dict, params: dict) -> dict:
    """out [rows, heads, dim] and lse [rows, heads]. `rows` has what is said of each row, and keys_of(sequence) the
    keys."""
    wide = _wide(query)
    sinks, scale, q_scale = inputs["softmax_aux"], params["softmax_scale"], inputs.get("q_scale")
    factors = query.astype(wide) if q_scale is None else query.astype(wide) * q_scale.astype(wide)

    def attend(sequence, row, used):
        key, value, exists = keys_of(sequence)
        mine = masks.Rows(*(x[row] for x in rows))
        mine = mine._replace(k_len=jnp.where(used, mine.k_len, 0))
        block = {
            "query": jnp.swapaxes(factors[row], 0, 1)[None],
            "rows": masks.Rows(*(x[None, None, :, None] for x in mine)),
            "mask": exists[None, None, None, :],
        }
        problem = Problem(
            of_rows=block,
            key=jnp.swapaxes(key, 0, 1)[None],
            value=jnp.swapaxes(value, 0, 1)[None],
            kv_segments=None,
            sinks=jnp.zeros((1, 1, 1, 0), wide) if sinks is None else as_heads(sinks).astype(wide),
            dropout_seed=jnp.zeros(2, jnp.uint32),
            dropout_threshold=0,
            scale=query.shape[-1] ** -0.5 if scale is None else scale,
            soft_cap=params["logits_soft_cap"],
            causal=True,
            window=params["sliding_window"],
            sink_tokens=params["attention_sink_size"] or 0,
            normalize=True,
            packed=False,
            out_dtype=query.dtype,
        )
        result = forward_block(problem, block, with_weights=False)
        return {"out": jnp.swapaxes(result["out"][0], 0, 1).astype(query.dtype), "lse": result["lse"][0, ..., 0].T}

    shapes = jax.eval_shape(keys_of, jnp.int32(0))
    num_heads, size = query.shape[1], of_tile.rows.shape[1]
    elements = sum(x.size for x in shapes) + num_heads * size * shapes[0].shape[0]
    return tiles.over_tiles(of_tile, attend, elements)


# ---- writing ----


def _append(cache: jax.Array, new: jax.Array, pages: Pages, sequences: Sequences) -> jax.Array:
    """The cache with row r of a sequence at position length - rows + r of it; a row that several claim goes to each."""
    num_pages, page_size = cache.shape[:2]
    num_rows = new.shape[0]
    if pages.slots == 0 or num_pages == 0 or num_rows == 0 or pages.table.shape[0] == 0:
        return cache  # no slot, or nothing for one

    def store_layer(owner, cache):
        rows = _packed_rows(sequences, owner)
        position = rows.position + rows.offset
        slot = jnp.clip(position, 0, pages.slots - 1)
        place = (owner, slot // page_size)
        goes = (owner >= 0) & (position >= 0) & pages.exists[place]
        return cache.at[jnp.where(goes, pages.table[place], num_pages), slot % page_size].set(new, mode="drop")

    return over_layers(sequences.rows, num_rows, store_layer, cache)
