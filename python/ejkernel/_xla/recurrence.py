"""recurrent_attention, gla_attention, lightning_attention and their gradients: the state token by token, which JAX
differentiates by itself. What it keeps for that is one state for each of about sqrt(tokens) segments.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ejkernel._xla.attention_problem import FLOATS
from ejkernel._xla.sequences import Spans, owners, packed_spans, whole_owners

_FEW_TOKENS = 64  # all states of as many are kept
_OF_TOKENS = ("query", "key", "value", "g", "gk", "gv")
_GATES = ("g", "g_gamma", "gk", "gv")


def recurrent_attention(inputs: dict, params: dict) -> dict:
    out, state = _attend(_floats(inputs), inputs["cu_seqlens"], params)
    dtype = params["state_dtype"]
    return {
        "out": out.astype(inputs["query"].dtype),
        "final_state": state if dtype is None else state.astype(FLOATS[dtype]),
    }


def recurrent_attention_backward(inputs: dict, params: dict) -> dict:
    floats, cu_seqlens = _floats(inputs), inputs["cu_seqlens"]
    query, value_dim = floats["query"], inputs["value"].shape[-1]
    num_sequences = query.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shapes = {
        "d_out": (*query.shape[:-1], value_dim),
        "d_final_state": (num_sequences, *query.shape[-2:], value_dim),
    }
    cotangents = tuple(
        jnp.zeros(shape, query.dtype) if inputs[name] is None else inputs[name].astype(query.dtype)
        for name, shape in shapes.items()
    )
    gradients = _pull_back(floats, cu_seqlens, params, cotangents)
    return {name: gradient.astype(inputs[name].dtype) for name, gradient in gradients.items()}


def gla_attention(inputs: dict, params: dict) -> dict:
    return recurrent_attention(_whole(inputs), params)


def gla_attention_backward(inputs: dict, params: dict) -> dict:
    return recurrent_attention_backward(_whole(inputs), params)


def lightning_attention(inputs: dict, params: dict) -> dict:
    return recurrent_attention(_with_decays(inputs, params), params)


def lightning_attention_backward(inputs: dict, params: dict) -> dict:
    gradients = recurrent_attention_backward(_with_decays(inputs, params), params)
    return {name: gradient for name, gradient in gradients.items() if name != "g_gamma"}


def _whole(inputs: dict) -> dict:
    """recurrent_attention's inputs: gates that are not declared are absent."""
    return dict.fromkeys(_GATES) | inputs


def _with_decays(inputs: dict, params: dict) -> dict:
    query = inputs["query"]
    heads = query.shape[-2]
    slope = -8 / heads * (1 - params["layer_idx"] / params["num_layers"])
    return _whole(inputs) | {"g_gamma": jnp.asarray([slope * h for h in range(heads)], _wide(query))}


def _wide(query: jax.Array):
    return jnp.float64 if query.dtype == jnp.float64 else jnp.float32


def _floats(inputs: dict) -> dict:
    """What is given and has a gradient, in the dtype of the state."""
    wide = _wide(inputs["query"])
    given = {name: inputs[name] for name in (*_OF_TOKENS, "g_gamma", "initial_state")}
    return {name: x.astype(wide) for name, x in given.items() if x is not None}


def _attend(floats: dict, cu_seqlens: jax.Array | None, params: dict) -> tuple[jax.Array, jax.Array]:
    """out and the final states."""
    query, value = floats["query"], floats["value"]
    if cu_seqlens is None:
        return _recur(floats, None, _states(floats, query.shape[0]), params)

    def add_layer(owner, shown, results):
        out, states = results
        mine, states = _recur(_of_rows(floats, owner), owner, states, params)
        return _where(shown, mine, out), states

    nothing = jnp.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
    start = (nothing, _states(floats, cu_seqlens.shape[0] - 1))
    return _over_layers(packed_spans(cu_seqlens, query.shape[0]), query.shape[0], add_layer, start)


def _pull_back(floats: dict, cu_seqlens: jax.Array | None, params: dict, cotangents) -> dict:
    """The gradient of each of `floats`."""
    if cu_seqlens is None:
        return jax.vjp(lambda floats: _attend(floats, None, params), floats)[1](cotangents)[0]
    d_out, d_states = cotangents
    num_rows = d_out.shape[0]
    states = _states(floats, d_states.shape[0])
    others = {name: x for name, x in floats.items() if name != "initial_state"}

    def add_layer(owner, shown, results):
        """Sequences of other layers hand their state on, and its cotangent back."""
        gradients, d_states = results
        _, pullback = jax.vjp(lambda *given: _recur(given[0], owner, given[1], params), _of_rows(others, owner), states)
        mine, d_states = pullback((_where(owner >= 0, d_out, 0), d_states))
        merged = {n: _where(shown, x, gradients[n]) if n in _OF_TOKENS else gradients[n] + x for n, x in mine.items()}
        return merged, d_states

    start = (jax.tree.map(jnp.zeros_like, others), d_states)
    gradients, d_initial = _over_layers(packed_spans(cu_seqlens, num_rows), num_rows, add_layer, start)
    return gradients | ({"initial_state": d_initial} if "initial_state" in floats else {})


# ---- sequences ----


def _states(floats: dict, num_sequences: int) -> jax.Array:
    """Before the first token."""
    if "initial_state" in floats:
        return floats["initial_state"]
    query, value = floats["query"], floats["value"]
    return jnp.zeros((num_sequences, *query.shape[-2:], value.shape[-1]), query.dtype)


def _where(rows: jax.Array, x: jax.Array, y) -> jax.Array:
    return jnp.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x, y)


def _of_rows(floats: dict, owner: jax.Array) -> dict:
    """Zeros in rows of no sequence, which may hold anything."""
    return {name: _where(owner >= 0, x, 0) if name in _OF_TOKENS else x for name, x in floats.items()}


def _over_layers(spans: Spans, num_rows: int, add_layer, start):
    """Calls add_layer(owner, shown, results) with sequences that share no row, until each had its turn: once, unless
    sequences overlap. A row shows the result of the last one that claims it."""
    last = owners(spans, num_rows)

    def step(layer):
        left, results = layer
        owner, done = whole_owners(spans, num_rows, left)
        return left & ~done, add_layer(owner, (owner >= 0) & (owner == last), results)

    return jax.lax.while_loop(lambda layer: jnp.any(layer[0]), step, (spans.length > 0, start))[1]


# ---- the recurrence ----


class _Tokens(NamedTuple):
    """What is read of tokens, in the order of the recurrence: [tokens, (batch,) heads, ...]."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    decay: jax.Array  # [..., heads, key_dim or 1, value_dim or 1], in logarithms
    owner: jax.Array | None  # the state of each token; None: they have the states' batch


def _recur(floats: dict, owner: jax.Array | None, states: jax.Array, params: dict) -> tuple[jax.Array, jax.Array]:
    """out in the order of rows, and the states after the last token."""
    scale = params["softmax_scale"]
    if scale is None:
        scale = floats["query"].shape[-1] ** -0.5
    return _recur_in_order(floats, owner, states, scale, params["reverse"])


@functools.partial(jax.jit, static_argnames="reverse")  # else the loop is compiled at every call
def _recur_in_order(floats: dict, owner: jax.Array | None, states: jax.Array, scale: float, reverse: bool):
    tokens = _tokens(floats, owner, scale, reverse)
    few = tokens.query.shape[0] <= _FEW_TOKENS
    states, out = (_segment if few else _segments)(states, tokens)
    out = out[::-1] if reverse else out
    return out if owner is not None else jnp.swapaxes(out, 0, 1), states


def _segments(states: jax.Array, tokens: _Tokens) -> tuple[jax.Array, jax.Array]:
    length = tokens.query.shape[0]
    segment = math.isqrt(length)
    whole = length - length % segment
    early = jax.tree.map(lambda x: x[:whole].reshape(whole // segment, segment, *x.shape[1:]), tokens)
    states, out = jax.lax.scan(jax.checkpoint(_segment), states, early)
    states, rest = _segment(states, jax.tree.map(lambda x: x[whole:], tokens))
    return states, jnp.concatenate([out.reshape(whole, *out.shape[2:]), rest])


def _tokens(floats: dict, owner: jax.Array | None, scale: float, reverse: bool) -> _Tokens:
    query, packed = floats["query"], owner is not None
    group = query.shape[-2] // floats["key"].shape[-2]
    decay = jnp.zeros((*query.shape[:-1], 1, 1), query.dtype)
    for name, axes in (("g", (-1, -2)), ("gk", (-1,)), ("gv", (-2,))):
        if name in floats:
            decay += jnp.expand_dims(floats[name], axes)
    if "g_gamma" in floats:
        decay += floats["g_gamma"][:, None, None]
    rows = (scale * query, *(jnp.repeat(floats[name], group, axis=-2) for name in ("key", "value")), decay)
    rows = [x if packed else jnp.swapaxes(x, 0, 1) for x in rows]
    return jax.tree.map(lambda x: x[::-1] if reverse else x, _Tokens(*rows, owner))


def _segment(states: jax.Array, tokens: _Tokens) -> tuple[jax.Array, jax.Array]:
    return jax.lax.scan(_step, states, tokens)


def _step(states: jax.Array, token: _Tokens) -> tuple[jax.Array, jax.Array]:
    state = states if token.owner is None else states[token.owner]
    state = jnp.exp(token.decay) * state + token.key[..., :, None] * token.value[..., None, :]
    out = (token.query[..., :, None] * state).sum(axis=-2)
    if token.owner is None:
        return state, out
    # A row of no sequence, -1, is not stored.
    last = states.shape[0]
    return states.at[jnp.where(token.owner < 0, last, token.owner)].set(state, mode="drop"), out
