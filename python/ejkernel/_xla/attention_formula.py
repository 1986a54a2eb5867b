"""The formulas of softmax attention and of its gradient, on all query rows of a problem or on a block of them.

    s = softmax_scale * q.k + bias, through the soft cap         lse = log(sum over visible keys and sinks of e^s)
    P = e^(s - lse) for visible keys, else 0                     out = (P * f) v, f the dropout factor

    dP = (dO.V^T + dW) * f    dS = P * (dP - delta), through the cap    delta = sum of dO * out - dlse
    dQ = scale * dS K         dK = scale * dS^T Q                       dV = (P * f)^T dO

A block is `Problem.of_rows`, cut; docs/semantics.md has the rules.
"""

import jax
import jax.numpy as jnp

from ejkernel._xla import masks, philox
from ejkernel._xla.attention_problem import ROW_AXIS, Problem


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
    keep = philox.dropout_keep(p.dropout_seed, rows.sequence, head, rows.position, p.num_keys, p.dropout_threshold)
    if p.packed:  # the draws are by position in the sequence
        position = jnp.clip(masks.key_positions(rows, p.num_keys), 0, max(p.num_keys - 1, 0))
        keep = jnp.take_along_axis(keep, position, axis=3)
    return jnp.where(keep, jnp.asarray(philox.dropout_scale(p.dropout_threshold), dtype), 0)


def forward_block(p: Problem, block: dict, with_weights: bool) -> dict:
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


def backward_block(p: Problem, block: dict) -> tuple[dict, dict]:
    """Gradients of the block's rows, and its share of the gradients that sum over rows."""
    logits, visible, slope = _logits(p, block)
    lse = block["lse"]
    visible &= lse != -jnp.inf
    sees_any = jnp.any(visible, axis=3, keepdims=True)
    # As in _only_seen: what rows without a key hold must not reach the sums over rows.
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
        (sums if p.of_rows["bias"].shape[ROW_AXIS] == 1 else of_rows)["bias"] = d_bias
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
