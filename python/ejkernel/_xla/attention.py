"""Softmax attention and its gradient as formulas on whole score matrices (docs/semantics.md has the rules).

    s = softmax_scale * q.k + bias, through the soft cap         lse = log(sum over visible keys and sinks of e^s)
    P = e^(s - lse) for visible keys, else 0                     out = (P * f) v, f the dropout factor

    dP = (dO.V^T + dW) * f    dS = P * (dP - delta), through the cap    delta = sum of dO * out - dlse
    dQ = scale * dS K         dK = scale * dS^T Q                       dV = (P * f)^T dO

Every operation becomes one Problem: tensors in the order [batch, head, row, dim] with a packed tensor as one batch
entry, so that what belongs to query rows has its rows at axis 2 and broadcasts against the scores, [batch, head, row,
key]. Many rows are taken in blocks, one after the other, to bound the memory of the scores.
"""

import dataclasses

import jax
import jax.numpy as jnp

from ejkernel._xla import masks, philox
from ejkernel._xla.sequences import packed_spans

_MAX_SCORES = 2**22  # of a head at a time
_SCALE_BLOCK = 128  # tokens that share an 8-bit scale
_ROW_AXIS = 2
_FLOATS = {"f64": jnp.float64, "f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}


@dataclasses.dataclass(frozen=True)
class Problem:
    """A call with every optional thing resolved. `of_rows` holds what belongs to query rows, absent things left out."""

    of_rows: dict  # query, rows, bias, mask, q_segments; a backward adds out, lse, d_out, d_lse, d_weights
    key: jax.Array  # [batch, kv head, key, dim], in the accumulator's dtype and dequantised; value likewise
    value: jax.Array
    kv_segments: jax.Array | None  # [batch, 1, 1, key]
    sinks: jax.Array  # [1, head or 1, 1, sink], of no sinks when there are none
    dropout_seed: jax.Array
    dropout_threshold: int  # 0: no dropout
    scale: float
    soft_cap: float | None
    causal: bool
    window: tuple | None
    sink_tokens: int
    normalize: bool
    packed: bool
    out_dtype: jnp.dtype

    @property
    def num_keys(self) -> int:
        return self.key.shape[2]

    @property
    def num_heads(self) -> int:
        return self.of_rows["query"].shape[1]


# ---- operations ----


def flash_attention(inputs: dict, params: dict) -> dict:
    problem = _problem(inputs, params)
    result = _forward(problem)
    return {"out": _outside(problem, result["out"], problem.out_dtype), "lse": _lse_outside(problem, result["lse"])}


def flash_attention_backward(inputs: dict, params: dict) -> dict:
    problem = _problem(inputs, params)
    return _backward(problem, inputs, _cotangents(problem, inputs))


def attention(inputs: dict, params: dict) -> dict:
    problem = _problem(inputs, params)
    result = _forward(problem, with_weights=True)
    return {
        "out": _outside(problem, result["out"], problem.out_dtype),
        "weights": result["weights"].astype(inputs["query"].dtype),
    }


def attention_backward(inputs: dict, params: dict) -> dict:
    problem = _problem(inputs, params)
    cotangents = _cotangents(problem, inputs)
    return _backward(problem, inputs, {**cotangents, "lse": _forward(problem)["lse"]})


def scaled_dot_product_attention(inputs: dict, params: dict) -> dict:
    return flash_attention(_flash_inputs(inputs), params)


def scaled_dot_product_attention_backward(inputs: dict, params: dict) -> dict:
    return flash_attention_backward(_flash_inputs(inputs), params)


def _flash_inputs(inputs: dict) -> dict:
    """scaled_dot_product_attention's inputs in flash_attention's words; only `query_seq_lengths` has none there."""
    return {**inputs, "seqused_k": inputs["key_value_seq_lengths"]}


# ---- from a call to its problem and back ----


def _problem(inputs: dict, params: dict) -> Problem:
    """Operations that do not declare an input or a parameter leave it out."""
    query, key, value = inputs["query"], inputs["key"], inputs["value"]
    packed = inputs.get("cu_seqlens_q") is not None
    wide = jnp.float64 if query.dtype == jnp.float64 else jnp.float32
    bias, sinks, seed = (inputs.get(name) for name in ("bias", "softmax_aux", "dropout_seed"))
    q_segments, kv_segments = inputs.get("q_segment_ids"), inputs.get("kv_segment_ids")
    if kv_segments is None:
        kv_segments = q_segments
    of_rows = {
        "query": _inside(_dequantised(query, inputs.get("q_scale"), wide), packed),
        "rows": _rows(inputs, params, packed),
        "bias": bias,
        "mask": inputs.get("attention_mask"),
        "q_segments": None if q_segments is None else q_segments[:, None, :, None],
    }
    scale = params["softmax_scale"]
    return Problem(
        of_rows={name: x for name, x in of_rows.items() if x is not None},
        key=_inside(_dequantised(key, inputs.get("k_scale"), wide), packed),
        value=_inside(_dequantised(value, inputs.get("v_scale"), wide), packed),
        kv_segments=None if kv_segments is None else kv_segments[:, None, None, :],
        sinks=jnp.zeros((1, 1, 1, 0), wide) if sinks is None else _as_heads(sinks).astype(wide),
        dropout_seed=jnp.zeros(2, jnp.uint32) if seed is None else seed,
        dropout_threshold=philox.dropout_threshold(params.get("dropout_prob") or 0.0),
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        soft_cap=params.get("logits_soft_cap"),
        causal=bool(params["causal"]),
        window=params["sliding_window"],
        sink_tokens=params.get("attention_sink_size") or 0,
        normalize=params.get("normalize_output", True),
        packed=packed,
        out_dtype=_out_dtype(query.dtype, params.get("out_dtype")),
    )


def _rows(inputs: dict, params: dict, packed: bool) -> masks.Rows:
    q_len, kv_len = inputs["query"].shape[-3], inputs["key"].shape[-3]
    k_used, bottom_right = inputs["seqused_k"], params["causal_align"] == "bottom_right"
    if packed:
        q = packed_spans(inputs["cu_seqlens_q"], q_len, params["max_seqlen_q"])
        k = packed_spans(inputs["cu_seqlens_k"], kv_len, params["max_seqlen_k"])
        return masks.packed_rows(q, k, q_len, k_used, bottom_right)
    q_used = inputs.get("query_seq_lengths")
    return masks.batched_rows(inputs["query"].shape[0], q_len, kv_len, q_used, k_used, bottom_right)


def _cotangents(problem: Problem, inputs: dict) -> dict:
    """What a backward reads besides the problem; an absent cotangent of out is zero."""
    query = problem.of_rows["query"]
    outside = {name: _inside(inputs[name], problem.packed) for name in ("out", "d_out") if inputs.get(name) is not None}
    if "d_out" not in outside:
        outside["d_out"] = jnp.zeros((*query.shape[:3], problem.value.shape[3]), query.dtype)
    for name in ("lse", "d_lse"):
        if inputs.get(name) is not None:
            outside[name] = (inputs[name][None] if problem.packed else inputs[name])[..., None]
    if inputs.get("d_weights") is not None:
        outside["d_weights"] = inputs["d_weights"]
    return {name: x.astype(query.dtype) for name, x in outside.items()}


def _out_dtype(query_dtype, name: str | None):
    if name is not None:
        return _FLOATS[name]
    return jnp.bfloat16 if query_dtype.itemsize == 1 else query_dtype


def _inside(x: jax.Array, packed: bool) -> jax.Array:
    """[batch, row, head, dim], packed [row, head, dim], to [batch, head, row, dim]."""
    return jnp.swapaxes(x[None] if packed else x, 1, 2)


def _outside(problem: Problem, x: jax.Array, dtype) -> jax.Array:
    x = jnp.swapaxes(x, 1, 2).astype(dtype)
    return x[0] if problem.packed else x


def _lse_outside(problem: Problem, lse: jax.Array) -> jax.Array:
    return lse[0, ..., 0] if problem.packed else lse[..., 0]


def _as_heads(sinks: jax.Array) -> jax.Array:
    """[heads, sinks], or [sinks] shared by all heads, to [1, heads or 1, 1, sinks]."""
    return jnp.atleast_2d(sinks)[None, :, None, :]


def _dequantised(x: jax.Array, scale: jax.Array | None, wide) -> jax.Array:
    """`scale` is [], [heads], or [batch, blocks of 128 rows, heads]; absent: 1."""
    x = x.astype(wide)
    if scale is None:
        return x
    if scale.ndim == 3:
        scale = jnp.repeat(scale, _SCALE_BLOCK, axis=1)[:, : x.shape[1]]
    return x * (scale if scale.ndim == 0 else scale[..., None])


# ---- the formulas, on a block of rows ----


def _logits(p: Problem, block: dict) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Logits, which of them count (the others hold anything), and the soft cap's slope d logit / d product."""
    logits = p.scale * _rows_by_keys(block["query"], p.key)
    rows = block["rows"]
    visible = masks.positions_visible(rows, p.num_keys, p.causal, p.window, p.sink_tokens)
    if "q_segments" in block:
        visible &= (block["q_segments"] == p.kv_segments) & (block["q_segments"] >= 0)
    if "mask" in block:
        visible &= block["mask"].astype(bool)
    if "bias" in block:
        logits += block["bias"].astype(logits.dtype)
        visible &= block["bias"] != -jnp.inf
    slope = jnp.ones((), logits.dtype)
    if p.soft_cap is not None:
        capped = jnp.tanh(logits / p.soft_cap)
        logits, slope = p.soft_cap * capped, 1 - capped * capped
    return logits, visible & (logits != -jnp.inf), slope


def _dropout_factor(p: Problem, rows: masks.Rows, dtype) -> jax.Array:
    """1 without dropout."""
    if p.dropout_threshold == 0:
        return jnp.ones((), dtype)
    head = jnp.arange(p.num_heads, dtype=jnp.uint32)[None, :, None, None]
    keep = philox.dropout_keep(
        p.dropout_seed, rows.sequence, head, rows.position, p.num_keys, p.dropout_threshold
    )  # by position in the sequence
    if p.packed:
        position = jnp.clip(masks.key_positions(rows, p.num_keys), 0, max(p.num_keys - 1, 0))
        keep = jnp.take_along_axis(keep, position, axis=3)
    return jnp.where(keep, jnp.asarray(philox.dropout_scale(p.dropout_threshold), dtype), 0)


def _forward_block(p: Problem, block: dict, with_weights: bool) -> dict:
    logits, visible, _ = _logits(p, block)
    # A row without any key or sink keeps lse = log(0); its shift only has to be finite.
    highest = jnp.max(logits, axis=3, keepdims=True, where=visible, initial=-jnp.inf)
    shift = jnp.maximum(highest, jnp.max(p.sinks, axis=3, keepdims=True, initial=-jnp.inf))
    shift = jnp.where(shift == -jnp.inf, 0, shift)
    total = jnp.sum(jnp.exp(logits - shift), axis=3, keepdims=True, where=visible)
    total += jnp.sum(jnp.exp(p.sinks - shift), axis=3, keepdims=True)
    lse = shift + jnp.log(total)
    probabilities = jnp.where(visible, jnp.exp(logits - (lse if p.normalize else highest)), 0)
    weights = probabilities * _dropout_factor(p, block["rows"], logits.dtype)
    result = {"out": _keys_for_rows(weights, _only_seen(p.value, visible)), "lse": lse}
    return {**result, "weights": weights} if with_weights else result


def _backward_block(p: Problem, block: dict) -> tuple[dict, dict]:
    """Gradients of the block's rows, and its share of the gradients that sum over rows."""
    logits, visible, slope = _logits(p, block)
    lse = block["lse"]
    visible &= lse != -jnp.inf
    sees_any = jnp.any(visible, axis=3, keepdims=True)
    # What is seen by nobody may hold anything, and zero times anything is not zero.
    query, d_out = (jnp.where(sees_any, block[name], 0) for name in ("query", "d_out"))
    key, value = _only_seen(p.key, visible), _only_seen(p.value, visible)

    probabilities = jnp.where(visible, jnp.exp(logits - lse), 0)
    factor = _dropout_factor(p, block["rows"], logits.dtype)
    d_weights = _rows_by_keys(d_out, value)
    if "d_weights" in block:
        d_weights = jnp.where(visible, d_weights + block["d_weights"], 0)
    d_probabilities = d_weights * factor
    delta = _delta(block, probabilities, d_probabilities, sees_any)
    d_logits = jnp.where(visible, probabilities * (d_probabilities - delta) * slope, 0)

    of_rows = {"query": p.scale * _keys_for_rows(d_logits, key)}
    sums = {
        "key": p.scale * _rows_for_keys(d_logits, query, p.key.shape[1]),
        "value": _rows_for_keys(probabilities * factor, d_out, p.key.shape[1]),
        "sinks": -jnp.sum(jnp.where(lse != -jnp.inf, jnp.exp(p.sinks - lse) * delta, 0), axis=(0, 2)),
    }
    if "bias" in block:
        d_bias = _sum_to(d_logits, block["bias"].shape)
        (sums if p.of_rows["bias"].shape[_ROW_AXIS] == 1 else of_rows)["bias"] = d_bias
    return of_rows, sums


def _delta(block: dict, probabilities, d_probabilities, sees_any) -> jax.Array:
    """The sum of P * dP, which is that of dO * out where the forward's out is given; minus dlse."""
    if "out" in block:
        delta = jnp.sum(block["d_out"] * block["out"], axis=3, keepdims=True)
    else:
        delta = jnp.sum(probabilities * d_probabilities, axis=3, keepdims=True)
    delta = jnp.where(sees_any, delta, 0)
    return delta - block["d_lse"] if "d_lse" in block else delta


def _only_seen(of_keys: jax.Array, visible: jax.Array) -> jax.Array:
    """0 for keys that no row sees: they may hold anything, and zero times anything is not zero."""
    batch, heads, rows, num_keys = visible.shape
    groups = visible.reshape(batch, of_keys.shape[1], heads // of_keys.shape[1] * rows, num_keys)
    return jnp.where(jnp.any(groups, axis=2)[..., None], of_keys, 0)


def _sum_to(x: jax.Array, shape: tuple) -> jax.Array:
    """Undoes the broadcast of `shape` to x's."""
    broadcast = tuple(axis for axis, (wide, narrow) in enumerate(zip(x.shape, shape)) if wide != narrow)
    return jnp.sum(x, axis=broadcast, keepdims=True)


# ---- products; query head h reads kv head h // (heads / kv heads) ----


def _product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, a, b, precision=jax.lax.Precision.HIGHEST)  # no silent bf16 on accelerators


def _grouped(x: jax.Array, num_kv_heads: int) -> jax.Array:
    """[batch, head, ...] to [batch, kv head, head of its group, ...]."""
    return x.reshape(x.shape[0], num_kv_heads, x.shape[1] // num_kv_heads, *x.shape[2:])


def _ungrouped(x: jax.Array) -> jax.Array:
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])


def _rows_by_keys(of_rows: jax.Array, of_keys: jax.Array) -> jax.Array:
    """[batch, head, row, dim], [batch, kv head, key, dim] to [batch, head, row, key]."""
    return _ungrouped(_product("bngrd,bnkd->bngrk", _grouped(of_rows, of_keys.shape[1]), of_keys))


def _keys_for_rows(weights: jax.Array, of_keys: jax.Array) -> jax.Array:
    """Each row's weighted sum over keys, [batch, head, row, dim]."""
    return _ungrouped(_product("bngrk,bnkd->bngrd", _grouped(weights, of_keys.shape[1]), of_keys))


def _rows_for_keys(weights: jax.Array, of_rows: jax.Array, num_kv_heads: int) -> jax.Array:
    """Each key's weighted sum over the rows of its heads, [batch, kv head, key, dim]."""
    return _product("bngrk,bngrd->bnkd", _grouped(weights, num_kv_heads), _grouped(of_rows, num_kv_heads))


# ---- all rows ----


def _forward(p: Problem, with_weights: bool = False) -> dict:
    return _over_rows(p, p.of_rows, lambda block: (_forward_block(p, block, with_weights), {}))[0]


def _backward(p: Problem, inputs: dict, cotangents: dict) -> dict:
    of_rows, sums = _over_rows(p, {**p.of_rows, **cotangents}, lambda block: _backward_block(p, block))
    gradients = {
        "query": _outside(p, of_rows["query"], inputs["query"].dtype),
        "key": _outside(p, sums["key"], inputs["key"].dtype),
        "value": _outside(p, sums["value"], inputs["value"].dtype),
    }
    if inputs.get("bias") is not None:
        gradients["bias"] = {**sums, **of_rows}["bias"].astype(inputs["bias"].dtype)
    sinks = inputs.get("softmax_aux")
    if sinks is not None:
        d_sinks = sums["sinks"] if sinks.ndim == 2 else sums["sinks"].sum(axis=0)
        gradients["softmax_aux"] = d_sinks.astype(sinks.dtype)
    return gradients


def _over_rows(p: Problem, of_rows: dict, compute) -> tuple[dict, dict]:
    """compute(block) -> (results of its rows, sums over them), on all rows at once or block after block."""
    num_rows = of_rows["query"].shape[_ROW_AXIS]
    if num_rows * p.num_keys <= _MAX_SCORES or num_rows == 1:
        return compute(of_rows)
    size = max(_MAX_SCORES // p.num_keys, 1)
    num_blocks = -(-num_rows // size)
    padded = {name: _padded_rows(name, x, num_rows, num_blocks * size) for name, x in of_rows.items()}

    def block_at(index):
        def cut(x):
            if x.shape[_ROW_AXIS] == 1:  # broadcast over the rows
                return x
            return jax.lax.dynamic_slice_in_dim(x, index * size, size, _ROW_AXIS)

        return jax.tree.map(cut, padded)

    def step(sums, index):
        results, share = compute(block_at(index))
        return jax.tree.map(jnp.add, sums, share), results

    def joined(results):
        """[block, batch, head, row of block, ...] to [batch, head, row, ...]."""
        results = jnp.moveaxis(results, 0, _ROW_AXIS)
        return results.reshape(*results.shape[:2], num_blocks * size, results.shape[4])[:, :, :num_rows]

    shapes = jax.eval_shape(lambda: compute(block_at(0))[1])
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    sums, results = jax.lax.scan(step, nothing, jnp.arange(num_blocks))
    return jax.tree.map(joined, results), sums


def _padded_rows(name: str, x, num_rows: int, padded: int):
    """Rows that fill the last block: of no sequence, so that they see no key, and without an lse of their own."""
    fill = -jnp.inf if name == "lse" else 0

    def pad(x):
        if x.shape[_ROW_AXIS] != num_rows:
            return x
        missing = (0, padded - num_rows)
        return jnp.pad(x, [missing if axis == _ROW_AXIS else (0, 0) for axis in range(4)], constant_values=fill)

    return jax.tree.map(pad, x)
