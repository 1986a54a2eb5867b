"""A softmax attention call with every optional thing resolved, in the layout that the formulas use.

Tensors have the order [batch, head, row, dim], and a packed tensor is one batch entry. So what belongs to query rows
has its rows at axis 2 and broadcasts against the scores, [batch, head, row, key].
"""

import dataclasses

import jax
import jax.numpy as jnp

from ejkernel._xla import masks, philox
from ejkernel._xla.sequences import packed_spans

ROW_AXIS = 2
_SCALE_BLOCK = 128  # tokens that share an 8-bit scale
FLOATS = {"f64": jnp.float64, "f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}


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


def make_problem(inputs: dict, params: dict) -> Problem:
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
        sinks=jnp.zeros((1, 1, 1, 0), wide) if sinks is None else as_heads(sinks).astype(wide),
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


def backward_inputs(problem: Problem, inputs: dict) -> dict:
    """What a backward reads of query rows besides the problem's own; an absent cotangent of out is zero."""
    query = problem.of_rows["query"]
    given = {name: _inside(inputs[name], problem.packed) for name in ("out", "d_out") if inputs.get(name) is not None}
    if "d_out" not in given:
        given["d_out"] = jnp.zeros((*query.shape[:3], problem.value.shape[3]), query.dtype)
    for name in ("lse", "d_lse"):
        if inputs.get(name) is not None:
            given[name] = (inputs[name][None] if problem.packed else inputs[name])[..., None]
    if inputs.get("d_weights") is not None:
        given["d_weights"] = inputs["d_weights"]
    return {name: x.astype(query.dtype) for name, x in given.items()}


def _out_dtype(query_dtype, name: str | None):
    if name is not None:
        return FLOATS[name]
    return jnp.bfloat16 if query_dtype.itemsize == 1 else query_dtype


def _inside(x: jax.Array, packed: bool) -> jax.Array:
    """[batch, row, head, dim], packed [row, head, dim], to [batch, head, row, dim]."""
    return jnp.swapaxes(x[None] if packed else x, 1, 2)


def outside(problem: Problem, x: jax.Array, dtype) -> jax.Array:
    x = jnp.swapaxes(x, 1, 2).astype(dtype)
    return x[0] if problem.packed else x


def lse_outside(problem: Problem, lse: jax.Array) -> jax.Array:
    return lse[0, ..., 0] if problem.packed else lse[..., 0]


def as_heads(sinks: jax.Array) -> jax.Array:
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
