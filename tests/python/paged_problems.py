"""Random small problems of the operations over a cache, and of grouped_matmul, for test_xla_paged.py and
test_xla_grouped.py. What nothing may read holds NaN."""

import numpy as np
from xla_problems import full_call, maybe, normal
from xla_reference import DTYPES

NUM_PAGES, PAGE_SIZE, TABLE_WIDTH, NUM_SEQS = 11, 4, 3, 4
Q_HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 4, 2, 6, 5
WINDOWS = (None, (2, 0), (0, 0), (3, -1), (10**15, 0))
SLOTS = TABLE_WIDTH * PAGE_SIZE


def _params(rng, **more) -> dict:
    return {
        "softmax_scale": maybe(rng, lambda: float(rng.choice([0.7, -0.4, 0.0]))),
        "sliding_window": WINDOWS[rng.integers(len(WINDOWS))],
        "attention_sink_size": int(rng.integers(0, 3)),
        "logits_soft_cap": maybe(rng, lambda: 1.5),
        **more,
    }


def _sinks(rng, dtype):
    sinks = maybe(rng, lambda: normal(rng, (Q_HEADS, 2) if rng.random() < 0.5 else (3,), dtype))
    if sinks is not None and rng.random() < 0.2:
        sinks[..., 0] = -np.inf
    return sinks


def tables(rng, num_seqs: int = NUM_SEQS) -> np.ndarray:
    """Pages of their own for each sequence, as far as they go; some entries name no page."""
    pages = rng.permutation(NUM_PAGES * 2)[: num_seqs * TABLE_WIDTH] - NUM_PAGES // 2
    return np.where(pages < 0, rng.choice([-1, -(2**31)]), pages).reshape(num_seqs, TABLE_WIDTH).astype(np.int32)


def lengths(rng, most: int, count: int = NUM_SEQS) -> np.ndarray:
    """Some are out of range."""
    some = rng.integers(-1, most + 2, count)
    return np.where(rng.random(count) < 0.1, rng.choice([2**31 - 1, -(2**31)]), some).astype(np.int32)


def query_starts(rng, total: int, num_seqs: int = NUM_SEQS, falling: bool = False) -> np.ndarray:
    cuts = rng.integers(-2, total + 3, num_seqs + 1) if falling else np.sort(rng.integers(0, total + 1, num_seqs + 1))
    return cuts.astype(np.int32)


def _cache(rng, shape, dtype, scale_shapes) -> tuple[np.ndarray, np.ndarray | None]:
    """Numbers, or codes with a scale."""
    if dtype in (np.float64, np.float32, DTYPES["f16"], DTYPES["bf16"]):
        return normal(rng, shape, dtype), maybe(rng, lambda: _scale(rng, scale_shapes))
    codes = rng.integers(-127, 128, shape) if dtype == np.int8 else normal(rng, shape)
    scale = _scale(rng, scale_shapes) / (60 if dtype == np.int8 else 1)
    return codes.astype(dtype), np.asarray(scale, np.float32)


def _scale(rng, shapes) -> np.ndarray:
    return np.asarray(rng.uniform(0.5, 1.5, shapes[rng.integers(len(shapes))]), np.float32)


def page_attention_call(rng, dtype=np.float64, cache_dtype=None, num_seqs: int = NUM_SEQS) -> tuple[dict, dict]:
    layout = str(rng.choice(["page_major", "head_major"]))
    cache = {}
    for name, dim in (("key", HEAD_DIM), ("value", VALUE_DIM)):
        shape = (NUM_PAGES, PAGE_SIZE, KV_HEADS, dim)
        scale_shapes = [(), (KV_HEADS,), (NUM_PAGES, PAGE_SIZE, KV_HEADS, 1)]
        codes, cache[f"{name[0]}_scale"] = _cache(rng, shape, cache_dtype or dtype, scale_shapes)
        cache[f"{name}_cache"] = codes.swapaxes(1, 2) if layout == "head_major" else codes
    inputs = {
        "query": normal(rng, (num_seqs, Q_HEADS, HEAD_DIM), dtype),
        "context_lens": lengths(rng, SLOTS, num_seqs),
        "block_tables": tables(rng, num_seqs),
        "softmax_aux": _sinks(rng, dtype),
        **cache,
    }
    return full_call("page_attention", inputs, _params(rng, cache_layout=layout))


def ragged_decode_call(rng, dtype=np.float64, cache_dtype=None, batch: int = 3) -> tuple[dict, dict]:
    one_token = (1,) if rng.random() < 0.5 else ()
    inputs = {
        "query": normal(rng, (batch, *one_token, Q_HEADS, HEAD_DIM), dtype),
        "sequence_start": lengths(rng, SLOTS // 2, batch),
        "sequence_end": lengths(rng, SLOTS, batch),
        "softmax_aux": _sinks(rng, dtype),
    }
    for name, dim in (("key", HEAD_DIM), ("value", VALUE_DIM)):
        scale_shapes = [(), (KV_HEADS,), (batch, SLOTS, KV_HEADS, 1)]
        inputs[name], inputs[f"{name[0]}_scale"] = _cache(
            rng, (batch, SLOTS, KV_HEADS, dim), cache_dtype or dtype, scale_shapes
        )
    return full_call("ragged_decode_attention", inputs, _params(rng))


def ragged_page_call(
    rng, dtype=np.float64, cache_dtype=None, total: int = 9, num_seqs: int = NUM_SEQS, falling: bool = False
) -> tuple[dict, dict]:
    kv_pages, k_scale = _cache(
        rng,
        (NUM_PAGES, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM),
        cache_dtype or dtype,
        [(), (KV_HEADS,), (NUM_PAGES, PAGE_SIZE, KV_HEADS, 1)],
    )
    inputs = {
        "queries": normal(rng, (total, Q_HEADS, HEAD_DIM), dtype),
        "kv_pages": kv_pages,
        "context_lens": lengths(rng, SLOTS, num_seqs),
        "block_tables": tables(rng, num_seqs),
        "query_start_loc": query_starts(rng, total, num_seqs, falling),
        "num_seqs": np.asarray([rng.choice([-1, num_seqs - 1, num_seqs, num_seqs, num_seqs + 1])], np.int32),
        "softmax_aux": _sinks(rng, dtype),
        "k_scale": k_scale,
        "v_scale": k_scale,
    }
    return full_call("ragged_page_attention", inputs, _params(rng))


def _write_scales(rng) -> dict:
    return {name: maybe(rng, lambda: _scale(rng, [(), (KV_HEADS,)])) for name in ("k_scale", "v_scale")}


def v3_call(rng, dtype=np.float64, cache_dtype=None, total: int = 9, falling: bool = False) -> tuple[dict, dict]:
    inputs, params = ragged_page_call(rng, dtype, cache_dtype, total, falling=falling)
    count = int(inputs.pop("num_seqs")[0])
    inputs["kv_cache"] = inputs.pop("kv_pages")
    inputs["block_tables"] = inputs["block_tables"].ravel()
    inputs["distribution"] = np.asarray([*rng.integers(-1, 9, 2), count], np.int32)
    inputs["keys"], inputs["values"] = (normal(rng, (total, KV_HEADS, HEAD_DIM), dtype) for _ in range(2))
    inputs["q_scale"] = maybe(rng, lambda: _scale(rng, [()]))
    return full_call("ragged_page_attention_v3", inputs | _write_scales(rng), params)


def append_call(rng, dtype=np.float64, cache_dtype=None, total: int = 9, falling: bool = False) -> tuple[dict, dict]:
    layout = str(rng.choice(["page_major", "head_major"]))
    inputs = {
        "context_lens": lengths(rng, SLOTS),
        "block_tables": tables(rng),
        "query_start_loc": query_starts(rng, total, falling=falling),
        **_write_scales(rng),
    }
    for name, dim in (("key", HEAD_DIM), ("value", VALUE_DIM)):
        inputs[f"{name}s"] = normal(rng, (total, KV_HEADS, dim), dtype)
        cache, _ = _cache(rng, (NUM_PAGES, PAGE_SIZE, KV_HEADS, dim), cache_dtype or dtype, [()])
        inputs[f"{name}_cache"] = cache.swapaxes(1, 2) if layout == "head_major" else cache
    return full_call("page_append", inputs, {"cache_layout": layout})


CALLS = {
    "page_attention": page_attention_call,
    "ragged_decode_attention": ragged_decode_call,
    "ragged_page_attention": ragged_page_call,
    "ragged_page_attention_v3": v3_call,
    "page_append": append_call,
}


def other_indices(rng, operation: str, inputs: dict, **more) -> dict:
    """The call with tables, lengths and rows of another one; nothing of it is shared."""
    other, _ = CALLS[operation](rng, **more)
    copies = {name: None if x is None else x.copy() for name, x in inputs.items()}
    return copies | {name: x for name, x in other.items() if x is not None and x.dtype == np.int32}


def options(inputs: dict, params: dict) -> set:
    """What a call has of all that may be absent or differ."""
    return {*params.items(), *((name, None if x is None else x.ndim) for name, x in inputs.items())}


def nothing_visible_holds_nan(operation: str, inputs: dict, params: dict) -> None:
    """Poisons every slot that no sequence's length reaches."""
    for name in ("key_cache", "value_cache", "kv_pages", "kv_cache", "key", "value"):
        cache = inputs.get(name)
        if cache is None:
            continue
        view = cache.swapaxes(1, 2) if params.get("cache_layout") == "head_major" else cache
        used = np.zeros(view.shape[:2], bool)
        if "sequence_start" in inputs:
            for n, (begin, end) in enumerate(zip(inputs["sequence_start"], inputs["sequence_end"])):
                used[n, max(begin, 0) : max(end, 0)] = True
        else:
            table = inputs["block_tables"].reshape(len(inputs["context_lens"]), -1)
            for pages, length in zip(table, inputs["context_lens"]):
                for slot in range(min(max(int(length), 0), table.shape[1] * view.shape[1])):
                    if 0 <= (page := pages[slot // view.shape[1]]) < len(view):
                        used[page, slot % view.shape[1]] = True
        view[~used] = np.nan


def grouped_call(rng, form: str, dtype=np.float64) -> tuple[dict, dict]:
    """`form` is ragged or batched. What no result needs holds NaN: groups without rows, rows without a group, and what
    masks leave out."""
    m, k, n, groups = 13, 6, 5, 4
    transposed = bool(rng.random() < 0.5)
    rhs_shape = (n, k) if transposed else (k, n)
    params = {"transpose_rhs": transposed}
    if form == "batched":
        inputs = {"lhs": normal(rng, (2, groups, m, k), dtype), "rhs": normal(rng, (2, groups, *rhs_shape), dtype)}
        inputs["existing_out"] = maybe(rng, lambda: normal(rng, (2, groups, m, n), dtype))
        return full_call("grouped_matmul", inputs, params)
    params["group_offset"] = int(rng.integers(0, 3))
    inputs = {
        "lhs": np.empty((m, k), dtype),
        "rhs": np.empty((groups, *rhs_shape), dtype),
        "group_sizes": np.empty(params["group_offset"] + groups + int(rng.integers(0, 2)), np.int32),
        "existing_out": maybe(rng, lambda: normal(rng, (m, n), dtype)),
    }
    masks, blocks = grouped_masks(rng, m, k, n, groups) if rng.random() < 0.7 else ({}, {})
    inputs, params = full_call("grouped_matmul", inputs | masks, params | blocks)
    return other_groups(rng, inputs, params), params


def other_groups(rng, inputs: dict, params: dict) -> dict:
    """The ragged call with groups of other sizes, and other factors."""
    (m, k), offset = inputs["lhs"].shape, params["group_offset"]
    sizes = rng.integers(-1, 6, inputs["group_sizes"].shape)
    if rng.random() < 0.2:
        sizes[rng.integers(len(sizes))] = rng.choice([2**31 - 1, -(2**31)])
    lhs, rhs = (normal(rng, inputs[name].shape, inputs[name].dtype) for name in ("lhs", "rhs"))
    ends = np.minimum(np.cumsum(np.clip(sizes, 0, m)), m)
    begins = np.append(0, ends)[:-1]
    for g in range(len(rhs)):
        if begins[offset + g] == ends[offset + g]:
            rhs[g] = np.nan
    lhs[: begins[offset]] = np.nan
    lhs[ends[offset + len(rhs) - 1] :] = np.nan
    by_columns = rhs.swapaxes(1, 2) if params["transpose_rhs"] else rhs
    if (mask := inputs["rhs_mask"]) is not None:
        counts = mask.repeat(min(params["block_k"], k), 1)[:, :k]
        by_columns[~counts.repeat(min(params["block_n"], by_columns.shape[2]), 2)[:, :, : by_columns.shape[2]]] = np.nan
    if (mask := inputs["out_mask"]) is not None:  # what no block of out needs
        lhs[~mask.any(axis=1).repeat(min(params["block_m"], m))[:m]] = np.nan
    return {**inputs, "lhs": lhs, "rhs": rhs, "group_sizes": sizes.astype(np.int32)}


def grouped_masks(rng, m: int, k: int, n: int, groups: int) -> tuple[dict, dict]:
    block = {f"block_{name}": int(rng.choice([1, 2, 4, 2**40])) for name in "mkn"}
    count = {name: -(-extent // block[f"block_{name}"]) for name, extent in (("m", m), ("k", k), ("n", n))}
    which = rng.integers(1, 4)
    masks = {}
    if which & 1:
        masks["rhs_mask"] = rng.random((groups, count["k"], count["n"])) < 0.6
    else:
        del block["block_k"]
    if which & 2:
        masks["out_mask"] = rng.random((count["m"], count["n"])) < 0.6
    else:
        del block["block_m"]
    return masks, block
