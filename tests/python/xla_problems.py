"""Random small problems for test_xla.py: every option of every operation, alone and combined.

Extents are mostly the same, since JAX compiles anew for others.
"""

import numpy as np
from xla_reference import DTYPES, declarations

DECLARED = declarations()

BATCHED_SIZE = (2, 5, 7, 4, 2, 6, 5)  # batch, q_len, kv_len, num_q_heads, num_kv_heads, head_dim, value_dim
PACKED_SIZE = (9, 37, 4, 2, 6, 5)  # total_q, total_k, num_q_heads, num_kv_heads, head_dim, value_dim
NUM_SEQS = 4
WINDOWS = (None, (-1, -1), (2, 0), (0, 0), (3, -1), (-1, 1), (1, 2), (10**15, 0))


def full_call(operation: str, inputs: dict, params: dict) -> tuple[dict, dict]:
    """Every declared input and parameter by name; inputs that are not declared are dropped."""
    declared = DECLARED[operation]
    defaults = {param["name"]: param["default"] for param in declared["params"]}
    unknown = params.keys() - defaults.keys()
    assert not unknown, unknown
    return {i["name"]: inputs.get(i["name"]) for i in declared["inputs"]}, {**defaults, **params}


def normal(rng, shape, dtype=np.float64) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def maybe(rng, make, probability=0.4):
    return make() if rng.random() < probability else None


def attention_call(rng, operation: str, dtype=np.float64, size=None) -> tuple[dict, dict]:
    """A forward call in the batched form."""
    batch, q_len, kv_len, q_heads, kv_heads, head_dim, value_dim = size or BATCHED_SIZE
    inputs = {
        "query": normal(rng, (batch, q_len, q_heads, head_dim), dtype),
        "key": normal(rng, (batch, kv_len, kv_heads, head_dim), dtype),
        "value": normal(rng, (batch, kv_len, kv_heads, value_dim), dtype),
        "bias": maybe(rng, lambda: _bias(rng, _broadcast(rng, batch, q_heads, q_len, kv_len), dtype)),
        "attention_mask": maybe(rng, lambda: rng.random(_broadcast(rng, batch, q_heads, q_len, kv_len)) < 0.7),
        "seqused_k": maybe(rng, lambda: _lengths(rng, batch, kv_len)),
        "query_seq_lengths": maybe(rng, lambda: _lengths(rng, batch, q_len)),
        "key_value_seq_lengths": maybe(rng, lambda: _lengths(rng, batch, kv_len)),
        **_sinks_and_seed(rng, q_heads, dtype),
    }
    if rng.random() < 0.4:
        inputs["q_segment_ids"] = rng.integers(-1, 2, (batch, q_len)).astype(np.int32)
        if q_len != kv_len or rng.random() < 0.5:
            inputs["kv_segment_ids"] = rng.integers(-1, 2, (batch, kv_len)).astype(np.int32)
    return full_call(operation, inputs, _params(rng, operation))


def packed_call(rng, dtype=np.float64, falling_queries=False) -> tuple[dict, dict]:
    """flash_attention in the packed form; query rows belong to several sequences only if `falling_queries`."""
    total_q, total_k, q_heads, kv_heads, head_dim, value_dim = PACKED_SIZE
    inputs = {
        "query": normal(rng, (total_q, q_heads, head_dim), dtype),
        "key": normal(rng, (total_k, kv_heads, head_dim), dtype),
        "value": normal(rng, (total_k, kv_heads, value_dim), dtype),
        "cu_seqlens_q": offsets(rng, total_q, falling=falling_queries),
        "cu_seqlens_k": offsets(rng, total_k, falling=rng.random() < 0.3),
        "seqused_k": maybe(rng, lambda: _lengths(rng, NUM_SEQS, total_k // 2)),
        **_sinks_and_seed(rng, q_heads, dtype),
    }
    longest = {"max_seqlen_q": maybe(rng, lambda: 3), "max_seqlen_k": maybe(rng, lambda: 5, 0.2)}
    return full_call("flash_attention", inputs, {**_params(rng, "flash_attention"), **longest})


def backward_call(rng, operation: str, inputs: dict, params: dict, results: dict) -> tuple[dict, dict]:
    """The gradient's call, with cotangents that hold NaN where they must not be read."""
    blind = np.isneginf(results["lse"]) if "lse" in results else None
    cotangents = {"d_out": normal(rng, results["out"].shape, results["out"].dtype)}
    if blind is None:
        cotangents["d_weights"] = maybe(rng, lambda: normal(rng, results["weights"].shape, inputs["query"].dtype), 0.7)
        if cotangents["d_weights"] is not None and rng.random() < 0.3:
            cotangents["d_out"] = None
    else:
        cotangents["d_out"][np.swapaxes(blind, -1, -2)] = np.nan
        cotangents["d_lse"] = maybe(rng, lambda: normal(rng, blind.shape, results["lse"].dtype), 0.7)
        if cotangents["d_lse"] is not None:
            cotangents["d_lse"][blind] = np.nan
    return full_call(operation + "_backward", {**inputs, **results, **cotangents}, params)


def offsets(rng, total: int, falling: bool, num_seqs: int = NUM_SEQS) -> np.ndarray:
    """cu_seqlens, often with rows that no sequence owns and with empty sequences."""
    cuts = rng.integers(0, total + 1, num_seqs + 1)
    if falling:  # and out of range
        return (cuts + rng.integers(-3, 4, cuts.shape)).astype(np.int32)
    return np.sort(cuts).astype(np.int32)


def pooling_call(rng, form: str, dtype=np.float64) -> tuple[dict, dict]:
    batch, num_tokens, heads, dim = 2, 10, 3, 4
    chunk_size = int(rng.choice([1, 3, 4, 10, 2**40])) if "chunked" in form else None
    rows = (num_tokens,) if "packed" in form else (batch, num_tokens)
    inputs = {
        "x": normal(rng, (*rows, heads, dim) if "chunked" in form else (*rows, dim), dtype),
        "mask": maybe(rng, lambda: rng.random(rows) < rng.choice([0.0, 0.6]), 0.7) if form == "batched" else None,
        "cu_seqlens": offsets(rng, num_tokens, falling=rng.random() < 0.4) if "packed" in form else None,
    }
    return full_call("mean_pooling", inputs, {"chunk_size": chunk_size})


RECURRENCE_SIZE = (2, 11, 4, 2, 3, 5)  # batch, seq_len, num_q_heads, num_kv_heads, key_dim, value_dim


def recurrence_call(
    rng, operation: str, form: str, optional=(), params=None, dtype=np.float64, falling=False, size=None
):
    """A forward call with these `optional` inputs. Rows belong to several packed sequences only if `falling`; else those
    of none hold NaN."""
    batch, seq_len, q_heads, kv_heads, key_dim, value_dim = size or RECURRENCE_SIZE
    packed = form == "packed"
    rows, count = ((seq_len,), NUM_SEQS) if packed else ((batch, seq_len), batch)
    wide = np.float64 if dtype == np.float64 else np.float32
    gates = {"g": (*rows, q_heads), "g_gamma": (q_heads,)}
    gates |= {"gk": (*rows, q_heads, key_dim), "gv": (*rows, q_heads, value_dim)}
    inputs = {
        "query": normal(rng, (*rows, q_heads, key_dim), dtype),
        "key": normal(rng, (*rows, kv_heads, key_dim), dtype),
        "value": normal(rng, (*rows, kv_heads, value_dim), dtype),
        **{name: _log_decays(rng, shape, wide) for name, shape in gates.items() if name in optional},
        "cu_seqlens": offsets(rng, seq_len, falling) if packed else None,
    }
    if "initial_state" in optional:
        inputs["initial_state"] = normal(rng, (count, q_heads, key_dim, value_dim), wide)
    if packed and not falling:
        begin, end = inputs["cu_seqlens"][[0, -1]]
        for name in inputs.keys() & {"query", "key", "value", "g", "gk", "gv"}:
            inputs[name][:begin] = inputs[name][end:] = np.nan
    return full_call(operation, inputs, params or {})


def _log_decays(rng, shape, dtype) -> np.ndarray:
    """Some forget everything."""
    decays = -np.abs(normal(rng, shape, dtype))
    decays[rng.random(shape) < 0.1] = rng.choice([-1e4, -np.inf])
    return decays


def quantised(rng, x: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """8-bit codes of [..., rows, heads, dim] with a scale: one, per head, or per block of 128 rows."""
    codes = np.clip(np.round(x * 40), -127, 127) if dtype == "i8" else x
    heads = x.shape[-2]
    shapes = [(), (heads,)]
    if x.ndim == 4:
        shapes.append((x.shape[0], -(-x.shape[1] // 128), heads))
    scale = rng.uniform(0.5, 1.5, shapes[rng.integers(len(shapes))]) / (40 if dtype == "i8" else 1)
    return codes.astype(DTYPES[dtype]), np.asarray(scale, np.float32)


def _params(rng, operation: str) -> dict:
    names = {param["name"] for param in DECLARED[operation]["params"]}
    params = {
        "softmax_scale": maybe(rng, lambda: float(rng.choice([0.7, -0.4, 0.0]))),
        "causal": bool(rng.random() < 0.5),
        "causal_align": str(rng.choice(["bottom_right", "top_left"])),
        "sliding_window": WINDOWS[rng.integers(len(WINDOWS))],
        "attention_sink_size": int(rng.integers(0, 3)),
        "logits_soft_cap": maybe(rng, lambda: 1.5),
        "dropout_prob": float(rng.choice([0.0, 0.3, 0.999999])) if rng.random() < 0.5 else 0.0,
        "normalize_output": bool(rng.random() < 0.8),
    }
    return {name: value for name, value in params.items() if name in names}


def _sinks_and_seed(rng, heads: int, dtype) -> dict:
    sinks = maybe(rng, lambda: normal(rng, (heads, 2) if rng.random() < 0.5 else (3,), dtype))
    if sinks is not None and rng.random() < 0.2:
        sinks[..., 0] = -np.inf
    return {
        "softmax_aux": sinks,
        "dropout_seed": maybe(rng, lambda: rng.integers(0, 2**32, 2, dtype=np.uint32), 0.7),
    }


def _broadcast(rng, batch: int, heads: int, q_len: int, kv_len: int) -> tuple:
    shapes = [(batch, heads, q_len, kv_len), (1, heads, 1, kv_len), (batch, 1, q_len, kv_len)]
    return shapes[rng.integers(len(shapes))]


def _bias(rng, shape, dtype) -> np.ndarray:
    bias = normal(rng, shape, dtype)
    bias[rng.random(shape) < 0.2] = -np.inf
    return bias


def _lengths(rng, count: int, capacity: int) -> np.ndarray:
    """Some are out of range."""
    return rng.integers(-1, capacity + 3, count).astype(np.int32)
